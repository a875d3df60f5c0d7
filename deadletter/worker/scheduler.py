"""Fire due schedules: a duty of the housekeeper of every worker."""

from __future__ import annotations

from time import monotonic

from ..exceptions import LockNotAvailable
from ..schedules import fire_due, seconds_until_due

#: Seconds between two reads of the next due time, one index probe: so late may a schedule be that
#: was created or changed a moment ago.
READ = 5.0
#: Seconds that one turn may take: the housekeeper has other duties, and there are other workers.
BUSY = 0.5


class Scheduler:
    """
    Knows when the next schedule is due, and fires it then.

    Without schedules it reads one row every few seconds. Otherwise it queries nothing until the
    next one is due, except that read: another process may have changed a schedule.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        #: When to look again, on the monotonic clock.
        self._next = monotonic()

    def turn(self) -> int:
        """Fire what is due, for a short time at most; return the number of schedules."""
        begun = now = monotonic()
        if now < self._next:
            return 0
        seconds = seconds_until_due(using=self._using)
        self._next = now + READ
        if seconds is None or seconds > 0:
            self._next = now + min(READ, seconds or READ)
            return 0
        fired, is_part = 0, True
        try:
            while is_part and monotonic() - begun < BUSY:
                done = fire_due(using=self._using)
                fired, is_part = fired + done.schedules, done.is_part
        except LockNotAvailable:
            pass  # a table is locked; the next turn tries again
        # In the next round: more of them may be due, or another worker has them.
        self._next = monotonic()
        return fired
