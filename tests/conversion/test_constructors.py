"""A converted model is built again by the name of its constructor, and by no other code."""

import json

import pytest
import torch
from torch import nn

import anytime
from anytime.conversion.constructors import build_converted, options_for

HERE = "conversion_models:blocks"


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "conversion_models.py").write_text(
        "from torch import nn\n"
        "def blocks(num_classes=10, width=8):\n"
        "    layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()]\n"
        "    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))\n"
        "def other():\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_model_of_ones_own_is_loaded_if_it_is_trusted(tmp_path, monkeypatch):
    net = build_converted(HERE, (1, 8, 8), ["1"], {"num_classes": 3}, trust=True).eval()
    net.heads[0].head.classify[-1].weight.data.normal_()
    anytime.save(net, tmp_path / "model")
    x = torch.randn(4, 1, 8, 8)
    with pytest.raises(anytime.AnytimeError, match=r"conversion_models:blocks, which may be any code .* trust=True"):
        anytime.load(tmp_path / "model")
    state = torch.get_rng_state()
    loaded = anytime.load(tmp_path / "model", trust=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(net(x), loaded(x), strict=True))
    monkeypatch.setenv("ANYTIME_TRUST", "1")
    assert anytime.load(tmp_path / "model").places == net.places


def test_a_model_of_ones_own_is_loaded_as_a_part_of_another(tmp_path):
    x = torch.randn(4, 1, 8, 8)
    first, second = (build_converted(HERE, (1, 8, 8), ["1"], trust=True) for _ in range(2))
    named = anytime.create_model("resann-1-4", in_channels=1)
    for whole in (anytime.combine(first), anytime.EANN([named, anytime.combine(first, "product"), second])):
        folder = anytime.save(whole.eval(), tmp_path / type(whole).__name__)
        with pytest.raises(anytime.AnytimeError, match="which may be any code"):
            anytime.load(folder)
        state = torch.get_rng_state()
        loaded = anytime.load(folder, trust=True)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(a, b) for a, b in zip(whole(x), loaded(x), strict=True))


def test_nothing_is_downloaded_unless_asked_for(monkeypatch):
    pytest.importorskip("torchvision")

    def download(*_args, **_options):
        pytest.fail("weights were downloaded")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    net = build_converted("torchvision:lraspp_mobilenet_v3_large", (3, 32, 32), 1, {"num_classes": 5})
    assert net.eval()(torch.zeros(1, 3, 32, 32))[-1].shape == (1, 5, 32, 32)


def test_torchvision_needs_no_trust(tmp_path):
    pytest.importorskip("torchvision")
    name = "torchvision:squeezenet1_1"
    net = build_converted(name, (3, 32, 32), 2, options_for(name, 5, 3, {})).eval()
    anytime.save(net, tmp_path / "model")
    x = torch.randn(2, 3, 32, 32)
    loaded = anytime.load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(net(x), loaded(x), strict=True))
    assert loaded.config == net.config


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("torchvision:resnet18", {"weights": "DEFAULT"}, "option 'weights' is not allowed"),
        ("torchvision:nothing", {}, "torchvision has no model 'nothing'"),
        ("timm:resnet18", {"checkpoint_path": "x.pth"}, "option 'checkpoint_path' is not allowed"),
        ("timm:hf-hub.someone", {}, "timm has no model"),
        ("transformers:AutoConfig", {}, "transformers has no model 'AutoConfig'"),
        ("transformers:pipeline", {}, "transformers has no model 'pipeline'"),
        ("os:getcwd", {}, "may be any code"),
        ("not a name", {}, "not the name of a constructor"),
    ],
)
def test_no_other_code_is_called(name, options, says):
    pytest.importorskip(name.partition(":")[0] if ":" in name else "os")
    with pytest.raises(anytime.AnytimeError, match=says):
        build_converted(name, (3, 32, 32), 2, options)


def test_wrong_functions_say_what_is_wrong():
    for name, says in (
        ("conversion_models:nothing", "there is no conversion_models:nothing"),
        ("no_such_module:f", "there is no no_such_module:f"),
        ("conversion_models:other", "returned a int"),
        ("conversion_models:__doc__", "expected a function"),
    ):
        with pytest.raises(anytime.AnytimeError, match=says):
            build_converted(name, (1, 8, 8), 2, trust=True)
    with pytest.raises(anytime.AnytimeError, match="TypeError"):
        build_converted(HERE, (1, 8, 8), 2, {"color": 1}, trust=True)


def test_a_configuration_that_asks_for_more_than_its_weights_is_refused(tmp_path):
    """Ten thousand layers for a file of a few tensors."""
    net = build_converted(HERE, (1, 8, 8), ["1"], trust=True)
    net.config["model"] = "torchvision:vit_h_14"
    net.config["options"] = {"num_classes": 10}
    net.config["shape"] = [3, 224, 224]
    anytime.save(net, tmp_path / "model")
    with pytest.raises(anytime.AnytimeError, match="more parameters than"):
        anytime.load(tmp_path / "model")
    text = json.loads((tmp_path / "model" / "config.json").read_text())
    assert text["network"]["model"] == "torchvision:vit_h_14"


def test_a_converted_network_says_why_it_cannot_be_pickled():
    import pickle

    net = anytime.convert(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.zeros(1, 4), exits=2)
    with pytest.raises(anytime.AnytimeError, match=r"cannot be pickled.*anytime\.save"):
        pickle.dumps(net)


def test_pretrained_weights_of_torchvision_fill_all_but_the_classifier(monkeypatch):
    models = pytest.importorskip("torchvision.models")
    public = models.squeezenet1_1(weights=None).state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *_args, **_options: public)
    net = build_converted("torchvision:squeezenet1_1", (3, 32, 32), 2, {"num_classes": 5}, pretrained=True)
    own = net.model.state_dict()
    same = [name for name in own if torch.equal(own[name], public.get(name))] if own.keys() == public.keys() else []
    assert own.keys() - same == {"classifier.1.weight", "classifier.1.bias"}
    assert "pretrained" not in net.config["options"]  # what is saved is built again without them


def test_pretrained_weights_that_cannot_be_had(monkeypatch):
    pytest.importorskip("torchvision.models")

    def no_network(*_args, **_options):
        raise OSError("no route to host\nand more")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_network)
    with pytest.raises(anytime.AnytimeError, match=r"OSError: no route to host and more\): connect to the"):
        build_converted("torchvision:squeezenet1_1", (3, 32, 32), 2, pretrained=True)
    with pytest.raises(anytime.AnytimeError, match="torchvision:NAME, not for transformers:BertModel"):
        build_converted("transformers:BertModel", (3, 32, 32), pretrained=True)
