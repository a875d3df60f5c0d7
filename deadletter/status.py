"""What do the bits on a message mean, and why did it fail?"""

from __future__ import annotations

import enum


class Status(enum.IntFlag):
    """
    Stages a message has passed, one bit each. Numbers are stored: they are only ever added.

    Bits 3 to 11 (8 … 2048) belong to the application: `PACKED = Status(8)`. Unknown bits are
    kept as they are, so an older process can read what a newer one wrote. Whether a message
    may be claimed is never decided on bits.
    """

    STORED = 1
    EVENT_STORED = 2
    PUBLISHED = 4
    #: Waiting for its retry after a failure; cleared only by an operator's retry.
    FAILED = 1 << 15


class FailureReason(enum.IntEnum):
    """Why an attempt failed, or why a message was quarantined. Numbers are stored."""

    TRANSPORT_UNAVAILABLE = 1
    HANDLER_EXCEPTION = 2
    VALIDATION_FAILURE = 3
    TIMEOUT_EXCEEDED = 4
    SERIALIZATION_ERROR = 5
    DEPENDENCY_FAILURE = 6
    POISON_MESSAGE = 7
    EXPIRED = 8
    UNREGISTERED = 9
    WORKER_LOST = 10
    OPERATOR = 11
    UNKNOWN = 99

    @classmethod
    def read(cls, number: int | None) -> FailureReason:
        """Turn a stored number into a reason; a number from the future reads as UNKNOWN."""
        known = cls._value2member_map_.get(number) if isinstance(number, int) else None
        return known if isinstance(known, cls) else cls.UNKNOWN
