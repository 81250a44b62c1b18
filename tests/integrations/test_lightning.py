"""Anytime networks in Lightning's Trainer."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anytime

lightning = pytest.importorskip("lightning")

from anytime.integrations.lightning import AnytimeModule  # noqa: E402


def module(scheme="adaloss"):
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    net = anytime.AnytimeNetwork(stages, [nn.Linear(8, 2) for _ in range(3)])
    return AnytimeModule(net, scheme, lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9))


def loader(batch_size=4):
    draw = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(16, 8, generator=draw), torch.arange(16) % 2), batch_size)


def trainer_of(folder, **arguments):
    return lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **{"enable_checkpointing": False, **arguments},
    )  # fmt: skip


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.net.parameters()])


def test_metrics_of_every_exit_and_validation_that_is_not_observed(tmp_path):
    model = module()
    trainer = trainer_of(tmp_path, max_epochs=2)
    trainer.fit(model, loader(), loader(8))
    assert {"train_loss", "train_loss_exit_3", "val_loss", "val_accuracy_exit_1"} <= set(trainer.callback_metrics)
    assert model.scheme.calls == 2 * 4, "one per training batch"
    before = copy.deepcopy(model.state_dict())
    (metrics,) = trainer.test(model, loader(8), verbose=False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    collected = anytime.evaluation.collect(model.net, loader())
    for exit in range(3):
        loss = nn.functional.cross_entropy(collected.logits[exit], collected.labels)
        assert metrics[f"test_loss_exit_{exit + 1}"] == pytest.approx(loss.item(), rel=1e-4)
        right = 1 - collected.wrong[exit].float().mean().item()
        assert metrics[f"test_accuracy_exit_{exit + 1}"] == pytest.approx(right)


def test_an_accumulated_update_is_that_of_one_large_batch(tmp_path):
    whole, accumulated = module("const"), module("const")
    trainer_of(tmp_path, max_epochs=1).fit(whole, loader(16))
    trainer_of(tmp_path, max_epochs=1, accumulate_grad_batches=4).fit(accumulated, loader(4))
    torch.testing.assert_close(parameters(accumulated), parameters(whole))
    assert not torch.equal(parameters(whole), parameters(module()))


@pytest.mark.parametrize("scheme", ["adaloss", "log-barrier"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, scheme):
    whole, half, resumed = (module(scheme) for _ in range(3))
    trainer_of(tmp_path, max_epochs=4).fit(whole, loader(), loader())
    first = trainer_of(tmp_path, max_epochs=2)
    first.fit(half, loader(), loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer_of(tmp_path, max_epochs=4).fit(resumed, loader(), loader(), ckpt_path=tmp_path / "half.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert not torch.equal(whole.scheme.weights, torch.ones(3))


def test_batches_of_other_forms(tmp_path):
    model = module("opt-2").train()
    with pytest.raises(anytime.AnytimeError, match="labels"):
        model.training_step({"x": torch.zeros(2, 8)}, 0)
    assert len(model.predict_step((torch.zeros(2, 8), torch.zeros(2)), 0)) == 3
    trainer_of(tmp_path, max_epochs=1).fit(model, loader())
    assert model.net.stages[2][0].weight.grad is None, "OPT computes no deeper stage"


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (torch.zeros(8, 2), nn.functional.mse_loss),
        (torch.ones(8, 2), nn.functional.binary_cross_entropy_with_logits),
        (torch.full((8, 2), 0.5), nn.functional.cross_entropy),
    ],
)
def test_accuracy_is_of_classes_alone(tmp_path, targets, loss):
    model = AnytimeModule(module().net, "const", lambda groups: torch.optim.SGD(groups, lr=0.1), loss=loss)
    trainer = trainer_of(tmp_path, max_epochs=1)
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(8, 8), targets), 4))
    assert "train_loss_exit_1" in trainer.callback_metrics
    assert not any("accuracy" in name for name in trainer.callback_metrics)


def test_predictions_without_labels(tmp_path):
    model = module().eval()
    x = torch.randn(8, 8)
    batches = trainer_of(tmp_path).predict(model, DataLoader(TensorDataset(x), 4))
    with torch.no_grad():
        assert torch.allclose(torch.cat([logits[-1] for logits in batches]), model.net(x)[-1], atol=1e-6)
