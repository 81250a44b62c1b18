"""A text encoder trained at every exit: how often the right text is the nearest of 500, by exit and loss.

python benchmarks/text_encoder.py [SEEDS] [--json]       # a minute or two for each seed and loss

A BERT of four blocks and 64 features learns from nothing; no pretrained text model was at hand. Its text is what
installed packages ship, the docstrings of torch, numpy, matplotlib and transformers: given the first sentence of one,
find the rest of it. The losses are MultipleNegativesRankingLoss at all exits, weighed by AdaLoss; at the last exit
alone; and within AdaptiveLayerLoss of Sentence Transformers with its defaults.
"""

import ast
import importlib.util
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from ratio import fact, machine

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import public  # pyright: ignore[reportMissingImports]

LIBRARIES = ["torch", "numpy", "matplotlib", "transformers"]
PAIRS, TEST, WORDS, LENGTH, BLOCKS = 6000, 500, 4000, 24, 4


def pairs() -> list[tuple[str, str]]:
    """First sentences of docstrings, each with what follows it."""
    found: dict[str, str] = {}
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        assert spec, library
        assert spec.origin, library
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    first, _, rest = (ast.get_docstring(node) or "").partition(". ")
                    first, rest = (" ".join(re.findall(r"[a-z]+|[0-9]+", text.lower())) for text in (first, rest))
                    if len(first.split()) >= 4 and len(rest.split()) >= 6:
                        found.setdefault(first, rest)
    rests = Counter(found.values())
    chosen = [(first, rest) for first, rest in found.items() if rests[rest] == 1]
    random.Random(0).shuffle(chosen)
    return chosen[: PAIRS + TEST]


def encoder(texts: list[tuple[str, str]], folder: str) -> Any:
    """A BERT with random weights, and the words of these texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModel, BertConfig, PreTrainedTokenizerFast

    counts = Counter(word for pair in texts for text in pair for word in text.split())
    words = ["[PAD]", "[UNK]", *(word for word, _ in counts.most_common(WORDS - 2))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    made.save_pretrained(folder)
    sizes: Any = {"num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(vocab_size=WORDS, hidden_size=64, max_position_embeddings=LENGTH, **sizes)
    AutoModel.from_config(config).save_pretrained(folder)
    modules = [Transformer(folder, max_seq_length=LENGTH), Pooling(64, "mean"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def train(name: str, seed: int, texts: list[tuple[str, str]]) -> list[float]:
    """The share of test texts that are found, by exit."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, MultipleNegativesRankingLoss

    from anytime.integrations.sentence_transformers import AnytimeEncoder, AnytimeLoss

    torch.manual_seed(seed)
    known, unknown = texts[TEST:], texts[:TEST]
    with tempfile.TemporaryDirectory() as folder:
        model = encoder(known, folder)
        made = AnytimeEncoder(model, exits=BLOCKS)
        inner = MultipleNegativesRankingLoss(model)
        loss = AdaptiveLayerLoss(model, inner) if name == "adaptive_layer" else AnytimeLoss(made, inner, name)
        arguments: Any = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=4, per_device_train_batch_size=64, learning_rate=1e-3, warmup_steps=40, seed=seed,
            report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        rows = Dataset.from_dict({"first": [a for a, _ in known], "rest": [b for _, b in known]})
        start = time.perf_counter()
        SentenceTransformerTrainer(model, arguments, rows, loss=loss).train()
        fact(f"{name}_seed{seed}_seconds", time.perf_counter() - start, "s")
    found = []
    for exit in range(1, BLOCKS + 1):
        asked, given = (
            made.encode(list(side), exits=exit, convert_to_tensor=True) for side in zip(*unknown, strict=True)
        )
        found.append(((asked @ given.T).argmax(1) == torch.arange(TEST)).double().mean().item())
    return found


def main(seeds: int) -> None:
    print(machine())
    public.repair_torchvision()
    texts = pairs()
    fact("pairs", len(texts) - TEST)
    for name in ("adaloss", f"opt-{BLOCKS}", "adaptive_layer"):
        for seed in range(seeds):
            for exit, share in enumerate(train(name, seed, texts), start=1):
                fact(f"{name}_seed{seed}_found_{exit}", share)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
