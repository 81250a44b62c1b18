"""What users install: a wheel and an sdist, complete, without records and pictures."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import anytime

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def distribution(tmp_path_factory):
    """The folder with the wheel and the sdist."""
    pytest.importorskip("build", reason='needs: pip install "anytime-nets[dist]"')
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.mark.promise
def test_the_files(distribution):
    (wheel,), (sdist,) = distribution.glob("*.whl"), distribution.glob("*.tar.gz")
    assert wheel.name == f"anytime_nets-{anytime.__version__}-py3-none-any.whl"
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.endswith(".py")} == modules
        about = email.message_from_bytes(archive.read(f"anytime_nets-{anytime.__version__}.dist-info/METADATA"))
    always = {name for name in about.get_all("Requires-Dist") if "extra ==" not in name}
    assert {re.match(r"[\w-]+", name)[0] for name in always} == {"torch", "numpy", "safetensors", "filelock"}
    assert about["Author"] == "the anytime developers"
    assert not re.search(r"\]\((?!https?:)", about.get_payload()), "relative links lead nowhere on a package page"
    with tarfile.open(sdist) as archive:
        assert {"README.md", "LICENSE", "pyproject.toml"} <= {Path(name).name for name in archive.getnames()}
        assert sum(member.size for member in archive.getmembers()) < 4e6  # a quarter is the embedded model
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True)


@pytest.mark.promise
def test_a_wheel_in_a_clean_environment(distribution, tmp_path):
    """Outside of the checkout, with only its own dependencies."""
    (wheel,) = distribution.glob("*.whl")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    bin = tmp_path / "venv" / "bin"

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(bin / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert run(bin / "python", "-c", "import anytime; print(anytime.__file__)").startswith(str(tmp_path))
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert "deadline=0.020" in example[1]
    run(bin / "python", "-c", example[1].replace("deadline=0.020", "deadline=60"))  # a busy machine may miss 20 ms
    refused = subprocess.run([bin / "anytime", "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert 'run: pip install "anytime-nets[cli]"' in refused.stderr
    run(bin / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[cli]")
    assert "train" in run(bin / "anytime", "--help")
    assert run(bin / "anytime", "--version") == f"anytime {anytime.__version__}\n"
    assert "resann" in run(bin / "anytime", "models", "resann*")
    assert "before a deadline" in run(bin / "anytime", "demo", "--epochs", "1")  # without matplotlib: no picture


def test_extras_that_hints_name_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = [path.read_text() for folder in ("src", "docs", "examples") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    named = {extra for text in texts for extra in re.findall(r'require\([^)]*, "(\w+)"\)|anytime-nets\[(\w+)\]', text)}
    assert {name for pair in named for name in pair if name} <= extras


def test_one_version_for_all():
    assert f"\nversion: {anytime.__version__}\n" in (ROOT / "CITATION.cff").read_text()
