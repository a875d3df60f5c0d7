from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.backoff import UNDECODABLE, Backoff, UnregisteredBackoff

HOUR = timedelta(hours=1)
DEFAULT = Backoff(base=timedelta(seconds=30), cap=HOUR)
ANY_DELAY = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365))


def seconds(backoff: Backoff | UnregisteredBackoff, attempts: list[int]) -> list[float]:
    return [backoff.delay(attempt).total_seconds() for attempt in attempts]


def test_the_delay_doubles_from_a_minute_to_an_hour_and_stays_there():  # C5, C6, D6
    delays = seconds(DEFAULT, list(range(1, 10)))

    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_a_million_attempts_overflow_nothing():  # C7
    assert DEFAULT.delay(1_000_000) == HOUR
    assert UnregisteredBackoff().delay(1_000_000) == timedelta(seconds=60)


@given(base=ANY_DELAY, cap=ANY_DELAY, attempt=st.integers(-5, 10**9))
def test_no_delay_is_negative_or_above_its_cap(base: timedelta, cap: timedelta, attempt: int):
    delay = Backoff(base=base, cap=cap).delay(attempt)

    assert timedelta(0) <= delay <= cap


@given(base=ANY_DELAY, cap=ANY_DELAY, attempt=st.integers(0, 10_000))
def test_a_later_attempt_never_waits_less(base: timedelta, cap: timedelta, attempt: int):
    backoff = Backoff(base=base, cap=cap)

    assert backoff.delay(attempt) <= backoff.delay(attempt + 1)


@given(base=ANY_DELAY, cap=ANY_DELAY, attempt=st.integers(0, 80))
def test_the_delay_is_the_formula(base: timedelta, cap: timedelta, attempt: int):
    delay = Backoff(base=base, cap=cap).delay(attempt)

    microsecond = timedelta(microseconds=1)
    assert delay // microsecond == min((base // microsecond) * 2**attempt, cap // microsecond)


@pytest.mark.slow
@given(
    attempt=st.integers(0, 100),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_jitter_spreads_and_never_shortens(attempt: int, jitter: float, chance: float):
    plain = DEFAULT.delay(attempt)

    spread = Backoff(base=DEFAULT.base, cap=HOUR, jitter=jitter).delay(
        attempt, chance=lambda: chance
    )

    assert plain <= spread <= plain * (1 + jitter) + timedelta(microseconds=1)


def test_an_unregistered_name_waits_a_second_then_doubles_to_a_minute():  # U2
    delays = seconds(UnregisteredBackoff(), list(range(1, 10)))

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_an_unregistered_name_with_short_settings_stops_at_its_own_cap():  # U2, U4
    short = UnregisteredBackoff(base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500))

    assert seconds(short, [1, 2, 3, 4, 5]) == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_exponent_of_an_unregistered_name_stops_at_six_whatever_the_cap():  # U3
    patient = UnregisteredBackoff(base=timedelta(seconds=1), cap=timedelta(days=1))

    assert seconds(patient, [6, 7, 8, 1000]) == [32, 64, 64, 64]


def test_an_unregistered_name_that_was_never_claimed_waits_the_base():  # U2
    assert UnregisteredBackoff().delay(0) == timedelta(seconds=1)


def test_an_undecodable_payload_waits_one_second():  # A34
    assert timedelta(seconds=1) == UNDECODABLE
