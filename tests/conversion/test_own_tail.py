"""``head="own"``: exit k answers what the model with its blocks cut to k answers, bit for bit."""

import copy

import public
import pytest
import torch
from torch import nn

import anytime
from anytime.weights.trained import trained_exits

BLOCKS = 4
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
PADDED = {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3])}

TEXT = {"vocab_size": 50, "num_labels": 3}
WIDE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
PICTURE = {"image_size": 32, "patch_size": 8, "num_labels": 3}
NARROW = {"embed_dim": 32, "num_heads": 2, "img_size": 32, "num_classes": 3}
MIXER = {"embed_dim": 16, "img_size": 32, "patch_size": 8, "num_classes": 3}

TRANSFORMERS = {
    "Bert": ("ForSequenceClassification", "num_hidden_layers", {**TEXT, **WIDE}, PADDED),
    "Roberta": ("ForSequenceClassification", "num_hidden_layers", {**TEXT, **WIDE}, PADDED),
    "Electra": ("ForSequenceClassification", "num_hidden_layers", {**TEXT, **WIDE, "embedding_size": 16}, PADDED),
    "Albert": ("ForSequenceClassification", "num_hidden_layers", {**TEXT, **WIDE, "embedding_size": 8}, PADDED),
    "DistilBert": (
        "ForSequenceClassification",
        "n_layers",
        {**TEXT, "dim": 16, "n_heads": 2, "hidden_dim": 32},
        PADDED,
    ),
    "MPNet": ("ForSequenceClassification", "num_hidden_layers", {**TEXT, **WIDE}, PADDED),
    "GPT2": ("LMHeadModel", "n_layer", {"vocab_size": 50, "n_embd": 16, "n_head": 2, "n_positions": 16}, PADDED),
    "OPT": (
        "ForCausalLM",
        "num_hidden_layers",
        {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "ffn_dim": 32, "word_embed_proj_dim": 16},
        PADDED,
    ),
    "GPTNeoX": ("ForCausalLM", "num_hidden_layers", {"vocab_size": 50, **WIDE}, PADDED),
    "Llama": ("ForCausalLM", "num_hidden_layers", {"vocab_size": 50, **WIDE, "num_key_value_heads": 2}, PADDED),
    "ViT": ("ForImageClassification", "num_hidden_layers", {**PICTURE, **WIDE}, IMAGE),
    "DeiT": ("ForImageClassification", "num_hidden_layers", {**PICTURE, **WIDE}, IMAGE),
    "Dinov2": ("ForImageClassification", "num_hidden_layers", {**PICTURE, **WIDE}, IMAGE),
}
MIXERS = {"ResBlock": {"mlp_ratio": 4}, "SpatialGatingBlock": {"mlp_ratio": 6}}
TIMM = {
    "vit_tiny_patch16_224": ("depth", {**NARROW, "patch_size": 8}),
    "deit3_small_patch16_224": ("depth", {**NARROW, "patch_size": 8}),
    "beit_base_patch16_224": ("depth", {**NARROW, "patch_size": 8}),
    "eva02_tiny_patch14_224": ("depth", {**NARROW, "patch_size": 8}),
    "MixerBlock": ("num_blocks", MIXER),
    "ResBlock": ("num_blocks", MIXER),
    "SpatialGatingBlock": ("num_blocks", MIXER),
}
"""Models by their names; mixers, ResMLPs and gMLPs, whose sizes the models fix, by their kind of block."""


def build(library, name, blocks):
    """A public architecture with so many blocks, and an input of two samples."""
    torch.manual_seed(0)
    if library == "timm":
        count, options = TIMM[name]
        if options is MIXER:
            public.timm()
            from timm.layers import GatedMlp
            from timm.models import mlp_mixer

            gated = {"mlp_layer": GatedMlp} if name == "SpatialGatingBlock" else {}
            kind = {"num_blocks": blocks, "block_layer": vars(mlp_mixer)[name], **MIXERS.get(name, {}), **gated}
            return mlp_mixer.MlpMixer(**options, **kind).eval(), IMAGE
        return public.timm().create_model(name, **options, **{count: blocks}).eval(), IMAGE
    import transformers

    kind, count, options, example = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(**options, **{count: blocks})
    return getattr(transformers, f"{name}{kind}")(config).eval(), example


def blocks_before(net, exit):
    """How many blocks have run at an exit."""
    name, call = net._places[exit]
    several = sum(place[0] == name for place in net._places) > 1
    return call + 1 if several or "albert" in name else next(int(p) for p in name.split(".") if p.isdigit()) + 1


@pytest.mark.parametrize(
    ("library", "name"), [*(("transformers", n) for n in TRANSFORMERS), *(("timm", n) for n in TIMM)]
)
def test_an_exit_is_the_model_with_fewer_blocks(library, name):
    model, x = build(library, name, BLOCKS)
    for parameter in model.parameters():  # some heads start with zeros
        parameter.data += 0.02 * torch.randn_like(parameter)
    net = anytime.convert(model, x, exits=3, head="own").eval()
    assert net.paused_because is None
    counts = [blocks_before(net, exit) for exit in range(2)]
    assert counts == sorted(set(counts))
    with torch.no_grad():
        answers = net(x)
        assert torch.equal(answers[-1], net.trunk(x))
        for count, answer in zip(counts, answers, strict=False):
            cut = build(library, name, count)[0]
            state = model.state_dict()
            cut.load_state_dict({key: state[key] for key in cut.state_dict()})
            own = cut(**x) if isinstance(x, dict) else cut(x)
            assert torch.equal(answer, own if isinstance(own, torch.Tensor) else own.logits)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(BLOCKS))
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(self.norm(x))


class Residual(nn.Module):
    """A block that adds its input itself."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.fc(x).tanh()


def residual():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *(Residual() for _ in range(BLOCKS)), nn.LayerNorm(8), nn.Linear(8, 3)).eval()


def test_the_parameters_are_the_models_own_and_are_trained_with_it():
    model, x = residual(), torch.randn(4, 6)
    net = anytime.convert(model, x, exits=["1", "2"], head="own").train()
    assert [id(p) for p in net.parameters()] == [id(p) for p in model.parameters()]
    assert trained_exits(net) == [True] * 3
    net(x)[0].sum().backward()
    assert model[-1].weight.grad is not None
    assert model[4].fc.weight.grad is None, "blocks after the exit have no part in it"
    frozen = net.freeze(train=[str(len(model) - 1)])
    assert trained_exits(frozen) == [True] * 3
    assert anytime.costs(net, x[:1]).macs[0] < anytime.costs(net, x[:1]).macs[-1]


def test_copies_and_batches_of_other_sizes_answer_the_same():
    model, x = residual(), torch.randn(5, 6)
    net = anytime.convert(model, x[:1], exits=["1", "3"], head="own").eval()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for exit, answer in enumerate(net(x)):
            assert torch.equal(answer, twin(x)[exit])
            assert anytime.predict(net, x, exits=exit + 1).logits.equal(answer)
    walk = net.walk(x)
    next(walk)
    assert walk.send(torch.tensor([0, 3]))().shape == (2, 3)


def test_where_the_tail_does_not_fit_is_said():
    with pytest.raises(anytime.AnytimeError, match=r"takes the features of its last block only; use head='mlp'"):
        anytime.convert(Blocks(), torch.randn(2, 6), exits=2, head="own")
