"""Error text is made printable and cut before it is stored."""

from __future__ import annotations

import pytest

from deadletter import FailureReason, operations, send, testing
from deadletter.lifecycle import Failure, abandon, claim, fail
from deadletter.models import Message, PoisonRecord

HOSTILE = {
    "NUL": ("a\x00b", "a�b"),
    "surrogate": ("a\ud800b", "a?b"),
    "escape": ("\x1b[31mred", "�[31mred"),
    "carriage return": ("a\rb", "a�b"),
    "SQL": ("'; DROP TABLE x; --", "'; DROP TABLE x; --"),
    "percent": ("100% %s %(now)s", "100% %s %(now)s"),
    "backslash u": ("\\u0000 \\ud800", "\\u0000 \\ud800"),
}
every_text = pytest.mark.parametrize(("text", "stored"), HOSTILE.values(), ids=HOSTILE)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@every_text
def test_the_text_of_a_failure_is_stored_printable(clock, text, stored):
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, error=text, traceback=text, exception=text, frame=text)])

    row = Message.objects.get()
    assert row.error == row.history[0]["error"] == stored
    assert row.history[0]["traceback"] == row.history[0]["exception"] == stored


@every_text
def test_the_text_of_a_permanent_failure_is_stored_printable(clock, text, stored):
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, error=text, exception=text, permanent=True)])

    assert PoisonRecord.objects.get().last_error == stored


@every_text
def test_the_text_of_an_abandon_is_stored_printable(clock, text, stored):
    message = send("mail")
    batch = claim()

    abandon(batch.token, message.id, error=text)

    assert Message.objects.get().error == stored


@every_text
def test_the_text_of_an_exception_is_stored_printable(clock, handles, text, stored):
    def raises(message):
        raise ValueError(text)

    handles("mail", raises)
    send("mail")

    testing.drain()

    assert Message.objects.get().error == f"ValueError: {stored}"


@every_text
def test_why_an_operator_poisoned_it_is_stored_printable(clock, text, stored):
    message = send("mail")

    operations.poison([message.id], why=text)

    assert PoisonRecord.objects.get().verdict == stored


def test_an_error_of_many_megabytes_is_cut(clock):
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, error="é" * 5_000_000)])

    row = Message.objects.get()
    assert len(row.error.encode()) <= 65_536
    assert row.error.endswith("[…]")


def test_an_error_that_cannot_be_printed_is_a_failure_like_any_other(clock, counts, handles):
    def raises(message):
        raise Unprintable

    handles("mail", raises)
    send("mail")

    tally = testing.drain()

    assert tally.failed == 1
    assert "<unprintable RuntimeError>" in Message.objects.get().error
    assert counts() == {"failed": 1}


def test_an_object_given_as_error_is_stored_as_its_text(clock):
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, error=ValueError("boom"))])

    assert Message.objects.get().error == "boom"


@pytest.mark.parametrize("reason", [1234, -1, None])
def test_a_reason_nobody_knows_is_stored_as_unknown(clock, reason):
    message = send("mail")
    batch = claim()

    fail(batch.token, [Failure(message.id, reason=reason)])

    assert Message.objects.get().failure_reason == FailureReason.UNKNOWN
