"""Models on the Hub: the client's own cache stands for it, as it does without a network. Uploads are not run here."""

import pytest
import torch

import anytime
from anytime import hub
from anytime.cost import Costs

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache as the client lays it out, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache" / "models--someone--digits"


def put(cache, net, **about):
    folder = cache / "snapshots" / COMMIT
    anytime.save(net, folder, **about)
    for name in ("main", "v1"):
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / name).write_text(COMMIT)
    return folder


@pytest.mark.parametrize("revision", ["", "@v1", f"@{COMMIT}"])
def test_a_model_is_loaded_from_the_hub_and_says_at_which_commit(cache, revision):
    net = anytime.create_model("resann-1-4", in_channels=1).eval()
    put(cache, net, note="mine")
    loaded = anytime.load(f"hf://someone/digits{revision}")
    x = torch.randn(2, 1, 8, 8)
    assert all(torch.equal(a, b) for a, b in zip(net(x), loaded(x), strict=True))
    assert loaded.config["about"] == {"note": "mine", "hub": f"hf://someone/digits@{COMMIT}"}


def test_what_is_not_there_and_what_is_altered_is_refused(cache):
    with pytest.raises(anytime.AnytimeError, match="hf://someone/digits@v2 cannot be loaded"):
        anytime.load("hf://someone/digits@v2")
    for wrong in ("hf://digits", "hf://a/b/c", "hf://a/b@"):
        with pytest.raises(anytime.AnytimeError, match="expected hf://owner/name"):
            anytime.load(wrong)
    folder = put(cache, anytime.create_model("resann-1-4", in_channels=1))
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("resann-1-4", "resann-1-8"))
    with pytest.raises(anytime.AnytimeError):
        anytime.load("hf://someone/digits")


@pytest.mark.usefixtures("cache")
def test_an_upload_has_card_picture_and_model():
    net = anytime.create_model("resann-1-4", in_channels=1)
    net.preprocessing = anytime.load_data("digits").preprocessing
    curve = anytime.Curve([0.3, 0.2, None], [1.0, 0.9, None], Costs([1, 2, 4], [1, 2, 3]), 500)
    with hub.prepared(net, hub.Address("someone/digits", None), curve) as folder:
        anytime.save(net, folder)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        assert names == {"config.json", "model.safetensors", "README.md", "curve.png"}
        text = (folder / "README.md").read_text()
        assert "| 2 | 50.0 | 0.2 |" in text
        assert "| 3 | 100.0 | not evaluated |" in text
        assert 'anytime.load("hf://someone/digits")' in text
        anytime.load(folder)
    with pytest.raises(anytime.AnytimeError, match="cannot be written"):  # the client refuses: it is offline
        anytime.save(net, "hf://someone/digits", curve=curve)
