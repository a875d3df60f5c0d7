"""Durations are timedeltas or seconds; inside the package they are timedeltas."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from .failures import shown

Duration = timedelta | float | int

#: Far above any sensible delay, far below what timestamps overflow at.
LONGEST = timedelta(days=36_500)


#: What every connection can read back: a time zone moves a time by less than two days, and Python
#: knows the years 1 to 9999 only.
EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
LATEST = datetime(9999, 12, 29, tzinfo=UTC)


def is_readable(moment: datetime) -> bool:
    """Say whether a time that is stored can be read back, whatever time zone a connection has."""
    return EARLIEST <= moment <= LATEST


def as_timedelta(value: Duration, *, field: str = "duration") -> timedelta:
    """Return the duration as a timedelta. Raises ValueError for anything but 0 … 100 years."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise ValueError(f"{field}: expected a timedelta or seconds, got {shown(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{field}: must be finite, got {shown(value)}")
    if not isinstance(value, timedelta):
        if abs(value) > LONGEST.total_seconds():
            raise ValueError(f"{field}: must be between 0 and 100 years, got {shown(value)}")
        value = timedelta(seconds=value)
    if not timedelta(0) <= value <= LONGEST:
        raise ValueError(f"{field}: must be between 0 and 100 years, got {shown(value)}")
    return value
