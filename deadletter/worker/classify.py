"""Which FailureReason does an exception stand for?"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import CancelledError

from django.core.exceptions import ValidationError
from django.db import InterfaceError, OperationalError

from ..conf import get_settings
from ..exceptions import MessageRejected, Undecodable
from ..logs import crash
from ..status import FailureReason


def classify(error: BaseException) -> FailureReason:
    """
    Ask the exception (`failure_reason`), then DEADLETTER["CLASSIFY"], then the list below.

    Never raises: a classifier that fails leaves the exception what it is.
    """
    try:
        own = getattr(error, "failure_reason", None)
    except Exception as problem:  # noqa: BLE001 - of the application, logged
        crash(
            "classifier_failed",
            "failure_reason of {exception} raised",
            problem,
            exception=type(error).__name__,
        )
        own = None
    if own is not None:
        return FailureReason.read(own)
    custom = get_settings().classify
    if custom is not None:
        try:
            answer = custom(error)
        except Exception as problem:  # noqa: BLE001 - of the application, logged
            crash(
                "classifier_failed",
                "DEADLETTER['CLASSIFY'] raised for {exception}",
                problem,
                exception=type(error).__name__,
            )
            answer = None
        if answer is not None:
            return FailureReason.read(answer)
    for kinds, reason in _DEFAULTS:
        if isinstance(error, kinds):
            return reason
    return FailureReason.HANDLER_EXCEPTION


#: First match wins: TimeoutError is also an OSError.
_DEFAULTS: tuple[tuple[tuple[type[BaseException], ...], FailureReason], ...] = (
    ((TimeoutError, asyncio.CancelledError, CancelledError), FailureReason.TIMEOUT_EXCEEDED),
    ((ValidationError, MessageRejected), FailureReason.VALIDATION_FAILURE),
    ((Undecodable, json.JSONDecodeError, UnicodeError), FailureReason.SERIALIZATION_ERROR),
    ((ConnectionError,), FailureReason.TRANSPORT_UNAVAILABLE),
    ((OperationalError, InterfaceError), FailureReason.DEPENDENCY_FAILURE),
)
