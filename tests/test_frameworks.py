"""Converted networks in other people's training loops; each where it is installed."""

import re
from pathlib import Path

import public
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anytime

PAGE = (Path(__file__).parent.parent / "docs" / "convert.md").read_text()


def from_the_page(name, **names):
    """A class as the page has it."""
    (code,) = (b for b in re.findall(r"^```(?:python|text)\n(.*?)^```", PAGE, re.M | re.S) if f"class {name}(" in b)
    names |= {"torch": torch, "anytime": anytime, "cross_entropy": cross_entropy}
    exec(code, names)
    return names[name]


def text_net():
    public.timm()
    transformers = pytest.importorskip("transformers")
    config = transformers.DistilBertConfig(
        vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32, num_labels=2, max_position_embeddings=16
    )
    example = {"input_ids": torch.ones(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    return anytime.convert(transformers.DistilBertForSequenceClassification(config), example, exits=3)


def rows(n=16):
    ids = torch.randint(1, 50, (n, 8))
    return [{"input_ids": i, "attention_mask": torch.ones_like(i), "labels": torch.tensor(int(i[0]) % 2)} for i in ids]


def changed(net, before):
    return all(not torch.equal(p, before[name]) for name, p in net.named_parameters() if "position" not in name)


def test_trainer(tmp_path):
    pytest.importorskip("accelerate")
    net = text_net()
    transformers = pytest.importorskip("transformers")
    before = {name: p.clone() for name, p in net.named_parameters()}
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, learning_rate=1e-2, remove_unused_columns=False,
    )  # fmt: skip
    model = from_the_page("ForTrainer")(net)
    transformers.Trainer(model=model, args=args, train_dataset=rows()).train()
    assert changed(net, before)
    assert model.balance.calls > 0


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    net = text_net()
    before = {name: p.clone() for name, p in net.named_parameters()}
    model = from_the_page("ForTrainer")(net).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(rows(), batch_size=4)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    assert changed(net, before)


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)), nn.Linear(8, 3))
    net = anytime.convert(model, torch.zeros(1, 8), exits=2)
    before = {name: p.clone() for name, p in net.named_parameters()}
    kind = from_the_page("Anytime", lightning=lightning)
    kind.configure_optimizers = lambda self: torch.optim.SGD(self.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randint(3, (16,)))
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(kind(net), torch.utils.data.DataLoader(data, batch_size=4))
    assert changed(net, before)
