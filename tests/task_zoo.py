"""Public models of several tasks, small enough to build here, other ones than in ``zoo``: each with its task."""

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import public
import torch
from zoo import PICTURE, SMALL, WORDS, image, text

from anytime import losses

CLASSES = 5
HEADS = {"num_key_value_heads": 2}


@dataclass
class Entry:
    library: str
    name: str
    """A class of transformers, or a name that timm or torchvision knows."""
    task: str
    options: dict[str, Any]
    size: int = 32


def hf(name, task, size=32, **options):
    return Entry("transformers", name, task, options, size)


def tokens(name, task="tokens", **options):
    return hf(name, task, **(SMALL | WORDS | options))


STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
ENTRIES = [
    tokens("BertForTokenClassification"),
    tokens("RobertaForTokenClassification"),
    tokens("ElectraForTokenClassification", embedding_size=16),
    tokens("AlbertForTokenClassification", embedding_size=16),
    tokens("MPNetForTokenClassification"),
    tokens("CamembertForTokenClassification"),
    tokens("DebertaV2ForTokenClassification", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    tokens("RoFormerForTokenClassification", embedding_size=32),
    tokens("ConvBertForTokenClassification", embedding_size=32, head_ratio=1),
    tokens("LlamaForTokenClassification", **HEADS),
    hf("GPT2ForTokenClassification", "tokens", n_layer=4, n_embd=32, n_head=2, vocab_size=100, n_positions=64),
    hf("GPT2LMHeadModel", "language", n_layer=4, n_embd=32, n_head=2, vocab_size=100, n_positions=64),
    tokens("LlamaForCausalLM", "language", **HEADS),
    tokens("Qwen2ForCausalLM", "language", **HEADS),
    tokens("GPTNeoXForCausalLM", "language"),
    hf("OPTForCausalLM", "language", num_hidden_layers=4, hidden_size=32, num_attention_heads=2, ffn_dim=64,
       word_embed_proj_dim=32, **WORDS),
    hf("SegformerForSemanticSegmentation", "pixels", 64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
       num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=32),
    hf("MobileNetV2ForSemanticSegmentation", "pixels", 64, depth_multiplier=0.35),
    hf("MobileViTForSemanticSegmentation", "pixels", 64, hidden_sizes=[16, 24, 32],
       neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], image_size=64, num_attention_heads=2),
    hf("BeitForSemanticSegmentation", "pixels", 64, **(SMALL | PICTURE | {"image_size": 64}), out_indices=[1, 2, 3, 4],
       use_auxiliary_head=False, pool_scales=[1, 2]),
    hf("DPTForSemanticSegmentation", "pixels", 64, **(SMALL | PICTURE | {"image_size": 64}),
       neck_hidden_sizes=[8, 16, 16, 16], fusion_hidden_size=16, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False,
       use_auxiliary_head=False,
       readout_type="project", reassemble_factors=[4, 2, 1, 0.5]),
    Entry("torchvision", "fcn_resnet50", "pixels", {}, 64),
    Entry("torchvision", "deeplabv3_mobilenet_v3_large", "pixels", {}, 64),
    Entry("torchvision", "lraspp_mobilenet_v3_large", "pixels", {}, 64),
    hf("Swinv2ForImageClassification", "classes", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2, 2],
       num_heads=[2, 2, 4], window_size=4),
    hf("MobileViTForImageClassification", "classes", 64, hidden_sizes=[16, 24, 32],
       neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], image_size=64, num_attention_heads=2),
    hf("PvtV2ForImageClassification", "classes", 64, **STAGES, num_attention_heads=[1, 2, 2, 2], image_size=64),
    hf("FocalNetForImageClassification", "classes", 64, image_size=64, embed_dim=16, depths=[1, 1, 2, 1]),
    Entry("timm", "repvgg_a0", "classes", {}, 64),
    Entry("timm", "poolformerv2_s12", "classes", {}, 64),
    Entry("timm", "convmixer_768_32", "classes", {}, 64),
    Entry("torchvision", "resnext50_32x4d", "classes", {}, 64),
]  # fmt: skip


def build(entry):
    """A model, and a batch of its task: inputs and targets."""
    torch.manual_seed(0)
    timm = public.timm()
    with contextlib.redirect_stderr(io.StringIO()):
        if entry.library == "timm":
            model = timm.create_model(entry.name, num_classes=CLASSES)
        elif entry.library == "torchvision":
            import torchvision

            module = torchvision.models.segmentation if entry.task == "pixels" else torchvision.models
            options = {"weights_backbone": None} if entry.task == "pixels" else {}
            model = getattr(module, entry.name)(num_classes=CLASSES, **options, **entry.options)
        else:
            import transformers

            kind = getattr(transformers, entry.name)
            labels = {} if entry.task == "language" else {"num_labels": CLASSES}
            options = {"use_cache": False} if entry.task == "language" else {}
            model = kind(kind.config_class(**labels, **options, **entry.options))
    return model, *_batch(entry)


def _batch(entry):
    draw = torch.Generator().manual_seed(1)
    if entry.task in ("tokens", "language"):
        inputs = text()
        if entry.task == "language":
            return inputs, torch.where(inputs["attention_mask"] > 0, inputs["input_ids"], losses.IGNORED)
        targets = torch.randint(CLASSES, inputs["input_ids"].shape, generator=draw)
        return inputs, torch.where(inputs["attention_mask"] > 0, targets, losses.IGNORED)
    inputs = image(entry.size)
    shape = (2, entry.size, entry.size) if entry.task == "pixels" else (2,)
    return inputs, torch.randint(CLASSES, shape, generator=draw)


LOSSES = {
    "classes": losses.cross_entropy,
    "pixels": losses.pixel_cross_entropy,
    "tokens": losses.token_cross_entropy,
    "language": losses.next_token,
}
