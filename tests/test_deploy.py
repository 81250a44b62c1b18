"""The files of examples/deploy, checked by the programs that they are for."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "deploy"


def checked(program, *words):
    """Run a program that accepts or refuses a file."""
    where = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if where is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([where, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_nginx_takes_the_configuration(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "anytime.key", tmp_path / "anytime.crt"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    site = (FOLDER / "nginx.conf").read_text().replace("/etc/nginx/", f"{tmp_path}/")
    main = f"pid {tmp_path}/pid; error_log {tmp_path}/log;\nevents {{}}\nhttp {{ access_log off;\n{site} }}\n"
    (tmp_path / "nginx.conf").write_text(main)
    assert "successful" in checked("nginx", "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf")


def test_systemd_takes_the_unit(tmp_path):
    unit = (FOLDER / "anytime.service").read_text().replace("/opt/anytime/bin/anytime", "/bin/true")
    (tmp_path / "anytime.service").write_text(unit)
    said = checked("systemd-analyze", "verify", tmp_path / "anytime.service")
    assert str(tmp_path) not in said, said  # warnings do not fail it


def test_prometheus_takes_the_rules():
    assert "rules found" in checked("promtool", "check", "rules", FOLDER / "prometheus-rules.yml")


def test_an_alarm_is_raised_when_answers_are_late(tmp_path):
    shutil.copy(FOLDER / "prometheus-rules.yml", tmp_path)
    shutil.copy(FOLDER / "prometheus-test.yml", tmp_path)
    checked("promtool", "test", "rules", tmp_path / "prometheus-test.yml")


def test_kubernetes_takes_the_manifest():
    validate = pytest.importorskip("kubernetes_validate", reason="needs: pip install kubernetes-validate")
    yaml = pytest.importorskip("yaml")
    kinds = []
    for document in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()):
        validate.validate(document, validate.latest_version(), strict=True)
        kinds.append(document["kind"])
    assert kinds == ["Deployment", "Service", "PodDisruptionBudget"]


def test_the_metrics_that_rules_and_panels_ask_for_exist():
    pytest.importorskip("prometheus_client", reason='needs: pip install "anytime-nets[serve]"')
    from anytime.serving.metrics import Metrics

    exist = {family.name for family in Metrics({}).registry.collect()}
    exist |= {f"{name}{end}" for name in exist for end in ("_total", "_bucket")}
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 5
    text = "\n".join([*asked, (FOLDER / "prometheus-rules.yml").read_text()])
    assert set(re.findall(r"anytime_\w+", text)) <= exist
    recorded = set(re.findall(r"record: (\S+)", text))
    assert set(re.findall(r"anytime:[\w:]+", text)) <= recorded


def test_the_options_in_the_files_exist():
    from anytime.cli import serve

    known = Path(serve.__file__).read_text()
    for file in ("anytime.service", "kubernetes.yaml"):
        lines = [line for line in (FOLDER / file).read_text().splitlines() if not line.lstrip().startswith("#")]
        for option in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", "\n".join(lines)):
            assert f"{option.replace('-', '_')}: Annotated" in known, option
