"""``anytime.json``: what an exported folder holds, checked when it is read."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anytime.cost import Costs
from anytime.errors import AnytimeError
from anytime.export.graphs import LOGITS, Value
from anytime.files import json_text, open_regular, read_json, why_absent
from anytime.inference.policy import Policy
from anytime.preprocessing import Preprocessing
from anytime.rows import Rows

FILE = "anytime.json"
FORMAT = 1
SHARED = "shared.bin"
"""The file with the weights that several graphs use."""

TYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool")


@dataclass(frozen=True)
class GraphFile:
    """A graph in a file, and the names of what it takes and returns."""

    file: str
    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True)
class Description:
    """What ``anytime.json`` says.

    Attributes:
        backend: what runs the graphs: ``onnx`` or ``executorch``.
        structure: how the input holds its tensors: None (it is one), its keys (a dict), or their number (a list).
        input: the names of the tensors of the input.
        values: type and shape of every named value.
        stages: the graph up to each exit, from the exit before.
        states: for each stage the names of the values that are needed after it.
        heads: the graph of each exit.
        exits: which exits of the network these are, counted from 1.
        costs: by exit, for one sample.
        counted: the shapes of the input that the costs were counted for.
        preprocessing: from images to inputs, with the names of the classes.
        policy: when samples leave early.
        about: versions, the network's name, where it comes from.
        files: the SHA-256 checksum of every other file.
    """

    backend: str
    structure: list[str] | int | None
    input: list[str]
    values: dict[str, Value]
    stages: list[GraphFile]
    states: list[list[str]]
    heads: list[GraphFile]
    exits: list[int]
    costs: Costs
    counted: list[list[int]]
    preprocessing: Preprocessing | None
    policy: Policy | None
    about: dict[str, Any]
    files: dict[str, str]

    def __post_init__(self) -> None:
        if not self.stages or len({len(e) for e in (self.stages, self.states, self.heads, self.exits)}) != 1:
            raise AnytimeError("there must be as many stages, states, heads and exits, and at least one")
        if len({len(self.costs.macs), len(self.costs.params), len(self.costs.heads), len(self.exits)}) != 1:
            raise AnytimeError("there must be a cost for every exit")
        if self.policy and len(self.policy.temperatures) != len(self.exits):
            raise AnytimeError(f"the policy is for {len(self.policy.temperatures)} exits, not {len(self.exits)}")
        self._check_flow()

    def _check_flow(self) -> None:
        """Every graph takes what is there when it runs, and every file is listed."""
        there = set(self.input)
        tensors = len(self.structure) if isinstance(self.structure, list) else self.structure or 1
        if len(self.input) != tensors or len(self.counted) != tensors or not set(self.input) <= set(self.values):
            raise AnytimeError("the names of the input do not match its structure")
        for stage, state, head in zip(self.stages, self.states, self.heads, strict=True):
            names = [*stage.inputs, *stage.outputs, *state, *head.inputs]
            if not set(stage.inputs) <= there or not set(state) <= there | set(stage.outputs):
                raise AnytimeError(f"{stage.file} takes values that no stage before it returns")
            if not set(head.inputs) <= set(state) or head.outputs != [LOGITS]:
                raise AnytimeError(f"{head.file} takes or returns other values than its exit has")
            if not {*names, LOGITS} <= set(self.values) or not {stage.file, head.file} <= set(self.files):
                raise AnytimeError("a value or file that is used is not described")
            there = set(state)

    def text(self) -> str:
        """What is written."""
        content = asdict(self)
        content["values"] = {name: asdict(value) for name, value in self.values.items()}
        return json_text({"format": FORMAT, **content}, sealed=True)


def read_description(folder: Path) -> Description:
    """Read ``anytime.json``; what is altered or makes no sense is refused."""
    path = folder / FILE
    if not path.is_file():
        what = why_absent(folder, FILE)
        raise AnytimeError(f"{folder} is not an exported network: {what} (anytime export RUN --to onnx writes one)")
    content = read_json(path, sealed=True)
    try:
        if content.pop("format") != FORMAT:
            raise ValueError("it was written by another version of anytime; export the network again")
        return _checked(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise AnytimeError(f"{path} is damaged ({reason}): export the network again") from error


def _checked(content: dict[str, Any]) -> Description:
    files = {_file(name): _text(checksum) for name, checksum in content["files"].items()}
    policy, prepare, costs = content["policy"], content["preprocessing"], content["costs"]
    structure = content["structure"]
    if isinstance(structure, bool) or not isinstance(structure, list | int | None):
        raise ValueError(f"structure={structure!r}")
    return Description(
        backend=_text(content["backend"]),
        structure=_texts(structure) if isinstance(structure, list) else structure,
        input=_texts(content["input"]),
        values={_text(name): _value(**value) for name, value in content["values"].items()},
        stages=[_graph(**entry) for entry in content["stages"]],
        states=[_texts(state) for state in content["states"]],
        heads=[_graph(**entry) for entry in content["heads"]],
        exits=_counts(content["exits"]),
        costs=Costs(**{name: _counts(costs[name]) for name in ("macs", "params", "heads")}),
        counted=[_counts(shape) for shape in content["counted"]],
        preprocessing=None if prepare is None else Preprocessing(**prepare),
        policy=None if policy is None else Policy.of(policy),
        about=dict(content["about"]),
        files=files,
    )


def _value(type: str, shape: list[int | str]) -> Value:
    if type not in TYPES:
        raise ValueError(f"the type {type!r} is unknown")
    for size in shape:
        if isinstance(size, str) and rows_each(size) is None and size != "any":
            raise ValueError(f"the size {size!r} is unknown")
    sizes = [size if isinstance(size, str) else _count(size) for size in shape]
    if sum(isinstance(size, str) and size != "any" for size in sizes) > 1:
        raise ValueError("a value has two dimensions for the samples")
    return Value(type, tuple(sizes))


def rows_each(size: int | str) -> int | None:
    """How many rows of a dimension each sample has; None for a dimension that does not hold samples.

    Examples:
        >>> rows_each("batch"), rows_each("4*batch"), rows_each("any"), rows_each(32)
        (1, 4, None, None)
    """
    match = re.fullmatch(r"(?:(\d{1,9})\*)?batch", size) if isinstance(size, str) else None
    return int(match[1] or 1) if match else None


def rows_of(value: Value) -> Rows | None:
    """The dimension that holds the samples, and how many rows each has."""
    return next((Rows(dim, each) for dim, size in enumerate(value.shape) if (each := rows_each(size))), None)


def _graph(file: str, inputs: list[str], outputs: list[str]) -> GraphFile:
    return GraphFile(_file(file), _texts(inputs), _texts(outputs))


def _file(name: str) -> str:
    """A plain file name: nothing outside of the folder is read."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        raise ValueError(f"{name!r} is not the name of a file in this folder")
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise ValueError(f"expected a name, not {value!r}")
    return value


