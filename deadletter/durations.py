"""
Durations are seconds, timedeltas or text ("30s", "1h30m"); inside the package they are timedeltas.

`as_timedelta` reads all three; `as_text` writes a text that people and `as_timedelta` can read.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.utils.dateparse import parse_duration

from .text import short_repr

Duration = timedelta | float | int | str

#: Far above any sensible delay, far below the overflow of timestamps.
LONGEST = timedelta(days=36_500)
#: What error texts and help texts show.
EXAMPLES = '90 (seconds), "30s", "5m", "1h30m", "2d" or a timedelta'


#: The range that every connection can read back: a time zone shifts a time by less than two days,
#: and Python has the years 1 to 9999 only.
EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
LATEST = datetime(9999, 12, 29, tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "min": 60, "s": 1}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_PARTS = re.compile(rf"({_NUMBER}) ?(min|[wdhms])")
_WHOLE = re.compile(rf"(?:{_NUMBER} ?(?:min|[wdhms]) ?)+")
#: Characters of a text that may be a duration.
_LENGTH = 100


def is_readable(moment: datetime) -> bool:
    """Return True if a stored time can be read back in every time zone of a connection."""
    return EARLIEST <= moment <= LATEST


def as_timedelta(value: Duration, *, field: str = "duration") -> timedelta:
    """
    Return the duration as a timedelta. Raises ValueError for anything but 0 … 100 years.

    A number is seconds, also in a text. Texts have units, each at most once (w, d, h, m or min, s),
    or one of Django's forms: "00:05:00", "1 02:00:00", "P1DT2H".
    """
    found = _read(value)
    if found is None or not timedelta(0) <= found <= LONGEST:
        raise ValueError(
            f"{field}: expected a duration from 0 to 100 years, such as {EXAMPLES}, "
            f"got {short_repr(value)}"
        )
    return found


def as_text(duration: timedelta) -> str:
    """Return a duration as exact text: 1h30m, 2d, 0.5s. Negative ones as Python writes them."""
    if duration < timedelta(0):
        return str(duration)
    left, parts = duration // _MICROSECOND, ""
    for unit in ("d", "h", "m"):
        n, left = divmod(left, _SECONDS[unit] * 1_000_000)
        parts += f"{n}{unit}" if n else ""
    if not left and parts:
        return parts
    whole, fraction = divmod(left, 1_000_000)
    return f"{parts}{whole}" + (f".{fraction:06d}".rstrip("0") if fraction else "") + "s"


def has_unit(text: str) -> bool:
    """Return True if a text is more than a bare number, which may not be meant as seconds."""
    return re.fullmatch(_NUMBER, text.strip(" ")) is None


def _read(value: object) -> timedelta | None:
    """Read a duration of any length; None: the value is not a duration."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return _read_text(value.strip(" "))
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return timedelta(seconds=value) if abs(value) <= LONGEST.total_seconds() else None


def _read_text(text: str) -> timedelta | None:
    # Digits of other scripts and signs are refused: Django accepts "1 -02:00:00" and "".
    is_plain = text.isascii() and text.isprintable() and 0 < len(text) <= _LENGTH
    if not is_plain or "-" in text or "+" in text:
        return None
    if re.fullmatch(_NUMBER, text):
        return _of_seconds(Decimal(text))
    if _WHOLE.fullmatch(text):
        parts = _PARTS.findall(text)
        units = [unit[0] for _, unit in parts]
        if len(set(units)) < len(units):
            return None
        return _of_seconds(sum(Decimal(n) * _SECONDS[unit] for n, unit in parts))
    try:
        return parse_duration(text)
    except (ValueError, OverflowError):
        return None


def _of_seconds(seconds: Decimal | int) -> timedelta | None:
    if seconds > LONGEST.total_seconds():
        return None
    return timedelta(microseconds=round(seconds * 1_000_000))
