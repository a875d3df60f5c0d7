from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deadletter import FailureReason, Status

BITS = st.integers(0, 0xFFFF)


def test_the_bits_are_fixed_numbers():  # C1
    assert {flag.name: flag.value for flag in Status} == {
        "STORED": 1,
        "EVENT_STORED": 2,
        "PUBLISHED": 4,
        "FAILED": 32768,
    }
    assert Status.STORED | Status.FAILED == 32769


def test_the_reasons_are_fixed_numbers():  # C3, D21
    assert {reason.name: reason.value for reason in FailureReason} == {
        "TRANSPORT_UNAVAILABLE": 1,
        "HANDLER_EXCEPTION": 2,
        "VALIDATION_FAILURE": 3,
        "TIMEOUT_EXCEEDED": 4,
        "SERIALIZATION_ERROR": 5,
        "DEPENDENCY_FAILURE": 6,
        "POISON_MESSAGE": 7,
        "EXPIRED": 8,
        "UNREGISTERED": 9,
        "WORKER_LOST": 10,
        "OPERATOR": 11,
        "UNKNOWN": 99,
    }


@given(number=BITS)
def test_bits_nobody_here_knows_are_kept(number: int):
    assert int(Status(number)) == number


@given(before=BITS, more=BITS)
def test_adding_bits_takes_none_away(before: int, more: int):
    after = Status(before) | Status(more)

    assert after & before == before
    assert after & more == more


@given(number=st.one_of(st.none(), st.integers()))
def test_a_reason_from_the_future_reads_as_unknown(number: int | None):
    reason = FailureReason.read(number)

    known = {item.value for item in FailureReason}
    assert reason == (number if number in known else FailureReason.UNKNOWN)


def test_a_stored_number_is_read_as_names_and_bits_of_the_application():
    assert Status.names(0) == []
    assert Status.names(1 | 2 | 8 | 1 << 15) == ["STORED", "EVENT_STORED", "8", "FAILED"]
