import processes
import pytest
import torch
from short_runs import linear, small, train

import anytime


def test_the_data_choose_the_recipe_in_python_as_on_the_command_line(tmp_path, environment):
    command = ["train", "--model", "resann-1-4", "--data", "digits", "--subset", "100", "--epochs", "2"]
    processes.run(["-m", "anytime", *command, "--output", tmp_path / "run"], env=environment, check=True)
    torch.manual_seed(0)
    net = anytime.create_model("resann-1-4", in_channels=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        anytime.fit(net, anytime.load_data("digits").subset(100), epochs=2, show=False)
    finally:
        torch.set_num_threads(threads)
    loaded = anytime.load(tmp_path / "run").state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in net.state_dict().items())


def test_an_unknown_argument_names_the_nearest(data):
    nearest = {"epoch": "epochs", "batchsize": "batch_size", "optimiser": "optimizer", "learning_rate": "lr"}
    for wrong, right in nearest.items():
        with pytest.raises(anytime.AnytimeError, match=rf"unknown argument {wrong}=; did you mean {right}=\?"):
            train(small(), data, **{wrong: 1})
    with pytest.raises(anytime.AnytimeError, match="a recipe has: epochs, lr, "):
        train(small(), data, xyzzy=1)


def test_impossible_trainings_are_refused(data, tmp_path):
    for options, says in (
        ({"accumulate": 200}, "batch size of at least 200"),
        ({"accumulate": 0}, "accumulate=0 must be an integer >= 1"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": 2**63}, "seed=.* must be"),
        ({"precision": "int8"}, "float32, bfloat16 or float16"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds=-1 must be"),
        ({"optimizer": "magic"}, "one of sgd, adamw"),
        ({"recipe": "cifar"}, r"recipe='cifar' must be an anytime\.Recipe"),
        ({"scheme": 5}, "scheme=5 must be a name such as 'adaloss'"),
        ({"output": 5}, "output=5 must be a folder"),
    ):
        with pytest.raises(anytime.AnytimeError, match=says):
            train(small(), data, **{"output": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_what_is_not_batches_is_refused_with_what_works(data):
    with pytest.raises(anytime.AnytimeError, match=r"got a list for the images; expected .*data\.validation"):
        anytime.evaluate(small(), data, [(torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64))])
    eann = anytime.EANN([small()])
    for wrong in (data, data.validation):
        for call in (lambda x: anytime.calibrate(small(), x, 0.5, "fraction"), eann.fit_order):
            with pytest.raises(anytime.AnytimeError, match=r"expects batches, not a .*data\.batches\("):
                call(wrong)
    for wrong in (torch.zeros(8, 1, 8, 8), 3, {"labels": torch.zeros(8)}):
        for call in (lambda x: anytime.fit(small(), x), lambda x: anytime.evaluate(small(), x)):
            with pytest.raises(anytime.AnytimeError, match=r"expects batches, not a .*: a DataLoader.*load_data"):
                call(wrong)
    with pytest.raises(anytime.AnytimeError, match=r"not a Linear: anytime\.convert"):
        anytime.fit(torch.nn.Linear(3, 3), data)


def test_too_few_classes_are_refused_before_training(data, tmp_path):
    for call in (
        lambda net: train(net, data, output=tmp_path / "run"),
        lambda net: anytime.evaluate(net, data),
    ):
        with pytest.raises(anytime.AnytimeError, match="num_classes=10"):
            call(small(num_classes=7))
    assert not (tmp_path / "run").exists()
    uneven = linear()
    uneven.heads[0] = torch.nn.Linear(16, 12)
    with pytest.raises(anytime.AnytimeError, match=r"\(1, 10\), \(1, 12\)"):
        train(uneven, data)


def test_more_classes_than_the_data_have_are_fine(data):
    train(small(num_classes=12), data, epochs=1)


def test_a_scheme_in_eval_mode_adapts_all_the_same(data):
    net = anytime.create_model("resann-1-4", num_classes=10, in_channels=1)
    balance = anytime.AdaLoss(net.exits).eval()
    anytime.fit(net, data, balance, epochs=1, show=False)
    assert balance.calls > 0
