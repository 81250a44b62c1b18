"""Models by the name of their constructor, so that a converted model can be built again from a configuration."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from anytime.conversion.convert import convert
from anytime.conversion.converted import ConvertedNetwork
from anytime.errors import AnytimeError, require

LIBRARIES = ("timm", "torchvision", "transformers")
"""Libraries whose constructors need no trust: names are looked up in the library's own list."""

_OPTIONS = {"timm": {"num_classes", "in_chans", "img_size"}, "torchvision": {"num_classes"}}
"""Their allowed options; others could name files and URLs."""


def is_constructor(name: Any) -> bool:
    """Whether a model's name is that of a constructor: ``timm:resnet18``, ``package.module:function``.

    Examples:
        >>> is_constructor("timm:resnet18"), is_constructor("my.models:build"), is_constructor("resann-3-16")
        (True, True, False)
    """
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[\w.-]+", name) is not None


def build_converted(
    name: str,
    shape: tuple[int, ...],
    exits: int | float | list[str] = 4,
    options: Mapping[str, Any] | None = None,
    *,
    head: str = "auto",
    trust: bool = False,
    pretrained: bool = False,
) -> ConvertedNetwork:
    """Build a model by the name of its constructor and convert it; ``config`` says how to build it again.

    Args:
        name: ``timm:NAME``, ``torchvision:NAME``, ``transformers:CLASS``, or ``package.module:function``.
        shape: of one input, without the samples: channels, height and width.
        exits: as for ``convert``.
        options: for the constructor; for a class of transformers, those of its config.
        head: the kind of heads by name, as for ``convert``.
        trust: allow ``package.module:function``, which may be anything that is installed.
        pretrained: start from the weights that timm or torchvision has for the model, which it downloads or finds in
            its cache. A classifier for another number of classes keeps its random weights.

    Examples:
        >>> net = build_converted("anytime.models.layers:LinearHead", (8, 4, 4), 1, {"channels": 8, "num_classes": 3},
        ...                       trust=True)
        >>> net.exits, net.config["model"]
        (1, 'anytime.models.layers:LinearHead')
    """
    if not is_constructor(name):
        raise AnytimeError(
            f"{name!r} is not the name of a constructor: expected timm:resnet18 or package.module:function"
        )
    options = dict(options or {})
    library, _, what = name.partition(":")
    if pretrained and library not in _OPTIONS:
        raise AnytimeError(
            f"pretrained weights exist for timm:NAME and torchvision:NAME, not for {name}; in Python convert any "
            "model, e.g. anytime.convert(AutoModelForImageClassification.from_pretrained(…), example)"
        )
    try:
        if pretrained:
            model = _pretrained(library, what, options)
        elif library in LIBRARIES:
            model = _KNOWN[library](what, options)
        elif trust:
            model = _named(library, what)(**options)
        else:
            raise AnytimeError(
                f"the model is built by {name}, which may be any code that is installed here; if you trust where it "
                f"comes from, pass trust=True, or --trust on the command line"
            )
    except (AnytimeError, MemoryError):
        raise
    except Exception as error:  # whatever the constructor raises
        raise AnytimeError(f"{name} with {options or 'no options'} fails: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise AnytimeError(f"{name} returned a {type(model).__name__}; expected an nn.Module")
    example = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    net = convert(
        model,
        example,
        exits,
        head=head,
        preprocessing=_transforms(what) if library == "torchvision" and pretrained else None,
    )
    if not pretrained:
        net.preprocessing = None  # its weights are random: nothing was trained with timm's mean and deviation
    net.config = {"model": name, "options": options, "shape": list(shape), "exits": exits, "head": head}
    return net


def options_for(name: str, classes: int, channels: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's options for a number of classes and channels."""
    library, _, what = name.partition(":")
    words: dict[str, Any] = {
        "timm": {"num_classes": classes, "in_chans": channels},
        "torchvision": {"num_classes": classes},
        "transformers": {"num_labels": classes, "num_channels": channels},
    }.get(library, {})
    if library not in LIBRARIES:
        takes = inspect.signature(_named(library, what)).parameters
        wanted = {"num_classes": classes, "in_channels": channels}
        words = {key: value for key, value in wanted.items() if key in takes}
    return {**words, **more}


def _named(module: str, function: str) -> Callable[..., Any]:
    try:
        found = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise AnytimeError(f"there is no {module}:{function} here ({error}): install or name what has it") from error
    if not callable(found):
        raise AnytimeError(f"{module}:{function} is a {type(found).__name__}; expected a function that builds a model")
    return found


def _check(library: str, what: str, known: list[str], options: Mapping[str, Any]) -> None:
    if what not in known:
        raise AnytimeError(f"{library} has no model {what!r}")
    if strange := options.keys() - _OPTIONS[library]:
        allowed = ", ".join(sorted(_OPTIONS[library]))
        raise AnytimeError(f"{library}:{what} option {min(strange)!r} is not allowed; allowed: {allowed}")


def _timm(what: str, options: dict[str, Any]) -> nn.Module:
    timm = require("timm", "examples")
    _check("timm", what, timm.list_models(), options)
    return timm.create_model(what, pretrained=False, **options)


def _pretrained(library: str, what: str, options: dict[str, Any]) -> nn.Module:
    """A model with its library's weights; those of another shape, of a classifier, are left out."""
    model = _KNOWN[library](what, options)  # refuses names and options that are not known
    try:
        if library == "timm":
            return require("timm", "examples").create_model(what, pretrained=True, **options)
        models = require("torchvision.models", "examples")
        theirs = models.get_model_weights(what).DEFAULT.get_state_dict(progress=False, check_hash=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise AnytimeError(
            f"the pretrained weights of {library}:{what} could not be loaded ({type(error).__name__}: {reason}): "
            "connect to the network once, so that they are in the cache, or start from random weights"
        ) from error
    own = model.state_dict()
    fitting = {name: tensor for name, tensor in theirs.items() if name in own and own[name].shape == tensor.shape}
    model.load_state_dict(fitting, strict=False)
    return model


def _transforms(what: str) -> Any:
    return require("torchvision.models", "examples").get_model_weights(what).DEFAULT.transforms()


def _torchvision(what: str, options: dict[str, Any]) -> nn.Module:
    models = require("torchvision.models", "examples")
    _check("torchvision", what, models.list_models(), options)
    # Models for segmentation and detection download the weights of their backbone unless told not to.
    backbone = "weights_backbone" in inspect.signature(models.get_model_builder(what)).parameters
    return models.get_model(what, weights=None, **({"weights_backbone": None} if backbone else {}), **options)


def _transformers(what: str, options: dict[str, Any]) -> nn.Module:
    transformers = require("transformers", "examples")
    kind: Any = getattr(transformers, what, None)
    usable = inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)
    config: Any = getattr(kind, "config_class", None) if usable else None
    if config is None:
        raise AnytimeError(f"transformers has no model {what!r}; expected a class such as ViTForImageClassification")
    if bad := [key for key, value in options.items() if not _plain(value)]:
        raise AnytimeError(f"transformers:{what}: the option {bad[0]!r} must be a number, a string or a list of them")
    build: Any = getattr(transformers, what)
    return build(config(**options))


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


_KNOWN = {"timm": _timm, "torchvision": _torchvision, "transformers": _transformers}
