"""``anytime combine``: the exits of a trained network answer together, as a model of its own."""

import pytest
import torch

import anytime


@pytest.mark.parametrize("rule", ["stacking", "ensemble", "product"])
def test_the_new_model_answers_as_in_python(run, trained, rule):
    code, out, err = run(f"combine a --rule {rule}")
    assert code == 0, err
    data = anytime.load_data("digits")
    images = {"stacking": data.train, "ensemble": data.validation}.get(rule)
    expected = anytime.combine(anytime.load(trained), rule, data.batches(images) if images else None).eval()
    combined = anytime.load(trained.with_name(f"a-{rule}"))
    x = data.normalize(data.test.pixels[:20])
    for answer, wanted in zip(combined(x), expected(x), strict=True):
        torch.testing.assert_close(answer, wanted)
    assert f"{anytime.evaluate(expected, data).errors[-1]:.2%}" in out
    code, out, err = run(f"evaluate a-{rule}")
    assert code == 0, err
    assert f"resann-1-4 + {rule}, on digits" in out
    for line in (f"combine a --rule {rule}", f"combine a --rule {rule} --output a"):
        code, _, err = run(line)
        assert (code, "holds a model: name another folder" in err) == (2, True)


@pytest.mark.usefixtures("trained")
def test_no_risk_is_promised_with_the_images_of_the_fit(run):
    """The weights of ensemble are fitted on the validation images; a combination of that combination knows it too."""
    for line in ("combine a --rule ensemble", "combine a-ensemble --rule product", "combine a --rule stacking"):
        assert run(line)[0] == 0
    for folder in ("a-ensemble", "a-ensemble-product"):
        code, _, err = run(f"calibrate {folder} --risk 0.3")
        assert (code, "validation images of digits" in err, "--data" in err) == (2, True, True)
        assert run(f"calibrate {folder} --budget 0.7")[0] == 0
    assert run("calibrate a-stacking --risk 0.3")[0] == 0


def test_rules_that_must_be_trained_are_refused(run, trained):
    assert run(f"combine {trained} --rule boosting")[::2] == (
        2,
        "anytime: --rule boosting must be one of stacking, ensemble, product\n",
    )
