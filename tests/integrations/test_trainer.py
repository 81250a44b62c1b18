"""Converted networks in Hugging Face's Trainer and Accelerate."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import anytime
from anytime.integrations.trainer import TrainerModel, exit_metrics

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")


def text_net():
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32, num_labels=2, max_position_embeddings=16
    )
    example = {"input_ids": torch.ones(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    return anytime.convert(transformers.DistilBertForSequenceClassification(config), example, exits=3)


def rows(n=16):
    ids = torch.randint(1, 50, (n, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": i, "attention_mask": torch.ones_like(i), "labels": torch.tensor(int(i[0]) % 2)} for i in ids]


def small_net():
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)]
    return anytime.AnytimeNetwork(stages, [nn.Linear(8, 2) for _ in range(3)])


def vectors(n=16):
    draw = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(8, generator=draw), "labels": torch.tensor(i % 2)} for i in range(n)]


def trainer_of(model, folder, data, **arguments):
    arguments = {"max_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-2, **arguments}
    args = transformers.TrainingArguments(
        str(folder), report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        **{"save_strategy": "no", "lr_scheduler_type": "constant", **arguments},
    )  # fmt: skip
    return transformers.Trainer(
        model=model, args=args, train_dataset=data, eval_dataset=data, compute_metrics=exit_metrics
    )


class Chosen(anytime.weights.WeightScheme):
    """Two of three exits, each with a weight of its own."""

    def __init__(self, only):
        super().__init__(torch.tensor([1.0, 0.0, 3.0]))
        self.only = only


def test_schemes_that_look_at_the_network_or_leave_exits_out():
    batch = {"x": torch.randn(4, 8), "labels": torch.tensor([0, 1, 0, 1])}
    model = TrainerModel(small_net(), "first-order", input="x")
    model(**batch)["loss"].backward()
    assert min(model.scheme.weights) < max(model.scheme.weights)
    assert not any(module._forward_pre_hooks for module in model.modules())
    losses = []
    for only in ([0, 2], [2, 0], [-1, 0]):
        torch.manual_seed(0)  # of the dropout
        losses.append(TrainerModel(small_net(), Chosen(only), input="x")(**batch)["loss"])
    assert losses[0] == losses[1] == losses[2]


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def update(scheme, folder, size, parts):
    """The change of all parameters by one step of plain SGD, as one vector."""
    model = TrainerModel(small_net(), scheme, input="x")
    for module in model.modules():
        module.p = 0.0  # no dropout: it depends on how a batch is cut
    before = torch.cat([p.detach().flatten() for p in model.net.parameters()])
    arguments = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
    trainer_of(model, folder, vectors(16), optim="sgd", learning_rate=0.1, max_grad_norm=0, **arguments).train()
    return torch.cat([p.detach().flatten() for p in model.net.parameters()]) - before


@pytest.mark.parametrize(("size", "parts"), [(4, 4), (6, 3)])  # 6 + 6 + 4: parts count by their samples
def test_an_accumulated_update_is_that_of_one_large_batch(tmp_path, size, parts):
    torch.testing.assert_close(update("const", tmp_path, size, parts), update("const", tmp_path, 16, 1))
    # An adaptive scheme observes each part, so that its weights are slightly different.
    whole = update("adaloss", tmp_path, 16, 1)
    assert (update("adaloss", tmp_path, size, parts) - whole).norm() < 0.1 * whole.norm()


def test_evaluation_gives_metrics_of_every_exit_and_is_not_observed(tmp_path):
    model = TrainerModel(text_net(), "adaloss")
    trainer = trainer_of(model, tmp_path, rows(16), max_steps=3)
    trainer.train()
    before = copy.deepcopy(model.state_dict())
    metrics = trainer.evaluate()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert before["objective.scheme.calls"] == 3
    collected = anytime.evaluation.collect(model.net, [_inputs(rows(16))])
    for exit in range(3):
        assert metrics[f"eval_accuracy_exit_{exit + 1}"] == pytest.approx(
            1 - collected.wrong[exit].float().mean().item()
        )
        loss = nn.functional.cross_entropy(collected.logits[exit], collected.labels)
        assert metrics[f"eval_loss_exit_{exit + 1}"] == pytest.approx(loss.item(), rel=1e-4)
    assert np.isfinite(metrics["eval_loss"])
    prediction = trainer.predict([{k: v for k, v in row.items() if k != "labels"} for row in rows(5)])
    assert prediction.predictions.shape == (5, 3, 2)


def _inputs(data):
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    return batch, batch.pop("labels")


@pytest.mark.parametrize(("scheme", "shared"), [("adaloss", False), ("log-barrier", False), ("adaloss", True)])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, scheme, shared):
    def train(**resume):
        model = TrainerModel(small_net(), scheme, input="x")
        if shared:
            model.net.heads[2].weight = model.net.heads[0].weight
        steps = {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2}
        trainer_of(model, tmp_path, vectors(16), max_steps=6, **steps).train(**resume)
        return model

    whole = train()
    resumed = train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert not torch.equal(whole.scheme.weights, torch.ones(3))
    resumed.load_state_dict(whole.state_dict())  # strict, also with shared parameters


def test_token_labels_that_are_ignored_do_not_count():
    net = small_net().eval()
    model = TrainerModel(net, "const", input="x")
    x, labels = torch.randn(4, 5, 8), torch.randint(2, (4, 5))
    labels[0], labels[1, 3:] = -100, -100
    expected = sum(nn.functional.cross_entropy(z.flatten(0, 1), labels.flatten()) for z in net(x))
    torch.testing.assert_close(model(x=x, labels=labels)["loss"], expected)
    items = (labels != -100).sum()
    parts = [model(x=x[i], labels=labels[i], num_items_in_batch=items)["loss"] for i in (slice(1), slice(1, 4))]
    torch.testing.assert_close(sum(parts), expected)
    assert parts[0] == 0, "a part without a label"


def test_opt_runs_one_exit_in_training_and_all_in_evaluation():
    net = small_net()
    model = TrainerModel(net, "opt-1", input="x")
    batch = {"x": torch.randn(4, 8), "labels": torch.randint(2, (4,))}
    model(**batch)["loss"].backward()
    assert net.stages[1][0].weight.grad is None
    assert model.eval()(**batch)["logits"].shape == (4, 3, 2)


def test_removed_columns_are_explained():
    with pytest.raises(anytime.AnytimeError, match="remove_unused_columns=False"):
        TrainerModel(small_net())(labels=torch.zeros(2, dtype=torch.long))


def test_accelerate():
    model = TrainerModel(text_net()).train()
    before = parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(rows(), batch_size=4)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    assert all(not torch.equal(p, before[name]) for name, p in parameters(model).items() if "position" not in name)


def test_tokens_of_batches_with_other_lengths(tmp_path):
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32, num_labels=3, max_position_embeddings=16
    )
    example = {"input_ids": torch.ones(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    net = anytime.convert(transformers.DistilBertForTokenClassification(config), example, exits=3)
    draw = torch.Generator().manual_seed(0)
    data = []
    for length in (4, 4, 7, 7):
        ids = torch.randint(1, 50, (length,), generator=draw)
        data.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % 3})
    metrics = trainer_of(TrainerModel(net), tmp_path, data, per_device_eval_batch_size=2).evaluate()
    right = torch.zeros(3)
    with torch.no_grad():
        for row in data:
            x = {name: row[name][None] for name in ("input_ids", "attention_mask")}
            right += torch.stack([(logits.argmax(-1) == row["labels"]).sum() for logits in net.eval()(x)])
    for exit in range(3):
        assert metrics[f"eval_accuracy_exit_{exit + 1}"] == pytest.approx(right[exit].item() / 22)
