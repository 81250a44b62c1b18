"""What stands around a model: its normalization, its frozen and random layers, its own learning rate."""

import warnings

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import ViTImageProcessor

import anytime
from anytime.training.recipe import RECIPES

IMAGE = torch.zeros(1, 3, 32, 32)


def model(outputs=10, channels=3):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(c, 8, 3), nn.ReLU()) for c in (channels, 8, 8)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, outputs)).eval()


def trained(made):
    """Weights that are not those of an initialization."""
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
    return made


@pytest.mark.parametrize(
    ("given", "mean", "std", "crop"),
    [
        (anytime.Preprocessing(3, (32, 32), (0.1,) * 3, (0.2,) * 3, crop=0.9), 0.1, 0.2, 0.9),
        ({"mean": [0.5] * 3, "std": [0.25] * 3}, 0.5, 0.25, 1.0),
        ({"mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 0.875, "interpolation": "bicubic"}, 0.5, 0.25, 0.875),
        (torchvision.models.ResNet18_Weights.DEFAULT.transforms(), 0.485, 0.229, 224 / 256),
        (ViTImageProcessor(image_mean=[0.4] * 3, image_std=[0.3] * 3), 0.4, 0.3, 1.0),
    ],
)
def test_mean_and_deviation_are_those_given(given, mean, std, crop):
    found = anytime.convert(model(), IMAGE, exits=2, preprocessing=given).preprocessing
    assert (found.mean[0], found.std[0], found.crop, found.size) == (mean, std, crop, (32, 32))


def test_timm_says_itself_what_its_weights_expect():
    made = timm.create_model("resnet10t", num_classes=10)
    found = anytime.convert(made, torch.zeros(1, 3, 64, 64), exits=2).preprocessing
    assert (found.mean, found.std) == (tuple(made.pretrained_cfg["mean"]), tuple(made.pretrained_cfg["std"]))
    assert anytime.convert(timm.create_model("resnet10t", in_chans=1), torch.zeros(1, 1, 64, 64)).preprocessing is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mean": [0.5] * 3}, "no mean and std"),
        ("imagenet", "no mean and std"),
        ({"mean": [0.5], "std": [0.5]}, "one entry for each channel: 3"),
    ],
)
def test_what_is_no_normalization_is_refused(given, says):
    with pytest.raises(anytime.AnytimeError, match=says):
        anytime.convert(model(), IMAGE, exits=2, preprocessing=given)


def test_a_training_normalizes_images_as_the_model_expects():
    given = {"mean": [0.25], "std": [0.75]}
    net = anytime.convert(trained(model(channels=1)), torch.zeros(1, 1, 8, 8), exits=2, preprocessing=given).freeze()
    data = anytime.load_data("digits").subset(40)
    anytime.fit(net, data, epochs=1, least_steps=0, show=False)
    assert (net.preprocessing.mean, net.preprocessing.std) == ((0.25,), (0.75,))
    assert net.preprocessing.classes == tuple(data.classes)


def loader(classes=4):
    images, labels = torch.randn(48, 3, 16, 16), torch.randint(classes, (48,))
    return DataLoader(TensorDataset(images + labels[:, None, None, None], labels), batch_size=16)


def test_a_classifier_for_new_classes_is_trained_and_nothing_else_of_the_model():
    net = anytime.convert(trained(model(4)), IMAGE[..., :16, :16], exits=2).freeze(train=["5"])
    before = {name: value.clone() for name, value in net.model.state_dict().items()}
    result = anytime.fit(net, loader(), epochs=2, show=False)
    changed = {name for name, value in net.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"5.weight", "5.bias"}
    assert all(result.history[-1]["weights"])
    with pytest.raises(anytime.AnytimeError, match="list of the model's modules"):
        net.freeze(train=["fc"])


def test_dropout_of_what_is_trained_is_active():
    made = nn.Sequential(*trained(model(4))[:-1], nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4))).eval()
    net = anytime.convert(made, IMAGE, exits=2).freeze(train=["5"]).train()
    assert [name for name, module in net.model.named_modules() if module.training] == ["5", "5.0", "5.1"]


