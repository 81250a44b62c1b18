"""Models for sharing (config.json + model.safetensors) and checkpoints of a whole training run."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anytime.ensemble.eann import EANN
from anytime.ensemble.eann import NAME as ENSEMBLE
from anytime.errors import AnytimeError
from anytime.files import read_json, read_tensors, write_json, write_tensors
from anytime.inference.latency import FILE as PROFILES
from anytime.inference.latency import read_profiles, remember
from anytime.inference.policy import FILE as POLICY
from anytime.models import create_model
from anytime.network import AnytimeNetwork


def save(net: AnytimeNetwork, folder: str | Path, **about: Any) -> Path:
    """Write a network to a folder as ``model.safetensors`` and ``config.json``.

    Args:
        net: the network. One that ``create_model`` built can be loaded by the folder alone; any other by
            ``load(folder, net=...)`` with a network built in the same way.
        folder: made if it is not there; files of an earlier ``save`` are replaced, each only when the new one is whole;
            a latency profile and an early-exit policy of an earlier model are removed.
        about: anything JSON can hold that users of the model need, for instance the classes' names.

    Example:
        >>> import anytime, tempfile
        >>> folder = anytime.save(anytime.create_model("resann-1-8"), tempfile.mkdtemp())
        >>> anytime.load(folder).config
        {'model': 'resann-1-8'}
    """
    folder = Path(folder)
    for made_for_another in (PROFILES, POLICY):
        (folder / made_for_another).unlink(missing_ok=True)
    state = net.state_dict()
    tied = _tied(state)
    write_tensors(folder / "model.safetensors", {name: t for name, t in state.items() if name not in tied}, {})
    write_json(folder / "config.json", {**(net.config or {"model": None}), **({"about": about} if about else {})})
    return folder


def load(folder: str | Path, net: AnytimeNetwork | None = None) -> AnytimeNetwork:
    """Read a network that ``save`` or a training run wrote; in eval mode, on the CPU. Nothing is unpickled.

    Latency profiles beside it (``anytime profile FOLDER --save``) are read too: ``predict`` goes by them.

    Args:
        folder: the model's folder, or that of a finished training run.
        net: the network to fill, for one that was not built by ``create_model``.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        what = "there is no such folder" if not folder.is_dir() else "it has no config.json"
        hint = ""
        if (folder / "run.json").is_file():
            what = "its training run has not ended yet"
            command = "train-ensemble" if read_json(folder / "run.json").get("ensemble") else "train"
            hint = f"; end it with: anytime {command} --output {folder} --resume"
        raise AnytimeError(f"{folder} is not a saved model: {what}{hint or ' (anytime.save writes one)'}")
    config = read_json(folder / "config.json")
    about = config.pop("about", None)
    build = net is None
    net = _build(folder, config) if net is None else net
    tensors, _ = read_tensors(folder / "model.safetensors")
    state = net.state_dict()
    tensors |= {name: tensors[twin] for name, twin in _tied(state).items() if name not in tensors and twin in tensors}
    for name, expected in state.items():
        if name not in tensors or tensors[name].dtype == expected.dtype:
            continue
        if not (build and tensors[name].is_floating_point() and expected.is_floating_point()):  # net.half() was saved
            raise AnytimeError(f"{folder}: model.safetensors has {name} as {tensors[name].dtype}, not {expected.dtype}")
    try:
        net.load_state_dict(tensors, assign=build)
    except (RuntimeError, AnytimeError) as error:
        problem = str(error).split("\n\t")[1].strip() if "\n\t" in str(error) else str(error)
        raise AnytimeError(
            f"{folder}: model.safetensors was made for another network than config.json says "
            f"({config.get('model') or 'the one given'}): {problem}"
        ) from error
    if about is not None:
        net.config = {**(net.config or {"model": None}), "about": about}
    if build:  # reading has laid the weights out anew
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for profile in read_profiles(folder):
        if len(profile.stages) == len(net.stages):
            remember(net, profile)
    return net.eval()


def _tied(state: dict[str, Tensor]) -> dict[str, str]:
    """Names of tensors that are another one, whose name comes first: they are written once."""
    first: dict[tuple[int, torch.Size], str] = {}
    tied = {}
    for name, tensor in state.items():
        if tensor.device.type != "meta" and tensor.numel():
            twin = first.setdefault((tensor.data_ptr(), tensor.shape), name)
            if twin != name:
                tied[name] = twin
    return tied


def _build(folder: Path, config: dict[str, Any]) -> AnytimeNetwork:
    name = config.pop("model", None)
    if not isinstance(name, str):
        raise AnytimeError(
            f"{folder}: config.json does not say how to build this network; build it as before and call "
            "load(folder, net=...)"
        )
    try:
        if name == ENSEMBLE:
            return EANN(_build(folder, dict(member)) for member in config["members"])
        with torch.device("meta"):  # no memory and no random numbers for weights that are read anyway
            return create_model(name, **config)
    except (KeyError, TypeError, ValueError) as error:
        raise AnytimeError(f"{folder}: config.json describes no network of this version: {error}") from error
