"""Convert a DistilBERT and train its exits on real English: which library does a sentence of documentation come from?

pip install -e ".[data,examples,plot]"
python examples/convert_text.py                  # about five minutes on one core
python examples/convert_text.py --scheme const

The text is what installed packages ship: docstrings of torch, numpy, matplotlib, transformers, cut into sentences.
"""

import argparse
import ast
import importlib.util
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import anytime
from anytime.errors import AnytimeError, require
from anytime.evaluation import collect

LIBRARIES = ["torch", "numpy", "matplotlib", "transformers"]
LENGTH, WORDS = 24, 4000


def sentences(library: str, most: int) -> list[list[str]]:
    """Different sentences of at least six words from a package's docstrings; its own name is left out."""
    found: dict[str, None] = {}
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", ast.get_docstring(node) or ""):
                    words = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", sentence.lower())
                    words = [word for word in words if word not in (library, "np", "plt", "hf", "mpl")]
                    if sum(word.isalpha() for word in words) >= 6:
                        found[" ".join(words)] = None
    chosen = random.Random(0).sample(list(found), min(most, len(found)))
    return [sentence.split() for sentence in chosen]


def encode(rows: list[list[str]], vocabulary: dict[str, int]) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for i, words in enumerate(rows):
        numbers = [vocabulary.get(word, 1) for word in words[:LENGTH]]
        ids[i, : len(numbers)] = torch.tensor(numbers)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def batches(texts: dict[str, torch.Tensor], labels: torch.Tensor, order: torch.Tensor, size: int = 64):
    for rows in order.split(size):
        yield {name: tensor[rows] for name, tensor in texts.items()}, labels[rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", default="adaloss")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=4000, help="of each library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    asked = parser.parse_args()
    said = sys.stderr if asked.json else sys.stdout
    torch.manual_seed(asked.seed)
    distilbert = require("transformers.models.distilbert.modeling_distilbert", "examples")

    rows = [(words, label) for label, name in enumerate(LIBRARIES) for words in sentences(name, asked.sentences)]
    random.Random(0).shuffle(rows)
    held_out = len(rows) // 5
    counts = Counter(word for words, _ in rows[2 * held_out :] for word in words)
    vocabulary = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    texts, labels = encode([words for words, _ in rows], vocabulary), torch.tensor([label for _, label in rows])
    everything = torch.arange(len(rows))
    test, validation, train = everything[:held_out], everything[held_out : 2 * held_out], everything[2 * held_out :]
    print(f"{len(train)} sentences to train on, {len(validation)} for thresholds, {len(test)} to test", file=said)

    config = distilbert.DistilBertConfig(
        vocab_size=WORDS, dim=96, n_layers=6, n_heads=4, hidden_dim=192, num_labels=4, max_position_embeddings=LENGTH
    )  # fmt: skip
    model = distilbert.DistilBertForSequenceClassification(config)
    net = anytime.convert(model, {name: tensor[:2] for name, tensor in texts.items()}, exits=6).train()
    balance = anytime.create_scheme(asked.scheme, net.exits)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(asked.epochs):
        order = train[torch.randperm(len(train))]
        for x, y in batches(texts, labels, order):
            losses = torch.stack([cross_entropy(logits, y) for logits in net(x)])
            optimizer.zero_grad()
            balance(losses).backward()
            optimizer.step()
        print(
            f"epoch {epoch + 1}: training losses {[round(loss, 2) for loss in losses.tolist()]}", file=said, flush=True
        )

    net.eval()
    outputs = collect(net, batches(texts, labels, test, 500))
    cost = anytime.costs(net, {name: tensor[:1] for name, tensor in texts.items()})
    errors = outputs.wrong.double().mean(1).tolist()
    policy = anytime.calibrate(net, batches(texts, labels, validation, 500), budget=0.5)
    answers = [policy.predict(net, x) for x, _ in batches(texts, labels, test, 256)]
    exits = torch.cat([answer.exits for answer in answers])
    wrong = (torch.cat([answer.logits for answer in answers]).argmax(-1) != labels[test]).double().mean().item()
    shares = (exits.bincount(minlength=6) / len(exits)).tolist()
    early = {"error": wrong, "fraction": policy.cost(exits) / policy.costs[-1], "shares": shares}
    if asked.json:
        sizes = {"train": len(train), "validation": len(validation), "test": len(test)}
        facts = {"places": net.places, "fractions": cost.fractions, "errors": errors, "early_exit": early}
        print(json.dumps({**sizes, **facts}))
        return
    for place, error, share in zip(net.places, errors, cost.fractions, strict=True):
        print(f"{place:36} {share:6.1%} of the cost  {error:.2%} error")
    print(f"easy sentences leave early: {early['error']:.2%} error at {early['fraction']:.1%} of the cost")
    print("left at exit 1, 2, …:", [f"{share:.0%}" for share in shares])


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
