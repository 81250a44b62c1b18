"""The import graph is the one that ARCHITECTURE.md draws."""

import ast
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import anytime

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "anytime"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")


def module(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def imports(path):
    """The modules of this package that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield from (name for name in [submodule if submodule in MODULES else node.module] if name in MODULES)


GRAPH = {name: set(imports(path)) - {name} for name, path in MODULES.items()}


def top(name):
    """The package or top-level module that a module belongs to."""
    return name.split(".")[1] if "." in name else None


def layers():
    """ARCHITECTURE.md's layers, lowest first, each a list of modules."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```layers\n(.*?)^```", text, re.M | re.S)
    return [line.split("·") for line in block.splitlines()]


def test_there_is_no_cycle_between_modules():
    # cli's modules register their commands with `anytime.cli.app` and use the package's root as users do.
    graph = {name: {n for n in used if n != "anytime"} for name, used in GRAPH.items() if name != "anytime"}
    TopologicalSorter(graph).prepare()


def test_a_module_imports_only_modules_of_lower_layers():
    layer = {name.strip(): number for number, names in enumerate(layers()) for name in names}
    assert set(layer) == {top(name) for name in MODULES} - {None}, "ARCHITECTURE.md names every module, and no other"
    for name, used in GRAPH.items():
        for other in used:
            if top(name) != top(other) and None not in (top(name), top(other)):
                assert layer[top(other)] < layer[top(name)], f"{name} imports {other}, not in a lower layer"


def test_only_the_top_layer_imports_the_package_itself():
    users = {name for name, used in GRAPH.items() if "anytime" in used}
    assert {top(name) for name in users} <= {"cli"}


@pytest.mark.parametrize("path", FILES, ids=module)
def test_a_file_fits_in_one_head(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, "split it by concept"


NETWORKS = {"net", "nets", "network", "networks", "member", "eann", "combined", "converted", "exported"}


def asked_of_networks(path):
    """Calls of ``hasattr`` and ``getattr`` whose first argument is called like a network, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            asked = node.args[0]
            name = asked.attr if isinstance(asked, ast.Attribute) else asked.id if isinstance(asked, ast.Name) else ""
            if name in NETWORKS:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_what_a_network_can_do_is_not_guessed(path):
    """The abstract class says it, ``anytime.Network``: every kind has every attribute of it."""
    assert list(asked_of_networks(path)) == []


@pytest.mark.parametrize("path", FILES, ids=module)
def test_what_a_network_takes_is_not_guessed_from_its_layers(path):
    """``Network.input_shape`` says it; the layers are known to the models themselves and to conversion."""
    if top(module(path)) not in ("models", "conversion"):
        assert "Conv2d" not in path.read_text(encoding="utf-8")


def test_no_public_name_shadows_a_module():
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            package = importlib.import_module(name)
            for public in getattr(package, "__all__", []):
                assert f"{name}.{public}" not in MODULES, f"{name}.{public} is a function and a module"


def documented():
    """The names in the reference."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    return re.findall(r"^::: (\S+)", "\n".join(pages), re.MULTILINE)


OPTIONAL = {f"anytime.integrations.{name}" for name in ("trainer", "lightning", "sentence_transformers")}
"""Modules that need another library: imported by their own names."""


@pytest.mark.parametrize("name", sorted(set(documented()) - OPTIONAL))
def test_documented_names_are_at_the_top_or_in_a_subpackage(name):
    parts = name.split(".")
    assert parts[0] == "anytime"
    assert len(parts) <= 3
    package = importlib.import_module(".".join(parts[:-1]))
    assert hasattr(package, parts[-1])
    assert f"{name}" in MODULES or parts[-1] in package.__all__, "what is in no __all__ is private"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_documents_import_from_the_top_or_a_subpackage(path):
    deep = re.findall(r"^ *from (anytime\.\w+\.[\w.]+) import", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(deep) <= OPTIONAL


def test_the_public_names_are_sorted():
    assert all(hasattr(anytime, name) for name in anytime.__all__)


def test_a_class_name_has_one_meaning():
    names = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                assert names.setdefault(node.name, path) is path, f"{node.name} is in {names[node.name]} and {path}"
