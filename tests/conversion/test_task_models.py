"""Public models of several tasks convert and train a step with their own task's loss."""

import copy
import importlib.util
import warnings

import pytest
import task_zoo
import torch
from tables import Table

import anytime

TABLE = Table("task-models.md", [(entry.library, entry.name, entry.task) for entry in task_zoo.ENTRIES])
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


def marked(entry):
    return pytest.param(entry, id=entry.name, marks=[] if entry.name in EVERY_TIME else pytest.mark.slow)


@pytest.mark.parametrize("entry", [marked(entry) for entry in task_zoo.ENTRIES])
def test_a_step_with_the_loss_of_the_task_and_its_row_of_the_table(entry, write_tables):
    """A model that does not convert says why, and its reason is in the table."""
    row = [entry.library, entry.name, entry.task]
    try:
        net, curve = train_a_step(entry)
    except anytime.AnytimeError as error:
        reason = " ".join(str(error).split()).replace("|", "/")
        TABLE.check([*row, f"refused: {reason}", ""], write_tables)
        return
    shares = ", ".join(f"{100 * share:.0f}" for share in curve.costs.fractions)
    paused = " (paused)" if net.paused_because else ""
    TABLE.check([*row, ", ".join(f"`{place}`" for place in net.places[:-1]) + paused, shares], write_tables)


def test_the_table_has_every_model_and_refuses_one_of_ten_at_most():
    assert TABLE.listed() == TABLE.keys, "run: make tables"
    assert TABLE.path.read_text().count("| refused: ") <= len(TABLE.keys) // 10
