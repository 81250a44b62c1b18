"""Exits answer in the form of the model's own output, if asked to."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import anytime

IDS = torch.randint(1, 40, (3, 7), generator=torch.Generator().manual_seed(0))
SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
MODELS = {
    "BertForSequenceClassification": ({**SMALL, "vocab_size": 40, "num_labels": 3}, torch.tensor([0, 1, 2])),
    "BertForTokenClassification": ({**SMALL, "vocab_size": 40, "num_labels": 5}, IDS % 5),
    "BertForMaskedLM": ({**SMALL, "vocab_size": 40}, torch.where(IDS % 3 == 0, IDS, -100)),
    "GPT2LMHeadModel": ({"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 40}, IDS),
    "ViTForImageClassification": ({**SMALL, "image_size": 16, "num_labels": 3}, torch.tensor([0, 1, 2])),
}
SLOW = ("BertForTokenClassification", "BertForMaskedLM")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS]
)
def test_the_last_exit_returns_what_the_model_returns(name):
    transformers = pytest.importorskip("transformers")
    options, labels = MODELS[name]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**options)).eval()
    images = name.startswith("ViT")
    inputs = {"pixel_values": torch.randn(3, 3, 16, 16)} if images else {"input_ids": IDS}
    net = anytime.convert(model, inputs, exits=2).eval()
    batch = {**inputs, "labels": labels}
    own = model(**batch)
    first, last = net.outputs(batch)
    assert type(first) is type(last) is type(own)
    assert torch.equal(last.logits, own.logits)
    assert torch.allclose(last.loss, own.loss)
    assert torch.allclose(net.outputs(inputs, labels, only=[0])[0].loss, first.loss)
    assert net.outputs(inputs)[0].loss is None
    first.loss.backward()
    assert torch.equal(net(inputs)[0], first["logits"])  # plain logits, as ever


Pair = namedtuple("Pair", ["logits", "aux"])


@pytest.mark.parametrize(
    "form",
    [lambda y: y, lambda y: {"out": y}, lambda y: (y,), lambda y: Pair(y, y + 1)],
    ids=["tensor", "dict", "tuple", "namedtuple"],
)
def test_other_forms_are_kept(form):
    class Model(nn.Sequential):
        def forward(self, x):
            return form(super().forward(x))

    model = Model(*(nn.Linear(8, 8) for _ in range(4)))
    x = torch.randn(3, 8)
    net = anytime.convert(model, x, exits=2).eval()
    outputs = net.outputs(x)
    assert {type(output) for output in outputs} == {type(model(x))}
    logits = outputs[0]["out"] if isinstance(outputs[0], dict) else outputs[0]
    logits = logits[0] if isinstance(logits, tuple) else logits
    assert torch.equal(logits, net(x)[0])
    with pytest.raises(anytime.AnytimeError, match=r"no loss that is known here.*anytime.losses"):
        net.outputs(x, torch.zeros(3, dtype=torch.long))
