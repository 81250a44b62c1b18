"""Models of public libraries, small enough to build here: what conversion is tried on."""

import contextlib
import io

import public
import torch


def image(size=32, channels=3):
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))


def text(length=12):
    ids = torch.randint(1, 90, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0  # padding
    return {"input_ids": ids, "attention_mask": mask}


SMALL = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
WORDS = {"vocab_size": 100, "max_position_embeddings": 64, "pad_token_id": 0}
PICTURE = {"image_size": 32, "patch_size": 8}

TRANSFORMERS = {
    # name of the config, what differs, the class, the input
    "ViT": ("ViTConfig", SMALL | PICTURE, "ViTForImageClassification", image),
    "DeiT": ("DeiTConfig", SMALL | PICTURE, "DeiTForImageClassification", image),
    "BEiT": ("BeitConfig", SMALL | PICTURE, "BeitForImageClassification", image),
    "DINOv2": ("Dinov2Config", SMALL | PICTURE, "Dinov2ForImageClassification", image),
    "Swin": (
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2, 2],
            "num_heads": [2, 2, 4],
            "window_size": 4,
        },
        "SwinForImageClassification",
        image,
    ),
    "ConvNeXt": (
        "ConvNextConfig",
        {"hidden_sizes": [16, 32, 32, 64], "depths": [2, 2, 2, 2], "patch_size": 2},
        "ConvNextForImageClassification",
        image,
    ),
    "ResNet": (
        "ResNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [2, 2, 2, 2], "layer_type": "basic"},
        "ResNetForImageClassification",
        image,
    ),
    "RegNet": (
        "RegNetConfig",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 2, 2, 1], "groups_width": 16},
        "RegNetForImageClassification",
        image,
    ),
    "MobileNetV1": ("MobileNetV1Config", {"depth_multiplier": 0.25}, "MobileNetV1ForImageClassification", image),
    "MobileNetV2": ("MobileNetV2Config", {"depth_multiplier": 0.35}, "MobileNetV2ForImageClassification", image),
    "EfficientNet": (
        "EfficientNetConfig",
        {"width_coefficient": 0.3, "depth_coefficient": 0.3, "hidden_dim": 384},
        "EfficientNetForImageClassification",
        image,
    ),
    "PoolFormer": (
        "PoolFormerConfig",
        {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 2, 1]},
        "PoolFormerForImageClassification",
        image,
    ),
    "BERT": ("BertConfig", SMALL | WORDS, "BertForSequenceClassification", text),
    "DistilBERT": (
        "DistilBertConfig",
        {"n_layers": 4, "dim": 32, "n_heads": 2, "hidden_dim": 64} | WORDS,
        "DistilBertForSequenceClassification",
        text,
    ),
    "RoBERTa": ("RobertaConfig", SMALL | WORDS, "RobertaForSequenceClassification", text),
    "ALBERT": ("AlbertConfig", SMALL | WORDS | {"embedding_size": 16}, "AlbertForSequenceClassification", text),
    "ELECTRA": ("ElectraConfig", SMALL | WORDS | {"embedding_size": 16}, "ElectraForSequenceClassification", text),
    "MPNet": ("MPNetConfig", SMALL | WORDS, "MPNetForSequenceClassification", text),
    "GPT-2": (
        "GPT2Config",
        {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64, "pad_token_id": 0},
        "GPT2ForSequenceClassification",
        text,
    ),
    "Llama": (
        "LlamaConfig",
        SMALL | WORDS | {"num_key_value_heads": 2},
        "LlamaForSequenceClassification",
        text,
    ),
}

TIMM = {
    "resnet18": 32,
    "resnet26d": 32,
    "resnetv2_50": 32,
    "densenet121": 32,
    "vit_tiny_patch16_224": 224,
    "deit3_small_patch16_224": 224,
    "convnext_atto": 32,
    "efficientnet_b0": 32,
    "mobilenetv3_small_100": 32,
    "regnety_002": 32,
    "swin_tiny_patch4_window7_224": 224,
    "mixer_s32_224": 224,
    "inception_v3": 96,
    "xception41": 64,
    "hrnet_w18_small": 64,
    "vgg11_bn": 32,
    "ghostnet_050": 32,
    "coat_lite_tiny": 224,
    "maxvit_nano_rw_256": 256,
    "edgenext_xx_small": 64,
}

TORCHVISION = {
    "resnet18": 64,
    "densenet121": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "efficientnet_b0": 64,
    "googlenet": 64,
    "squeezenet1_1": 64,
    "shufflenet_v2_x0_5": 64,
    "mnasnet0_5": 64,
    "regnet_y_400mf": 64,
    "vit_b_16": 224,
    "swin_t": 64,
    "convnext_tiny": 64,
    "alexnet": 64,
}


def build(library, name, num_classes=10):
    """A model in eval mode, and an input of two samples."""
    torch.manual_seed(0)
    timm = public.timm()
    with contextlib.redirect_stderr(io.StringIO()):
        if library == "timm":
            model, example = timm.create_model(name, num_classes=num_classes), image(TIMM[name])
        elif library == "torchvision":
            import torchvision

            options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
            model = getattr(torchvision.models, name)(num_classes=num_classes, **options)
            example = image(TORCHVISION[name])
        else:
            import transformers

            config, options, kind, example = TRANSFORMERS[name]
            config = getattr(transformers, config)(num_labels=num_classes, **options)
            model, example = getattr(transformers, kind)(config), example()
    return model.eval(), example
