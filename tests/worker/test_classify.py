"""Which reason does an exception stand for?"""

from __future__ import annotations

import json
from concurrent.futures import CancelledError

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, InterfaceError, OperationalError

from deadletter import FailureReason, MessageRejected
from deadletter.exceptions import Undecodable
from deadletter.worker.classify import classify


class Own(Exception):
    failure_reason = FailureReason.DEPENDENCY_FAILURE


class Raising(Exception):
    @property
    def failure_reason(self):
        raise RuntimeError("a property's own trouble")


def by_hand(error):
    """A classifier as a setting would name it."""
    return FailureReason.TRANSPORT_UNAVAILABLE if isinstance(error, KeyError) else None


def broken(error):
    raise RuntimeError("a classifier's own trouble")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(), FailureReason.HANDLER_EXCEPTION),
        (ValidationError("no"), FailureReason.VALIDATION_FAILURE),
        (MessageRejected("name", "no"), FailureReason.VALIDATION_FAILURE),
        (TimeoutError(), FailureReason.TIMEOUT_EXCEEDED),
        (CancelledError(), FailureReason.TIMEOUT_EXCEEDED),
        (json.JSONDecodeError("no", "", 0), FailureReason.SERIALIZATION_ERROR),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "no"), FailureReason.SERIALIZATION_ERROR),
        (Undecodable("no"), FailureReason.SERIALIZATION_ERROR),
        (ConnectionResetError(), FailureReason.TRANSPORT_UNAVAILABLE),
        (ConnectionRefusedError(), FailureReason.TRANSPORT_UNAVAILABLE),
        (OperationalError(), FailureReason.DEPENDENCY_FAILURE),
        (InterfaceError(), FailureReason.DEPENDENCY_FAILURE),
        (IntegrityError(), FailureReason.HANDLER_EXCEPTION),
        (OSError(), FailureReason.HANDLER_EXCEPTION),
        (Own(), FailureReason.DEPENDENCY_FAILURE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_stands_for_a_reason(error, reason):
    assert classify(error) is reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [(1, FailureReason.TRANSPORT_UNAVAILABLE), (1234, FailureReason.UNKNOWN),
     ("text", FailureReason.UNKNOWN), ([], FailureReason.UNKNOWN)],
    ids=repr,
)  # fmt: skip
def test_an_exception_may_bring_a_number(value, reason):
    error = ValueError()
    error.failure_reason = value

    assert classify(error) is reason


def test_an_exception_whose_reason_raises_is_a_plain_failure():
    assert classify(Raising()) is FailureReason.HANDLER_EXCEPTION


def test_settings_may_name_a_classifier(settings):
    settings.DEADLETTER = {"CLASSIFY": f"{__name__}.by_hand"}

    assert classify(KeyError()) is FailureReason.TRANSPORT_UNAVAILABLE
    assert classify(TimeoutError()) is FailureReason.TIMEOUT_EXCEEDED


def test_the_exceptions_own_word_comes_first(settings):
    settings.DEADLETTER = {"CLASSIFY": lambda error: FailureReason.UNKNOWN}

    assert classify(Own()) is FailureReason.DEPENDENCY_FAILURE
    assert classify(ValueError()) is FailureReason.UNKNOWN


def test_a_classifier_that_raises_leaves_the_exception_what_it_is(settings):
    settings.DEADLETTER = {"CLASSIFY": broken}

    assert classify(TimeoutError()) is FailureReason.TIMEOUT_EXCEEDED
