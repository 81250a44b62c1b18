"""Sentence Transformers with exits: equal to the model with its blocks cut, and trained at every exit."""

import copy
import time

import numpy as np
import pytest
import torch

import anytime

sentence_transformers = pytest.importorskip("sentence_transformers")

from sentence_transformers import CrossEncoder, SentenceTransformer  # noqa: E402
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss  # noqa: E402
from sentence_transformers.sentence_transformer.losses import (  # noqa: E402
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from anytime.integrations.sentence_transformers import (  # noqa: E402
    AnytimeCrossEncoder,
    AnytimeEncoder,
    AnytimeLoss,
)

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["a", "the", "cat", "dog", "hat", "mat", "sat", "runs", "red", "blue", "slow", "big", "and", "in", "on"],
]
SENTENCES = ["the cat sat on the mat", "a dog", "a red hat and a blue hat and a big slow dog"]
WIDE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 32}
NARROW = {"dim": 16, "n_heads": 2, "hidden_dim": 32, "vocab_size": 32}
SPECIAL = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
BLOCKS = 3
MODELS = {
    "Bert": ("num_hidden_layers", "encoder.layer", WIDE, ["mean", Normalize]),
    "Roberta": ("num_hidden_layers", "encoder.layer", WIDE, ["cls"]),
    "MPNet": ("num_hidden_layers", "encoder.layer", WIDE, ["max", lambda: Dense(16, 8)]),
    "DistilBert": ("n_layers", "transformer.layer", NARROW, ["mean"]),
    "ModernBert": ("num_hidden_layers", "layers", {**WIDE, **SPECIAL}, ["mean", Normalize]),
    "Qwen3": (
        "num_hidden_layers",
        "layers",
        {**WIDE, "num_key_value_heads": 2, "head_dim": 8},
        ["lasttoken", Normalize],
    ),
}  # fmt: skip
"""Architectures of public encoders: the setting for the number of blocks, the list of blocks, sizes, what follows."""


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def encoder(name, blocks, tokenizer, folder):
    """A public architecture with so many blocks and random weights, as Sentence Transformers loads it."""
    import transformers

    count, _, sizes, (pooling, *more) = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**sizes, **{count: blocks})
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(16, pooling), *(make() for make in more)]
    return SentenceTransformer(modules=modules, device="cpu").eval()


@pytest.fixture
def bert(tokenizer, tmp_path):
    return encoder("Bert", BLOCKS, tokenizer, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_an_exits_embeddings_are_those_of_the_model_with_fewer_blocks(name, tokenizer, tmp_path):
    model = encoder(name, BLOCKS, tokenizer, tmp_path)
    whole = model.encode(SENTENCES)
    anytime_encoder = AnytimeEncoder(model, exits=BLOCKS)
    assert anytime_encoder.exits == BLOCKS
    for exit in range(1, BLOCKS + 1):
        cut = copy.deepcopy(model)
        parent, _, last = MODELS[name][1].rpartition(".")
        setattr(cut[0].model.get_submodule(parent), last, cut[0].model.get_submodule(MODELS[name][1])[:exit])
        found = anytime_encoder.encode(SENTENCES, exits=exit)
        assert np.array_equal(found, cut.encode(SENTENCES))
        assert np.array_equal(anytime_encoder.encode(SENTENCES[0], exits=exit), cut.encode(SENTENCES[0]))
    assert np.array_equal(found, whole)


def test_options_and_other_methods_are_the_models(bert):
    made = AnytimeEncoder(bert, exits=["0.model.encoder.layer.0"])
    assert made.exits == 2
    first = made.encode(SENTENCES, exits=1, convert_to_tensor=True)
    assert isinstance(first, torch.Tensor)
    assert not np.allclose(first, made.encode(SENTENCES))
    assert made.encode(SENTENCES[0], exits=1, truncate_dim=4).shape == (4,)
    assert np.array_equal(made.at(1).encode_query(SENTENCES), first.numpy())
    assert np.array_equal(made.encode(SENTENCES, batch_size=1, exits=2), bert.encode(SENTENCES, batch_size=1))
    for wrong in (0, 3, 1.5):
        with pytest.raises(anytime.AnytimeError, match="exits"):
            made.encode(SENTENCES, exits=wrong)
    with pytest.raises(anytime.AnytimeError, match="output_value"):
        made.encode(SENTENCES, exits=1, output_value=None)


def test_a_deadline_is_answered_by_one_exit(bert):
    made = AnytimeEncoder(bert, exits=BLOCKS)
    everything = [made.encode(SENTENCES, exits=exit, batch_size=10) for exit in range(1, BLOCKS + 1)]
    assert np.array_equal(made.encode(SENTENCES, deadline=600.0), everything[-1])
    assert np.array_equal(made.encode(SENTENCES, deadline=600.0, exits=1), everything[0])
    start = time.perf_counter()
    with pytest.raises(anytime.UnfinishedError):
        made.encode(SENTENCES, deadline=0.0)
    assert time.perf_counter() - start < 60


@pytest.mark.parametrize("scheme", ["adaloss", "const", "linear", "opt-1", "geometric-mean", "first-order"])
def test_all_exits_are_trained(scheme, bert):
    made = AnytimeEncoder(bert, exits=BLOCKS)
    loss = AnytimeLoss(made, MultipleNegativesRankingLoss(bert), scheme)
    columns = [bert.preprocess(SENTENCES), bert.preprocess(["a cat", "the dog runs", "blue hat"])]
    bert.train()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in bert.state_dict().items()}
    objective = loss([dict(column) for column in columns], None)
    objective.backward()
    optimizer.step()
    moved = {name for name, value in bert.state_dict().items() if not torch.equal(value, before[name])}
    assert any("layer.0." in name for name in moved)
    assert any("layer.2." in name for name in moved) == (scheme != "opt-1")
    assert "forward" not in vars(bert)


