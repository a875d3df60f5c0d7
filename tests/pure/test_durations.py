from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.durations import LONGEST, as_timedelta


@pytest.mark.parametrize("given", [90, 90.0, timedelta(seconds=90)])
def test_durations_are_timedeltas_or_seconds(given: Any):
    assert as_timedelta(given) == timedelta(minutes=1, seconds=30)


@pytest.mark.parametrize(
    "bad",
    [-1, -0.1, timedelta(seconds=-1), LONGEST + timedelta(microseconds=1), 10**5000, -(10**5000),
     float("nan"), float("inf"), "60", None, True, [60]],
    ids=lambda bad: type(bad).__name__,
)  # fmt: skip
def test_a_bad_duration_is_refused_with_the_field_named(bad: Any):
    with pytest.raises(ValueError, match=r"^lease: (expected|must be)"):
        as_timedelta(bad, field="lease")


@given(value=st.one_of(st.integers(), st.floats(), st.timedeltas()))
def test_every_number_gives_a_duration_in_range_or_a_value_error(value: Any):
    try:
        duration = as_timedelta(value)
    except ValueError:
        return
    assert timedelta(0) <= duration <= LONGEST
