"""What do the bits on a message mean, and why did it fail?"""

from __future__ import annotations

import enum
import operator

#: Every bit that a stage may set: 0 to 14.
STAGE_BITS = (1 << 15) - 1
#: The largest number that the column holds.
_LARGEST = (1 << 31) - 1


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
    #: Waiting for its retry after a failure; cleared by an operator's retry and by a stage.
    FAILED = 1 << 15

    @classmethod
    def names(cls, value: int) -> list[str]:
        """Return the names of the bits of a stored number; bits of the application as numbers."""
        bits = [1 << place for place in range(value.bit_length()) if value >> place & 1]
        return [cls(bit).name or str(bit) for bit in bits]


def check_flags(flags: Status | int, *, field: str) -> int:
    """Return flags as a number. Raises: ValueError when no row can hold them."""
    number = operator.index(flags)
    if 0 <= number <= _LARGEST:
        return number
    raise ValueError(f"{field}: {number} is no set of status flags; give bits 0 to 14")


def check_stage(flags: Status | int, *, field: str) -> int:
    """Return the flags of a stage as a number. Raises: ValueError for any but bits 0 to 14."""
    number = check_flags(flags, field=field)
    if not number & ~STAGE_BITS:
        return number
    what = "FAILED is set by a failure" if number & Status.FAILED else "it has other bits"
    raise ValueError(f"{field}: {number} names no stage, {what}; give bits 0 to 14")


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
