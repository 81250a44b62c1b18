"""Saving and loading models: a folder with config.json and model.safetensors, each of which has a checksum."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX, register_module_parameter_registration_hook

from anytime.combination.combined import NAME as COMBINED
from anytime.combination.combined import combine
from anytime.conversion.constructors import build_converted, is_constructor
from anytime.conversion.converted import ConvertedNetwork
from anytime.ensemble.eann import EANN
from anytime.ensemble.eann import NAME as ENSEMBLE
from anytime.errors import AnytimeError, check_integer
from anytime.evaluation import Curve
from anytime.files import (
    check_tensors,
    json_text,
    locked,
    pack,
    read_json,
    read_tensors,
    why_absent,
    write_together,
)
from anytime.hub import address, fetch, prepared, publish
from anytime.inference.batch_times import FILE as BATCH_TIMES
from anytime.inference.conformal import FILE as SETS
from anytime.inference.latency import FILE as PROFILES
from anytime.inference.latency import read_profiles, remember
from anytime.inference.policy import FILE as POLICY
from anytime.models import create_model
from anytime.network import Network
from anytime.preprocessing import Preprocessing
from anytime.selection import NAME as SELECTED
from anytime.selection import SelectedNetwork

TRUST = "ANYTIME_TRUST"
"""The environment variable by which ``--trust`` reaches everything that loads, also in other processes."""

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(net: Network, folder: str | Path, *, curve: Curve | None = None, **about: Any) -> Path | str:
    """Write a network to a folder as ``model.safetensors`` and ``config.json``, its preprocessing included.

    Several threads and processes may save to the same folder at the same time: one of them wins, and ``load`` never
    sees a mixture.

    Args:
        net: the network. One that ``create_model`` built can be loaded by the folder alone; any other by
            ``load(folder, net=...)`` with a network built in the same way.
        folder: created if it does not exist. Files of an earlier ``save`` are replaced once the new ones are complete;
            latency profiles, an early-exit policy and conformal sets of the earlier model are removed.
            ``hf://owner/name`` writes to the Hugging Face Hub, as you are logged in there; a new repository is private.
            Then the address at the new commit is returned.
        curve: for the Hub: what ``evaluate`` returned, shown in the model's card.
        about: anything else that users of the model need and JSON can hold.

    Examples:
        >>> import anytime, tempfile
        >>> folder = anytime.save(anytime.create_model("resann-1-8"), tempfile.mkdtemp())
        >>> anytime.load(folder).config
        {'model': 'resann-1-8'}
    """
    where = address(folder)
    if where is not None:
        with prepared(net, where, curve) as path:
            save(net, path, **about)
            return publish(path, where)
    folder = Path(folder)
    tensors, metadata, checksum = pack(net.state_dict(), {})
    network = {key: value for key, value in (net.config or {}).items() if key != "about"}
    prepare = net.preprocessing and asdict(net.preprocessing)
    config = {"network": network or None, "layout": net.layout(), "preprocessing": prepare}
    config |= {"about": about, "weights": checksum}
    try:
        text = json_text(config, sealed=True)
    except (TypeError, ValueError) as error:
        raise AnytimeError(f"save(net, folder, **about): about must be what JSON can hold: {error}") from error
    write_together(
        folder,
        {
            WEIGHTS: lambda path: save_file(tensors, path, metadata),
            CONFIG: lambda path: path.write_text(text, encoding="utf-8"),
        },
        remove=(PROFILES, BATCH_TIMES, POLICY, SETS),
    )
    return folder


def load(folder: str | Path, net: Network | None = None, *, trust: bool = False) -> Network:
    """Read a network that ``save`` or a training run wrote; in eval mode, on the CPU. Nothing is unpickled.

    A folder whose files were altered or do not belong together is refused; a network that was given is then left as it
    was. Latency profiles beside the model (``Profile.save``) are read too: ``predict`` uses them.

    Args:
        folder: the model's folder, or that of a finished training run; or ``hf://owner/name`` on the Hugging Face Hub,
            of which only safetensors and JSON files are read. ``hf://owner/name@revision`` names a commit, a tag or a
            branch; ``net.config["about"]["hub"]`` then has the address at the exact commit.
        net: the network to load the weights into, for one that ``create_model`` did not build.
        trust: for a model whose configuration names a function of an installed package that builds it
            (``package.module:function``): call it. Constructors of timm, torchvision and transformers need no trust.

    Examples:
        >>> import anytime, tempfile
        >>> folder = anytime.save(anytime.create_model("resann-1-8", num_classes=3), tempfile.mkdtemp())
        >>> net = anytime.load(folder)
        >>> net.exits, net.training
        (3, False)
    """
    found = address(folder)
    folder, exact = fetch(found) if found else (Path(folder), None)
    config, tensors = _read(folder)
    config["about"] |= {"hub": str(exact)} if exact else {}
    build = net is None
    net = _build(folder, config["network"], len(tensors), trust or trusted()) if net is None else net
    build = build and not any(isinstance(part, ConvertedNetwork) for part in net.modules())  # that one is complete
    _check_layout(folder, config["layout"], net)
    profiles = read_profiles(folder)
    _fill(folder, tensors, net, build)
    net.preprocessing = config["preprocessing"]
    if config["about"]:
        net.config = {**(net.config or {"model": None}), "about": config["about"]}
    if build:  # the weights that were read have the default layout
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for profile in profiles:
        if len(profile.stages) == len(net.stage_exits):
            remember(net, profile)
    return net.eval()


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The two files, if they are unaltered and belong together."""
    if not (folder / CONFIG).exists():
        what = why_absent(folder, CONFIG)
        hint = ""
        if (folder / "run.json").is_file():
            what = "its training run has not ended yet"
            command = "train-ensemble" if read_json(folder / "run.json").get("ensemble") else "train"
            hint = f"; finish it with: anytime {command} --output {folder} --resume"
        raise AnytimeError(f"{folder} is not a saved model: {what}{hint or ' (anytime.save writes one)'}")
    try:
        return _read_files(folder)
    except AnytimeError:
        with locked(folder):  # perhaps another process was replacing the files just now
            return _read_files(folder)


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = read_json(folder / CONFIG, sealed=True)
    expected = {"network": dict | None, "layout": dict, "preprocessing": dict | None, "about": dict, "weights": str}
    for key, kind in expected.items():
        if key not in config or not isinstance(config[key], kind):
            raise AnytimeError(f"{folder / CONFIG} is not a model's: {key!r} is missing or of the wrong type")
    if config["preprocessing"] is not None:
        try:
            config["preprocessing"] = Preprocessing(**config["preprocessing"])
        except (TypeError, AnytimeError) as error:
            raise AnytimeError(f"{folder / CONFIG} has no valid preprocessing: {error}") from error
    try:
        tensors, _ = read_tensors(folder / WEIGHTS, config["weights"])
    except AnytimeError as error:
        raise AnytimeError(
            f"{error}. {CONFIG} and {WEIGHTS} in {folder} must be from the same save: save the model again, "
            "or copy both files from where it was saved"
        ) from error
    # Copies, since what was read is still mapped to the file, and follows what is done to it.
    copies = {id(tensor): tensor.clone() for tensor in tensors.values()}
    return config, {name: copies[id(tensor)] for name, tensor in tensors.items()}