def test_frozen_layers_that_are_still_random_are_named():
    made = nn.Sequential(trained(model(20))[:-1], nn.BatchNorm1d(8), nn.Linear(8, 20)).eval()
    net = anytime.convert(made, IMAGE, exits=["0"])
    with pytest.warns(UserWarning, match=r"initial, random weights: 1, 2\. .*train=\['2'\]"):
        net.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.freeze(train=["1", "2"])
        anytime.convert(trained(model()), IMAGE, exits=2).freeze()


def test_the_backbone_moves_by_its_share_of_the_learning_rate():
    """One step of SGD without momentum: the change is the learning rate times the gradient."""
    moved = {}
    for share in (1.0, 0.1, 0.0):
        net = anytime.convert(trained(model(4)), IMAGE[..., :16, :16], exits=2, head="linear").train()
        before = {name: value.clone() for name, value in net.named_parameters()}
        options = {"momentum": 0, "weight_decay": 0, "lr": 0.01, "schedule": "linear"}
        torch.manual_seed(1)
        anytime.fit(net, [next(iter(loader()))], "const", epochs=1, backbone=share, show=False, **options)
        moved[share] = {name: value - before[name] for name, value in net.named_parameters()}
    for name, change in moved[1.0].items():
        share = 1.0 if name.startswith("heads.") else 0.1
        assert torch.allclose(moved[0.1][name], share * change, atol=1e-6)
        assert name.startswith("heads.") or not moved[0.0][name].any()


def classifying(last):
    """A model with batch norm whose classifier is the last module."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(c, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for c in (3, 8, 8)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()


class Doubled(nn.Module):
    """A model whose classifier does not return its logits."""

    def __init__(self, in_place=False):
        super().__init__()
        self.inner, self.in_place = classifying(nn.Linear(8, 4)), in_place

    def forward(self, x):
        logits = self.inner(x)
        return logits.mul_(2) if self.in_place else 2 * logits


def seen_by_the_first_stage(net, **options):
    """How many samples go through it in a training of three epochs, on 48 samples."""
    samples = []
    hook = net.stages[0].register_forward_hook(lambda _stage, given, _state: samples.append(len(given[0])))
    result = anytime.fit(net, loader(), epochs=3, show=False, **options)
    hook.remove()
    return sum(samples), result


@pytest.mark.parametrize("last", [nn.Linear(8, 4), nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 4))])
def test_a_new_classifier_is_trained_on_features_that_are_computed_once(last):
    net = anytime.convert(trained(classifying(last)), IMAGE[..., :16, :16], exits=2).freeze(train=["5"])
    x = torch.randn(7, 3, 16, 16)
    for one, other in zip(net.eval().answers(net.features(x)), net(x), strict=True):
        assert torch.equal(one, other)
    samples, result = seen_by_the_first_stage(net, least_steps=60)
    assert samples == 48
    first, *_, last = (record["train"]["losses"][-1] for record in result.history)
    assert last < first


def test_a_part_that_the_features_depend_on_is_trained_with_the_whole_model():
    for made, names in (
        (classifying(nn.Linear(8, 4)), ["2", "5"]),
        (classifying(nn.Linear(8, 4)), ["2"]),
        (Doubled().eval(), ["inner.5"]),
        (Doubled(in_place=True).eval(), ["inner.5"]),
    ):
        net = anytime.convert(made, IMAGE[..., :16, :16], exits=2).freeze(train=names)
        assert not net.keeps_features
        anytime.fit(net, loader(), epochs=1, show=False)


def test_fine_tuning_trains_everything_and_leaves_the_statistics():
    net = anytime.convert(trained(classifying(nn.Linear(8, 4))), IMAGE[..., :16, :16], exits=2).freeze()
    before = {name: value.clone() for name, value in net.model.state_dict().items()}
    result = anytime.fit(net.unfreeze(), loader(), epochs=2, show=False)
    same = {name for name, value in net.model.state_dict().items() if torch.equal(value, before[name])}
    assert same == {name for name in before if "running" in name or "num_batches" in name}
    assert result.history[-1]["lr"] < result.history[0]["lr"] <= RECIPES["finetuning"].lr
    assert not net.freeze().unfreeze().keeps_features
    assert net.freeze().keeps_features
