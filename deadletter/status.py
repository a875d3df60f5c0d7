"""The stages a message has passed (Status), and why it failed (FailureReason)."""

from __future__ import annotations

import enum
import operator
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as StrPromise

#: Every bit that a stage may set: 0 to 14.
STAGE_BITS = (1 << 15) - 1
#: The largest number that the column holds.
_LARGEST = (1 << 31) - 1


class Status(enum.IntFlag):
    """
    Stages a message has passed, one bit each. Numbers are stored: they are only ever added.

    Bits 3 to 11 (8 … 2048) belong to the application: `PACKED = Status(8)`. Unknown bits are
    kept as they are, so an older process can read what a newer one wrote. Claims never depend on
    these bits.
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
    """Return flags as a number. Raises ValueError if the column cannot hold them."""
    number = operator.index(flags)
    if 0 <= number <= _LARGEST:
        return number
    raise ValueError(f"{field}: {number} is not a valid set of status flags; give bits 0 to 14")


def check_stage(flags: Status | int, *, field: str) -> int:
    """Return the flags of a stage as a number. Raises ValueError for any but bits 0 to 14."""
    number = check_flags(flags, field=field)
    if not number & ~STAGE_BITS:
        return number
    what = "FAILED is set by a failure" if number & Status.FAILED else "it has other bits"
    raise ValueError(f"{field}: {number} is not a valid stage: {what}; give bits 0 to 14")


class FailureReason(enum.IntEnum):
    """
    Why an attempt failed, or why a message was quarantined.

    Numbers are stored: they are only ever added. `label` is the reason in words, translated.
    """

    _value_: int
    label: StrPromise | str

    TRANSPORT_UNAVAILABLE = 1, _("transport unavailable")
    HANDLER_EXCEPTION = 2, _("handler exception")
    VALIDATION_FAILURE = 3, _("validation failure")
    TIMEOUT_EXCEEDED = 4, _("timeout exceeded")
    SERIALIZATION_ERROR = 5, _("serialization error")
    DEPENDENCY_FAILURE = 6, _("dependency failure")
    POISON_MESSAGE = 7, _("poison message")
    EXPIRED = 8, _("expired")
    UNREGISTERED = 9, _("unregistered")
    WORKER_LOST = 10, _("worker lost")
    OPERATOR = 11, _("operator")
    UNKNOWN = 99, _("unknown")

    def __new__(cls, value: int, label: StrPromise | str = "") -> FailureReason:
        member = int.__new__(cls, value)
        member._value_ = value
        member.label = label
        return member

    @classmethod
    def read(cls, number: int | None) -> FailureReason:
        """Turn a stored number into a reason; a number of a newer release reads as UNKNOWN."""
        known = cls._value2member_map_.get(number) if isinstance(number, int) else None
        return known if isinstance(known, cls) else cls.UNKNOWN

    @classmethod
    def choices(cls) -> list[tuple[int, StrPromise | str]]:
        """Return numbers and labels, for a model field."""
        return [(reason.value, reason.label) for reason in cls]
