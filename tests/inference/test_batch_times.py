"""Seconds by batch size: the line through what was measured, and which samples it holds for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anytime.inference.batch_times import BATCHES, Line, _line, sample_form

seconds = st.floats(1e-6, 10.0)
sizes = st.lists(st.integers(1, 256), min_size=2, max_size=8, unique=True)


@given(seconds, seconds, sizes)
def test_times_on_a_line_give_that_line(fixed, each, batches):
    found = _line({batch: fixed + each * batch for batch in batches})
    for batch in (*batches, 1, 512):
        assert found.at(batch) == pytest.approx(fixed + each * batch, rel=1e-4, abs=1e-6 * (fixed + each))


def test_the_fixed_part_and_that_of_each_sample_are_not_interchanged():
    assert _line({batch: 3.0 + 0.5 * batch for batch in BATCHES}) == pytest.approx(Line(fixed=3.0, each=0.5))


@given(seconds, st.floats(0.0, 1.0), sizes)
def test_a_batch_never_gets_cheaper_with_its_size(fixed, slope, batches):
    """Measured so, it is noise: the batch does not matter, and the mean is the best guess."""
    steepest = fixed / (max(batches) + 1)
    times = {batch: fixed - slope * steepest * batch for batch in batches}
    found = _line(times)
    assert found.fixed >= 0
    assert found.each >= 0
    if slope > 0.01:
        assert found == pytest.approx(Line(float(np.mean(list(times.values()))), 0.0))


@given(seconds, sizes)
def test_a_negative_fixed_part_counts_as_none(each, batches):
    """A line through the origin, the median of the seconds of one sample."""
    times = {batch: each * (batch - 0.5) for batch in batches}
    found = _line(times)
    assert found == pytest.approx(Line(0.0, float(np.median([time / batch for batch, time in times.items()]))))


def test_one_size_says_nothing_about_a_fixed_part():
    assert _line({4: 2.0}) == Line(0.0, 0.5)


def test_samples_of_one_form_have_equal_types_shapes_and_values_that_are_no_tensors():
    image, other = torch.zeros(1, 3, 8, 8), torch.ones(7, 3, 8, 8)
    assert sample_form(image) == sample_form(other)
    assert sample_form({"x": image, "scale": 2}) == sample_form({"x": other, "scale": 2})
    assert sample_form((image, [image])) == sample_form((other, [other]))
    forms = [
        image,
        image.double(),
        image[..., :4],
        (image,),
        [image],
        {"x": image},
        {"y": image},
        {"x": image, "scale": 2},
        {"x": image, "scale": 3},
        {"x": image.double(), "scale": 2},
        {"x": image[..., :4], "scale": 2},
    ]
    assert len({sample_form(form) for form in forms}) == len(forms)
