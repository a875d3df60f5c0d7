"""Fingerprints group failures that have the same cause."""

from __future__ import annotations

import hashlib
import re

from .status import FailureReason


def fingerprint(name: str, cause: str, frame: str = "") -> str:
    """
    Return the fingerprint of failures that are the same to an operator: name, exception, place.

    It has no line numbers and no values: neither a deployment nor a customer makes a new group.
    """
    return hashlib.sha256("\x1f".join((name, cause, frame)).encode()).hexdigest()[:16]


def custom_fingerprint(name: str, text: str) -> str:
    """Return the fingerprint of failures of a name that the application says are the same."""
    return fingerprint(name, "\x1e", text)


def is_fingerprint(value: object) -> bool:
    """Return whether a stored value, which may be damaged, is a fingerprint."""
    return isinstance(value, str) and _FINGERPRINT.fullmatch(value) is not None


_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def cause_of(reason: FailureReason, exception: str | None) -> str:
    """Return what the failures of a group have in common: the exception, or else the reason."""
    return exception or reason.name
