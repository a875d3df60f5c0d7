from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils.duration import duration_iso_string, duration_string
from hypothesis import given
from hypothesis import strategies as st

from deadletter.durations import LONGEST, as_text, as_timedelta, has_unit


@pytest.mark.parametrize(
    "given",
    [90, 90.0, timedelta(seconds=90), "90", " 90.0 ", "90s", "1m30s", "1m 30s", "1.5m", "1.5min",
     "0.025h", "00:01:30", "01:30", "0 00:01:30", "PT1M30S", "0h1m30s"],
)  # fmt: skip
def test_durations_are_seconds_timedeltas_or_text(given: Any):
    assert as_timedelta(given) == timedelta(minutes=1, seconds=30)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("1d12h", timedelta(hours=36)),
        ("30m1h", timedelta(minutes=90)),
        ("1 02:00:00", timedelta(days=1, hours=2)),
        ("0.000001s", timedelta(microseconds=1)),
        ("86399.999999s", timedelta(hours=24) - timedelta(microseconds=1)),
        ("36500d", LONGEST),
    ],
)
def test_a_text_is_read_exactly(text: str, duration: timedelta):
    assert as_timedelta(text) == duration


@pytest.mark.parametrize(
    "bad",
    [-1, -0.1, timedelta(seconds=-1), LONGEST + timedelta(microseconds=1), 10**5000, -(10**5000),
     float("nan"), float("inf"), None, True, [60], "", " ", "s", "soon", "5x", "5M", "1h1h",
     "-30", "-30s", "-1:00:00", "1 -02:00:00", "-1 00:00:00", "-PT5M", "P-1D", "1h-30m", "+30",
     "1e3", "1m1min", "1\n", "nan", "inf", "1_000", "٣", "36501d", "9" * 18 + "w", "9" * 99,
     "999999999 00:00:00", "1,5h", "0x10", "30 s s", "1h30", "\x00", "9" * 5000],
    ids=lambda bad: str(bad)[:20] if isinstance(bad, str) else type(bad).__name__,
)  # fmt: skip
def test_a_bad_duration_is_refused_with_the_field_named_and_examples(bad: Any):
    with pytest.raises(ValueError, match=r"^lease: expected a duration .*\"1h30m\".*, got "):
        as_timedelta(bad, field="lease")


@pytest.mark.slow
@given(value=st.one_of(st.integers(), st.floats(), st.timedeltas(), st.text()))
def test_everything_gives_a_duration_in_range_or_a_value_error(value: Any):
    try:
        duration = as_timedelta(value)
    except ValueError:
        return
    assert timedelta(0) <= duration <= LONGEST


@given(duration=st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_what_is_written_is_read_back(duration: timedelta):
    assert as_timedelta(as_text(duration)) == duration
    assert as_timedelta(duration_string(duration)) == duration
    assert as_timedelta(duration_iso_string(duration)) == duration


@given(duration=st.timedeltas(max_value=timedelta(microseconds=-1)))
def test_nothing_negative_is_read_however_it_is_written(duration: timedelta):
    texts = (as_text(duration), duration_string(duration), duration_iso_string(duration))
    for text in (*texts, f"{duration.total_seconds():f}"):
        with pytest.raises(ValueError, match="expected a duration"):
            as_timedelta(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=30), "30s"),
        (timedelta(minutes=5), "5m"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=2), "2d"),
        (timedelta(days=400, seconds=1), "400d1s"),
        (timedelta(milliseconds=500), "0.5s"),
        (timedelta(minutes=1, microseconds=1), "1m0.000001s"),
    ],
)
def test_a_duration_is_written_as_people_do(duration: timedelta, text: str):
    assert as_text(duration) == text


def test_a_number_alone_has_no_unit():
    assert [has_unit(text) for text in ("30", " 1.5 ", "30s", "00:30")] == [
        False,
        False,
        True,
        True,
    ]