def _texts(values: Any) -> list[str]:
    found = [_text(value) for value in values]
    if not isinstance(values, list) or len(set(found)) < len(found):
        raise ValueError("names must be a list, none of them twice")
    return found


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        raise ValueError(f"expected an integer >= 0, not {value!r}")
    return value


def _counts(values: Any) -> list[int]:
    return [_count(value) for value in values]


def checksum(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def read_files(folder: Path, description: Description) -> dict[str, bytes]:
    """The content of all files, if they are those that were written."""
    contents = {}
    for name, expected in description.files.items():
        try:
            with open_regular(folder / name) as file:
                contents[name] = file.read()
        except OSError as error:
            raise AnytimeError(
                f"{folder / name} cannot be read ({error.strerror}): export the network again"
            ) from error
        if checksum(contents[name]) != expected:
            raise AnytimeError(
                f"{folder / name} is not the file that was exported: its checksum is wrong (damaged, swapped or of "
                "another export); export the network again"
            )
    return contents


Contents = Mapping[str, bytes]
Runner = Callable[[Mapping[str, Any]], list[Any]]
"""From named arrays, among which are the inputs of a graph, to its outputs."""


class Runners(NamedTuple):
    """What runs the graphs of a folder."""

    each: dict[str, Runner]
    """By file."""
    join: Callable[[Sequence[GraphFile], GraphFile], Runner | None] | None = None
    """Several graphs, in the order in which they run, as one that takes and returns what the last argument says; None
    if they cannot be joined."""