def _check_layout(folder: Path, saved: dict[str, Any], net: Network) -> None:
    here = json.loads(json.dumps(net.layout()))
    for key in {**saved, **here}:
        if saved.get(key) != here.get(key):
            raise AnytimeError(
                f"{folder} was saved with {key} {saved.get(key)}, but the network given has {key} {here.get(key)}: "
                "build it as it was built before saving"
            )


def _fill(folder: Path, tensors: dict[str, Tensor], net: Network, build: bool) -> None:
    """Load the weights; a network that they do not belong to is left as it was.

    A network built from the folder takes the precision that was saved (``net.half()``); a given one must have it.
    """
    expected = {name: _expected(name, tensor, tensors.get(name), build) for name, tensor in net.state_dict().items()}
    try:
        check_tensors("network", tensors, expected)
        net.load_state_dict(tensors, assign=build)
    except (RuntimeError, AnytimeError) as error:
        problem = str(error).split("\n\t")[1].strip() if "\n\t" in str(error) else str(error)
        whose = "config.json describes" if build else "was given"
        raise AnytimeError(
            f"{folder}: {WEIGHTS} belongs to another network than the one that {whose}: {problem}"
        ) from error


def _expected(name: str, tensor: Tensor, saved: Tensor | None, build: bool) -> Tensor:
    """What a saved tensor must be like."""
    if saved is not None and name.endswith(_EXTRA_STATE_KEY_SUFFIX):
        return saved  # of any shape; the module itself checks it before anything is loaded
    if saved is not None and build and tensor.is_floating_point() and saved.is_floating_point():
        return tensor.to(saved.dtype)
    return tensor


