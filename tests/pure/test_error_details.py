from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from deadletter import ErrorDetails
from deadletter.descriptions import TRACEBACK_LIMIT, _format, describe
from deadletter.error_details import Activity, FailedDeserialization, Orchestration, Plain
from deadletter.fingerprints import fingerprint
from deadletter.text import ERROR_LIMIT, storable_text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as raised:
        return raised


@given(text=st.text(st.characters(exclude_categories=[])), limit=st.integers(8, 200))
def test_any_text_becomes_text_that_every_database_takes(text: str, limit: int):
    clean = storable_text(text, limit=limit)

    data = clean.encode()
    assert len(data) <= limit
    assert all(char in "\t\n" or ord(char) >= 32 for char in clean)
    assert "\x7f" not in clean


@given(text=st.text(st.characters(exclude_categories=["C"]), max_size=100))
def test_ordinary_text_is_kept_as_it_is(text: str):
    assert storable_text(text) == text


def test_quotes_newlines_and_unicode_survive():  # C23
    text = 'can\'t "open" file:\n\tÄrger ☃ 😀'

    assert storable_text(text) == text


def test_nul_and_lone_surrogates_are_replaced():
    assert storable_text("a\x00b\ud800c\x1b[31m") == "a�b?c�[31m"


def test_long_text_is_cut_to_64_kib_with_a_mark():
    cut = storable_text("é" * 100_000)

    assert len(cut.encode()) <= ERROR_LIMIT == 65_536
    assert cut.endswith("é[…]")


def test_an_object_that_cannot_be_printed_is_named_instead():
    assert storable_text(Unprintable()) == "<unprintable RuntimeError>"


def test_an_exception_is_described_by_type_text_and_place():
    described = describe(caught(KeyError("id")))

    assert described.text == "KeyError: 'id'"
    assert described.exception == "KeyError"
    assert described.frame == f"{__name__}:caught"
    assert described.traceback.startswith("Traceback (most recent call last)")
    assert described.traceback.rstrip().endswith("KeyError: 'id'")


def test_an_exception_without_text_is_described_by_its_type():
    assert describe(caught(ValueError())).text == "ValueError"


def test_describing_an_unprintable_exception_does_not_raise():
    described = describe(caught(Unprintable()))

    assert described.text == f"{__name__}.Unprintable: <unprintable RuntimeError>"


def test_the_end_of_a_long_traceback_is_kept():
    described = describe(caught(ValueError("x" * 50_000 + " the end")))

    assert len(described.traceback.encode()) <= TRACEBACK_LIMIT
    assert described.traceback.rstrip().endswith("the end")


def test_a_fingerprint_is_16_hexadecimal_digits_and_depends_on_each_part():  # C32
    prints = {
        fingerprint("mail", "ValueError", "shop:send"),
        fingerprint("post", "ValueError", "shop:send"),
        fingerprint("mail", "KeyError", "shop:send"),
        fingerprint("mail", "ValueError", "shop:bill"),
    }

    assert len(prints) == 4
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in prints)
    assert fingerprint("mail", "ValueError", "shop:send") in prints


@pytest.mark.parametrize(
    ("message_type", "text"),
    [
        (Orchestration("order-1", 2), "poison: orchestration order-1 exceeded 5 attempts (max 3)"),
        (Activity("charge", 7), "poison: activity charge#7 exceeded 5 attempts (max 3)"),
        (Plain("mail"), "poison: message mail exceeded 5 attempts (max 3)"),
        (
            FailedDeserialization("bad"),
            "poison: message that cannot be decoded (bad) exceeded 5 attempts (max 3)",
        ),
    ],
)
def test_the_poison_error_names_what_was_given_up(message_type, text):  # A1, A2, A3
    error = ErrorDetails.Poison(
        attempts=5, max_attempts=3, last_error=None, message_type=message_type
    )

    assert (error.category, error.is_retryable, str(error)) == ("poison", False, text)
    assert (error.attempts, error.max_attempts, error.last_error) == (5, 3, None)
    assert error.message_type == message_type


@given(
    attempts=st.integers(0),
    limit=st.none() | st.integers(0),
    last=st.none() | st.text(),
)
def test_poison_is_never_retryable(attempts: int, limit: int | None, last: str | None):  # A1
    error = ErrorDetails.Poison(
        attempts=attempts, max_attempts=limit, last_error=last, message_type=Plain("mail")
    )

    assert error.category == "poison"
    assert error.is_retryable is False


def _raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def _plain() -> None:
    {}["missing"] + len("a" * 3)


def _chained() -> None:
    try:
        _plain()
    except KeyError as error:
        raise ValueError("two\nlines") from error


def _in_a_handler() -> None:
    try:
        _plain()
    except KeyError:
        raise RuntimeError from None


def _noted() -> None:
    error = OSError(2, "gone")
    error.add_note("seen twice")
    raise error


def _recursive(depth: int = 100) -> None:
    if not depth:
        raise ValueError("deep")
    _recursive(depth - 1)


def _raise(error: BaseException) -> None:
    raise error


class _Homeless(Exception):
    __module__ = None  # type: ignore[assignment]


def _grouped() -> None:
    raise ExceptionGroup("several", [ValueError(1), _raised(_plain)])


@pytest.mark.parametrize(
    "call",
    [
        _plain,
        _chained,
        _in_a_handler,
        _noted,
        _recursive,
        _grouped,
        lambda: compile("a b", "<text>", "exec"),
        lambda: json.loads("{"),
        lambda: exec(compile("1 / 0", "<nowhere>", "exec")),
        lambda: _raise(KeyError()),
        lambda: _raise(ValidationError("wrong")),
        lambda: _raise(Unprintable()),
        lambda: _raise(_Homeless("lost")),
        lambda: [].appendd,  # type: ignore[attr-defined]
    ],
)
def test_a_traceback_reads_as_python_writes_it(call):
    error = _raised(call)

    for _ in range(2):  # what was kept of the first is used for the second
        assert _format(error) == "".join(traceback.format_exception(error, limit=-50))
