"""Fingerprints group failures that have the same cause."""

from __future__ import annotations

import hashlib

from .status import FailureReason


def fingerprint(name: str, cause: str, frame: str = "") -> str:
    """
    Return the fingerprint of failures that are the same to an operator: name, exception, place.

    It has no line numbers and no values: neither a deployment nor a customer makes a new group.
    """
    return hashlib.sha256("\x1f".join((name, cause, frame)).encode()).hexdigest()[:16]


def cause_of(reason: FailureReason, exception: str | None) -> str:
    """Return what the failures of a group have in common: the exception, or else the reason."""
    return exception or reason.name