def trusted() -> bool:
    """Whether the command was told to trust what it loads."""
    return os.environ.get(TRUST) == "1"


def _build(folder: Path, config: dict[str, Any] | None, parameters: int, trust: bool) -> Network:
    """The network that a configuration describes; it may have at most ``parameters`` parameters.

    It is on the meta device, without memory and random numbers for weights that are read anyway, unless a part of it is
    a converted model. Constructors of those replace some of the parameters that they make.
    """
    if config is None:
        raise AnytimeError(
            f"{folder}: {CONFIG} does not say how to build this network. In Python, build it as before saving: "
            f"net = anytime.load({str(folder)!r}, net=net), then anytime.evaluate(net, data). For the command line "
            "export it, anytime.export.onnx(net, x, folder), and name that folder, or let it build the model: "
            "anytime convert my_package.models:build --data DATA --output FOLDER"
        )
    try:
        converted = _is_converted(config)
        limit = _at_most(4 * parameters if converted else parameters)
        with limit, torch.random.fork_rng([]) if converted else torch.device("meta"):
            return _create(config, trust)
    except Exception as error:  # a damaged configuration can raise anything
        raise AnytimeError(f"{folder}: {CONFIG} describes no network of this version: {error}") from error


def _is_converted(config: dict[str, Any]) -> bool:
    """Whether a network or a part of it is a converted model."""
    inner = [config.get("network")]
    parts = {ENSEMBLE: config.get("members"), COMBINED: inner, SELECTED: inner}.get(config["model"], [])
    return is_constructor(config["model"]) or any(map(_is_converted, parts))


def _create(config: dict[str, Any], trust: bool) -> Network:
    if is_constructor(config["model"]):
        shape = tuple(check_integer("shape", size, most=2**14) for size in config["shape"])
        exits, head = config["exits"], config["head"]
        return build_converted(config["model"], shape, exits, config["options"], head=head, trust=trust)
    if config["model"] == ENSEMBLE:
        return EANN(_create(member, trust) for member in config["members"])
    if config["model"] == COMBINED:
        return combine(_create(config["network"], trust), config["rule"], **config["options"])
    if config["model"] == SELECTED:
        return SelectedNetwork(_create(config["network"], trust), config["exits"])
    return create_model(config["model"], **{key: value for key, value in config.items() if key != "model"})


@contextmanager
def _at_most(parameters: int) -> Iterator[None]:
    """Let this thread build no more parameters than there are tensors in the file: a few bytes can name any number."""
    thread, built = threading.get_ident(), 0

    def count(*_: object) -> None:
        nonlocal built
        built += threading.get_ident() == thread
        if built > parameters and threading.get_ident() == thread:
            raise AnytimeError(f"it has more parameters than the {parameters} tensors in {WEIGHTS}")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
