"""Which library does a sentence of documentation come from? A small DistilBERT, from a config, with exits.

pip install -e ".[examples]"
python examples/text_classification.py           # about a minute on one core

The text is what installed packages ship: docstrings of torch, numpy, matplotlib and transformers, cut into sentences.
Words alone tell most of these sentences apart, so all exits err alike (29 % of 800 sentences with either scheme): two
thirds of this network are not needed. `convert_text.py` goes on from here, with sentences that leave early.
"""

import random
import sys
from collections import Counter

import torch
from convert_text import LENGTH, LIBRARIES, encode, sentences
from side_by_side import arguments, compare
from torch.utils.data import DataLoader

import anytime
from anytime.errors import AnytimeError, require
from anytime.losses import cross_entropy
from anytime.metrics import error

WORDS = 2000


def collate(some: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """As Hugging Face's collators do: columns of tensors, the labels among them."""
    return {name: torch.stack([each[name] for each in some]) for name in some[0]}


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=3, samples=3200)
    held_out = min(800, asked.samples)
    each = (asked.samples + held_out) // len(LIBRARIES)
    found = [(words, label) for label, name in enumerate(LIBRARIES) for words in sentences(name, each)]
    random.Random(0).shuffle(found)
    counts = Counter(word for words, _ in found[held_out:] for word in words)
    vocabulary = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    columns = {**encode([words for words, _ in found], vocabulary), "labels": torch.tensor([n for _, n in found])}
    rows = [{name: column[i] for name, column in columns.items()} for i in range(len(found))]
    test = DataLoader(rows[:held_out], batch_size=200, collate_fn=collate)  # type: ignore[arg-type]
    train = DataLoader(rows[held_out:], batch_size=32, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    distilbert = require("transformers.models.distilbert.modeling_distilbert", "examples")
    config = distilbert.DistilBertConfig(
        vocab_size=WORDS, dim=64, n_layers=6, n_heads=4, hidden_dim=128, num_labels=4, max_position_embeddings=LENGTH
    )

    def build() -> anytime.AnytimeNetwork:
        example = {name: column[:2] for name, column in columns.items() if name != "labels"}
        return anytime.convert(distilbert.DistilBertForSequenceClassification(config), example, exits=3)

    recipe = {"optimizer": "adamw", "lr": 0.001, "schedule": "linear", "warmup": 0.1, "clip": 1.0}
    return compare(build, train, test, {"error": error}, asked, loss=cross_entropy, **recipe)


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
