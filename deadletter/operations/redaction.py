"""Documented alias: `redact` and `redact_history` are those of `deadletter.redaction`."""

from __future__ import annotations

from ..redaction import HIDDEN, redact, redact_history

__all__ = ["HIDDEN", "redact", "redact_history"]