def test_the_objective_is_that_of_the_models_with_fewer_blocks(bert):
    made = AnytimeEncoder(bert, exits=BLOCKS)
    loss = AnytimeLoss(made, MultipleNegativesRankingLoss(bert), "const")
    columns = [bert.preprocess(SENTENCES), bert.preprocess(["a cat", "the dog runs", "blue hat"])]
    bert.eval()
    with torch.no_grad():
        total = loss([dict(column) for column in columns], None)
        alone = []
        for exit in range(1, BLOCKS + 1):
            cut = copy.deepcopy(bert)
            cut[0].model.encoder.layer = cut[0].model.encoder.layer[:exit]
            alone.append(MultipleNegativesRankingLoss(cut)([dict(column) for column in columns], None))
    assert torch.allclose(loss.losses, torch.stack(alone))
    assert torch.allclose(total, torch.stack(alone).sum())


def test_losses_that_run_the_model_again_are_refused(bert):
    made = AnytimeEncoder(bert, exits=2)
    with pytest.raises(anytime.AnytimeError, match="without Cached"):
        AnytimeLoss(made, CachedMultipleNegativesRankingLoss(bert))


def test_the_library_s_trainer_trains_all_exits_and_saves_the_model(bert, tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    made = AnytimeEncoder(bert, exits=BLOCKS)
    rows = Dataset.from_dict({"anchor": SENTENCES * 4, "positive": SENTENCES * 4})
    loss = AnytimeLoss(made, MultipleNegativesRankingLoss(bert))
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "out"), max_steps=3, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=3, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    before = made.encode(SENTENCES, exits=1)
    SentenceTransformerTrainer(bert, arguments, rows, rows, loss).train()
    assert loss.scheme.weights[-1] == loss.scheme.weights.max() or (loss.losses > 0).all()
    after = made.encode(SENTENCES, exits=1)
    assert not np.allclose(before, after)
    bert.save_pretrained(str(tmp_path / "saved"))
    loaded = AnytimeEncoder(SentenceTransformer(str(tmp_path / "saved"), device="cpu"), exits=BLOCKS)
    assert np.array_equal(loaded.encode(SENTENCES, exits=1), after)


def test_cross_encoders(tokenizer, tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**WIDE, num_hidden_layers=BLOCKS, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = CrossEncoder(str(tmp_path), device="cpu")
    model.eval()
    made = AnytimeCrossEncoder(model, exits=BLOCKS)
    pairs = [["the cat sat", "a dog runs"], ["a red hat", "a hat and a big blue hat"]]
    for exit in range(1, BLOCKS + 1):
        cut = copy.deepcopy(model)
        cut.model.bert.encoder.layer = cut.model.bert.encoder.layer[:exit]
        assert np.array_equal(made.predict(pairs, exits=exit), cut.predict(pairs))
        assert made.rank("a hat", SENTENCES, exits=exit) == cut.rank("a hat", SENTENCES)
    assert np.array_equal(made.predict(pairs, deadline=600.0), model.predict(pairs, batch_size=2))
    model.train()
    loss = AnytimeLoss(made, BinaryCrossEntropyLoss(model))
    loss(list(zip(*pairs, strict=True)), torch.tensor([0.0, 1.0])).backward()
    assert all(p.grad is not None for p in made.model.model.classifier.parameters())
    assert (loss.losses > 0).all()


def test_what_does_not_take_tokens_is_refused():
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    static = StaticEmbedding(PreTrainedTokenizerFast(tokenizer_object=words), embedding_dim=4)
    with pytest.raises(anytime.AnytimeError):
        AnytimeEncoder(SentenceTransformer(modules=[static], device="cpu"))
