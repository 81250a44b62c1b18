"""Writing an exported network: graphs, ``anytime.json`` and a model card, compared with the network before."""

import copy
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anytime.conversion.converted import ConvertedNetwork
from anytime.ensemble.eann import EANN
from anytime.errors import AnytimeError, require
from anytime.export.card import model_card
from anytime.export.description import FILE, SHARED, Description, GraphFile, checksum
from anytime.export.executorch_graphs import programs
from anytime.export.exported import ExportedNetwork, make
from anytime.export.graphs import Staged, samples, staged
from anytime.export.onnx_graphs import captured, traced
from anytime.files import write_together
from anytime.inference.batch_times import FILE as BATCH_TIMES
from anytime.inference.latency import FILE as PROFILE
from anytime.inference.policy import Policy
from anytime.network import Network, eval_mode, name_of
from anytime.saving import CONFIG

Made = tuple[Description, dict[str, bytes]]
"""What an export is: its description, and the contents of its files."""

CARD = "MODEL_CARD.md"
TOLERANCE = 1e-4
"""How far the logits may be from the network's, relative to the largest."""

WRITTEN = rf"(stage|head)-\d+\.(onnx|pte)|{re.escape(SHARED)}|{re.escape(PROFILE)}|{re.escape(BATCH_TIMES)}"
"""The names of files that an export may have left: its own, and the times that were measured of it."""

SHARED_BYTES = 1024
"""Weights of at least so many bytes that several graphs use are written once."""


