import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYTIME_CACHE", str(tmp_path / "cache"))
