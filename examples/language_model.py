"""A small GPT-2, from a config, that predicts the next character of English text, with exits after its first blocks.

pip install -e ".[examples]"
python examples/language_model.py                # two and a half minutes on one core

The text ships with Python: the topics of its `help()` (pydoc_data), half a million characters. What is measured is the
loss of each character given those before it. Per-token early exit while generating, which needs a key-value cache that
is filled for tokens that left early, is not part of this.
"""

import sys
from pydoc_data import topics

import torch
from side_by_side import arguments, compare
from torch.utils.data import DataLoader

import anytime
from anytime.errors import AnytimeError, require
from anytime.losses import next_token
from anytime.metrics import next_token_error

LENGTH = 64


def rows() -> tuple[torch.Tensor, int]:
    """The text as rows of numbers of characters, and how many characters there are."""
    text = "".join(topics.topics[name] for name in sorted(topics.topics))
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    whole = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)
    return whole[torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))], len(alphabet)


def collate(some: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """As Hugging Face's collators for language models do: the labels are the inputs."""
    ids = torch.stack(some)
    return {"input_ids": ids, "labels": ids}


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=4, samples=4000)
    text, characters = rows()
    held_out = min(500, asked.samples)
    test = DataLoader(text[:held_out], batch_size=100, collate_fn=collate)
    train = DataLoader(text[held_out : held_out + asked.samples], batch_size=16, shuffle=True, collate_fn=collate)
    gpt2 = require("transformers.models.gpt2.modeling_gpt2", "examples")
    config = require("transformers.models.gpt2.configuration_gpt2", "examples").GPT2Config(
        vocab_size=characters, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4, use_cache=False
    )

    def build() -> anytime.AnytimeNetwork:
        example = {"input_ids": text[:2]}
        return anytime.convert(gpt2.GPT2LMHeadModel(config), example, exits=["transformer.h.0", "transformer.h.1"])

    measures = {"nats per character": next_token, "share of wrong characters": next_token_error}
    recipe = {"optimizer": "adamw", "lr": 0.003, "schedule": "linear", "warmup": 0.05, "clip": 1.0}
    return compare(build, train, test, measures, asked, loss=next_token, **recipe)


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