def onnx(
    net: Network,
    example: Any,
    folder: str | Path,
    *,
    exits: Iterable[int] | None = None,
    other: Any = None,
    policy: Policy | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a network as ONNX models, one for each stage and one for each head; ``load_exported`` reads them.

    The batch size is free. Before anything is written, the models are run with one and with three samples: every exit
    must agree with the network to 1e-4 of its largest logit.

    Args:
        net: any anytime network: built by ``create_model``, converted, or an ``EANN``.
        example: an input: a tensor, or a dict, tuple or list of tensors.
        folder: created if it does not exist; an earlier export in it is replaced, and the times that were measured of
            it are removed.
        exits: the exits to keep, counted from 0 as in ``net.steps(x, only)``. Stages up to the next of them become one
            model, which is faster. Default: all.
        other: another input, of other sizes, if these are to be free: an image of another size, a text of another
            length.
        policy: an early-exit policy for these exits, to be written with them.
        about: anything else that users of the model need and JSON can hold.

    Examples:
        >>> import anytime, tempfile
        >>> net = anytime.create_model("resann-1-8")
        >>> folder = onnx(net, torch.zeros(1, 3, 32, 32), tempfile.mkdtemp(), exits=[0, 2])
        >>> sorted(path.name for path in folder.iterdir())[2:]
        ['head-01.onnx', 'head-02.onnx', 'stage-01.onnx', 'stage-02.onnx']
    """
    package = require("onnx", "onnx")
    require("onnxruntime", "onnx")
    folder = check_target(folder)
    plan = _planned(net, example, exits, other, policy)
    examples = [example] if other is None else [example, other]

    def translated(translate: Callable[[Staged], dict[str, Any]]) -> Made:
        models = translate(plan)
        contents = files_of(package, {f"{name}.onnx": model for name, model in models.items()})
        used = {name: [value.name for value in model.graph.input] for name, model in models.items()}
        description = describe(plan, "onnx", "onnx", used, contents, policy, about or {})
        check(make(description, contents), plan, examples)
        return description, contents

    return write(folder, *_first_that_agrees(translated, _translators(net)))


def _first_that_agrees(translated: Callable[[Any], Made], translators: Sequence[Any]) -> Made:
    """What the first translator gives that can follow the network; what is wrong with that of the last is raised."""
    *quick, last = translators
    for translate in quick:
        with suppress(Exception):
            return translated(translate)
    try:
        return translated(last)
    except AnytimeError:
        raise
    except Exception as error:  # ONNX Runtime raises classes of its own
        reason = str(error).strip().partition("\n")[0]
        raise AnytimeError(f"ONNX Runtime cannot run this network's graphs ({reason}): it was not written") from error


def executorch(
    net: Network,
    example: Any,
    folder: str | Path,
    *,
    exits: Iterable[int] | None = None,
    policy: Policy | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a network as ExecuTorch programs (``.pte``) for XNNPACK, one for each stage and one for each head.

    The batch size is free up to 32. Arguments and checks are those of ``anytime.export.onnx``.
    """
    require("executorch.exir", "executorch")
    folder = check_target(folder)
    net = copy.deepcopy(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # XNNPACK's
    plan = _planned(net, example, exits, None, policy)
    contents = {f"{name}.pte": content for name, content in programs(plan).items()}
    used = {name: graph.inputs for name, graph in plan.graphs.items()}
    description = describe(plan, "executorch", "pte", used, contents, policy, about or {})
    check(make(description, contents), plan, [example])
    return write(folder, description, contents)


def check_target(folder: str | Path) -> Path:
    """The folder to write to; refused if a model is saved there, whose files would be mixed up with the export's."""
    folder = Path(folder)
    if (folder / CONFIG).is_file():
        raise AnytimeError(f"{folder} holds a saved model: export to another folder, e.g. {folder / 'onnx'}")
    return folder


def _planned(net: Network, example: Any, exits: Iterable[int] | None, other: Any, policy: Policy | None) -> Staged:
    if policy is not None and callable(policy.score):
        raise AnytimeError(
            "a policy whose score is a function cannot be exported: leave it out, and calibrate the exported network "
            "where it is used"
        )
    plan = staged(net, example, exits, other)
    if policy is not None and len(policy.temperatures) != len(plan.exits):
        raise AnytimeError(
            f"the policy is for {len(policy.temperatures)} exits, and {len(plan.exits)} are exported: a policy is "
            "calibrated for all exits of a network"
        )
    return plan


def _translators(net: Network) -> Sequence[Any]:
    """Tracing first, since it is quick. A converted model's stages count their samples, which it cannot follow."""
    parts = net.members if isinstance(net, EANN) else [net]
    return (captured,) if any(isinstance(part, ConvertedNetwork) for part in parts) else (traced, captured)


def files_of(onnx: Any, models: Mapping[str, Any]) -> dict[str, bytes]:
    """The contents of the files of models, and of the one with the weights that several of them use."""
    seen: dict[bytes, str] = {}
    shared: dict[bytes, int] = {}
    for name, model in models.items():
        for tensor in model.graph.initializer:
            raw = _raw(onnx, tensor)
            if len(raw) >= SHARED_BYTES and seen.setdefault(raw, name) != name:
                shared.setdefault(raw, 0)
    start = 0
    for raw in shared:
        shared[raw], start = start, start + len(raw)
    for model in models.values():
        for tensor in model.graph.initializer:
            raw = _raw(onnx, tensor)
            if raw in shared:
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in (("location", SHARED), ("offset", shared[raw]), ("length", len(raw))):
                    tensor.external_data.add(key=key, value=str(value))
    contents = {name: model.SerializeToString(deterministic=True) for name, model in models.items()}
    return contents | ({SHARED: b"".join(shared)} if shared else {})


def _raw(onnx: Any, tensor: Any) -> bytes:
    if not tensor.HasField("raw_data") and tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64):
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return tensor.raw_data


def describe(
    plan: Staged,
    backend: str,
    suffix: str,
    used: Mapping[str, list[str]],
    contents: Mapping[str, bytes],
    policy: Policy | None,
    about: Mapping[str, Any],
) -> Description:
    """What ``anytime.json`` says of these files."""
    stages, heads = [], []
    for i, (stage, head) in enumerate(zip(plan.stages, plan.heads, strict=True), start=1):
        for kind, graph, into in (("stage", stage, stages), ("head", head, heads)):
            name = f"{kind}-{i:02d}"
            into.append(GraphFile(f"{name}.{suffix}", used[name], list(graph.outputs)))
    states, needed = [], set[str]()
    for stage, head in zip(reversed(stages), reversed(heads), strict=True):
        needed |= set(head.inputs)
        states.insert(0, sorted(needed))
        needed = (needed - set(stage.outputs)) | set(stage.inputs)
    net = plan.net
    return Description(
        backend=backend,
        structure=plan.keys,
        input=plan.input,
        values=plan.values,
        stages=stages,
        states=states,
        heads=heads,
        exits=[exit + 1 for exit in plan.exits],
        costs=plan.costs,
        counted=[[1, *tensor.shape[1:]] for tensor in plan.stages[0].example],
        preprocessing=net.preprocessing,
        policy=policy,
        about={"network": name_of(net.config) or type(net).__name__, **_versions(), **about},
        files={name: checksum(content) for name, content in contents.items()},
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("anytime-nets", "onnx", "onnxruntime", "onnxscript", "executorch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def check(exported: ExportedNetwork, plan: Staged, examples: Iterable[Any]) -> list[float]:
    """How far each exit's logits are from the network's, relative to the largest; raises above the tolerance."""
    worst = [0.0] * len(plan.exits)
    for example in examples:
        for x in (samples(example, n) for n in (1, 3)):
            with eval_mode(plan.net), torch.no_grad():
                expected = plan.net(x, plan.exits)
            found = [reached() for reached in exported.walk(x) if reached is not None]
            worst = [max(w, distance(a, b)) for w, a, b in zip(worst, found, expected, strict=True)]
    if not max(worst) <= TOLERANCE:
        raise AnytimeError(
            f"exit {plan.exits[int(np.argmax(worst))] + 1} of the exported network is {max(worst):.1g} (of its largest "
            f"logit) from the network itself, more than {TOLERANCE:g}: it was not written"
        )
    return worst


def distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two outputs relative to the largest number; infinite if their shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    apart = (found.double() - expected.cpu().double()).abs().max().item()
    largest = max(expected.abs().max().item(), 1e-30)
    return apart / largest if apart == apart else float("inf")


def write(folder: Path, description: Description, contents: Mapping[str, bytes]) -> Path:
    """Write all files; those of an earlier export are replaced or removed, and so are the times measured of it."""
    text, card = description.text(), model_card(description)
    writers = {name: (lambda path, content=content: path.write_bytes(content)) for name, content in contents.items()}
    writers |= {
        CARD: lambda path: path.write_text(card, encoding="utf-8"),
        FILE: lambda path: path.write_text(text, encoding="utf-8"),
    }
    earlier = [path.name for path in folder.glob("*") if re.fullmatch(WRITTEN, path.name) and path.is_file()]
    write_together(folder, writers, remove=[name for name in earlier if name not in writers])
    return folder
