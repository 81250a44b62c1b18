"""Examples say in one line what is missing."""

import os
import subprocess
import sys
from pathlib import Path

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
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == f'No module named {missing}: this needs an extra; run: pip install "anytime-nets[examples]"\n'
