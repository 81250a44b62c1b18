"""Examples say in one line what is missing."""

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
    assert done.stderr == f'No module named {missing}: this needs an extra; run: pip install "anytime-nets[examples]"\n'
