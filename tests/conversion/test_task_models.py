"""Public models of several tasks convert and train a step with their own task's loss."""

import copy
import importlib.util
import re
import warnings
from pathlib import Path

import pytest
import task_zoo
import torch

import anytime

TABLE = Path(__file__).parents[2] / "docs" / "task-models.md"
EVERY_TIME = ("AlbertForTokenClassification", "GPT2LMHeadModel", "SegformerForSemanticSegmentation")


def train_a_step(entry):
    """The network, after a step with the loss of its task; every head and the model itself have moved."""
    if importlib.util.find_spec(entry.library) is None:
        pytest.skip(f"{entry.library} is not installed")
    model, inputs, targets = task_zoo.build(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = anytime.convert(model, inputs, exits=3)
    before = copy.deepcopy(net.state_dict())
    loss = task_zoo.LOSSES[entry.task]
    result = anytime.fit(net, [(inputs, targets)], loss=loss, epochs=1, lr=0.1, show=False)
    after = net.state_dict()
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    for exit in range(net.exits - 1):
        assert any(name.startswith(f"heads.{exit}.") for name in moved), f"the head of exit {exit + 1} did not move"
    assert any(name.startswith("trunk.model.") for name in moved)
    assert all(torch.isfinite(torch.tensor(result.history[0]["train"]["losses"])))
    curve = anytime.evaluate(net, [(inputs, targets)], metric=loss)
    assert all(error is not None and error == error for error in curve.errors)
    return net, curve


@pytest.mark.parametrize("name", EVERY_TIME)
def test_a_step_with_the_loss_of_the_task(name):
    train_a_step(next(entry for entry in task_zoo.ENTRIES if entry.name == name))


@pytest.mark.slow
def test_public_models_of_other_tasks_and_their_table():
    """At least nine of ten; a model that does not convert says why, and its reason is in the table."""
    lines = ["| library | model | task | exits after | % of the cost |", "|---|---|---|---|---|"]
    refused = []
    for entry in task_zoo.ENTRIES:
        start = f"| {entry.library} | {entry.name} | {entry.task} |"
        try:
            net, curve = train_a_step(entry)
        except anytime.AnytimeError as error:
            refused.append(entry.name)
            reason = " ".join(str(error).split()).replace("|", "/")
            lines.append(f"{start} refused: {reason} | |")
            continue
        shares = ", ".join(f"{100 * share:.0f}" for share in curve.costs.fractions)
        paused = " (paused)" if net.paused_because else ""
        lines.append(f"{start} {', '.join(f'`{place}`' for place in net.places[:-1])}{paused} | {shares} |")
    text = TABLE.read_text()
    TABLE.write_text(text[: text.index("| library |")] + "\n".join(lines) + "\n")
    assert len(refused) <= len(task_zoo.ENTRIES) // 10, refused


def test_the_table_has_every_model():
    listed = re.findall(r"^\| (\w+) \| (\w+) \|", TABLE.read_text(), re.M)[1:]
    assert listed == [(entry.library, entry.name) for entry in task_zoo.ENTRIES], "run: make test-slow"
