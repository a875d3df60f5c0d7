"""Progress: what a running handler reports of its work, checked, stored as JSON and read again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .text import short_repr, storable_text

#: Characters of the note that are kept.
NOTE_LIMIT = 200
#: A number from here on is shown in powers of ten.
_HUGE = 10**15


@dataclass(frozen=True)
class ProgressReport:
    """The last report of a handler, as it is stored on the row of its message."""

    done: int | float
    total: int | float | None
    note: str
    #: When the database stored it; None if the stored text is no time.
    at: datetime | None

    @property
    def percent(self) -> int | None:
        """The done part in whole percent, at most 100; None without a total."""
        if self.total is None:
            return None
        # Rounded down: 100 % means that nothing is left.
        return 100 if self.done >= self.total else int(self.done / self.total * 100)


def check_progress(done: float, total: float | None, note: object) -> dict[str, Any]:
    """
    Return a report as it is stored, without its time.

    `done` may exceed `total`: a total is often an estimate.
    Raises: ValueError unless both are finite numbers of at least 0; `total` may be None.
    """
    return {
        "done": _checked(done, "done"),
        "total": None if total is None else _checked(total, "total"),
        "note": _short("" if note is None else note),
    }


def read_progress(stored: Any) -> ProgressReport | None:
    """Return the report that a row holds; None if it holds none, or something else."""
    if not isinstance(stored, dict):
        return None
    try:
        value = check_progress(stored.get("done"), stored.get("total"), stored.get("note"))  # type: ignore[arg-type]
    except ValueError:
        return None
    return ProgressReport(**value, at=_moment(stored.get("at")))


def readable(value: float) -> float | str:
    """Return a number for people: whole, or with two decimals; a huge one as text, 1e+20."""
    if value >= _HUGE:
        return f"{float(value):.4g}"
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def _checked(value: Any, field: str) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        is_valid = is_number and math.isfinite(value) and value >= 0
    except OverflowError:  # an integer that no float can hold
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"report: {field} is {short_repr(value)}; give a finite number of at least 0"
        )
    # Plain numbers, whatever the subclass; -0.0 becomes 0.0.
    return int(value) if isinstance(value, int) else abs(float(value))


def _short(note: object) -> str:
    # More bytes than the characters that are kept can have, so that only this cut is visible.
    text = storable_text(note, limit=5 * NOTE_LIMIT)
    return text if len(text) <= NOTE_LIMIT else text[: NOTE_LIMIT - 1] + "…"


def _moment(value: Any) -> datetime | None:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else None
