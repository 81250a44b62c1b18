"""Deadlines in all their spellings mean the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.errors import AnytimeError
from anytime.serving.deadlines import deadline_of, grpc_seconds, seconds


@given(st.integers(1, 10**8 - 1))
def test_all_spellings_of_a_duration_agree(microseconds):
    expected = pytest.approx(1e-6 * microseconds)
    assert seconds(f"{microseconds}us") == expected
    assert seconds(f"{microseconds // 1000}.{microseconds % 1000:03}ms") == expected
    assert seconds(f"{microseconds // 10**6}.{microseconds % 10**6:06}s") == expected
    assert grpc_seconds(f"{microseconds}u") == expected
    assert deadline_of(None, {}, 1.0, 1000.0, microseconds) == expected
    assert deadline_of(None, {"grpc-timeout": f"{microseconds}u"}, 1.0, 1000.0) == expected


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "1h", "1e3", "nan", "inf", "1 2ms", "0x1", "1" * 30, "٣ms", "5\n"])
def test_other_words_are_refused(text):
    with pytest.raises(AnytimeError, match="such as 20ms"):
        seconds(text)
    with pytest.raises(AnytimeError, match="grpc-timeout"):
        grpc_seconds(text)


@pytest.mark.parametrize("text", ["50", "2", "0.5", "50 "])
def test_a_number_without_a_unit_is_refused(text):
    with pytest.raises(AnytimeError, match=r"its unit \(us, ms or s\), such as 20ms"):
        deadline_of(text, {}, 1.0, 60.0)


def test_what_a_request_says_itself_comes_first():
    header = {"grpc-timeout": "3S"}
    assert deadline_of("2s", header, 1.0, 60.0, 5) == 2
    assert deadline_of(None, header, 1.0, 60.0, 5_000_000) == 5
    assert deadline_of(None, header, 1.0, 60.0, 0) == 3
    assert deadline_of(None, {}, 1.0, 60.0) == 1


@pytest.mark.parametrize("given", ["0s", "61s"])
def test_deadlines_have_bounds(given):
    with pytest.raises(AnytimeError, match="above 0 and at most 60 s"):
        deadline_of(given, {}, 1.0, 60.0)


@pytest.mark.parametrize("timeout", [-1, "5", True, [1], 10**400])
def test_timeouts_are_numbers(timeout):
    with pytest.raises(AnytimeError, match="timeout"):
        deadline_of(None, {}, 1.0, 60.0, timeout)
