"""When is it time to look for work again, or to try a database that was away?"""

from __future__ import annotations

import random

#: Seconds an outcome may wait for company.
FLUSH = 0.005
#: The first pause after an empty look; doubled up to `poll`.
SHORTEST_PAUSE = 0.002
#: Seconds after the last message during which pauses stay short: see lifecycle.notify.
ALERT = 0.02
#: The longest pause between two tries to reach the database.
LONGEST_RETRY = 5.0


class Rhythm:
    """At once when there was something; later each time that there was nothing."""

    def __init__(self, *, poll: float) -> None:
        self.next_look = 0.0
        #: Seconds until the database is tried again; 0.0 while it answers.
        self.outage = 0.0
        self._poll = poll
        self._pause = 0.0
        self._last_sign = 0.0

    def heard(self, now: float) -> None:
        """What is sent right after a notification has none of its own: see lifecycle.notify."""
        self._last_sign = now

    def postpone(self, now: float) -> None:
        """There is no room: look when some of it may have been made."""
        self.next_look = now + FLUSH

    def looked(self, now: float, *, found: int, room: int) -> None:
        """Plan the next look: now, if there may be more."""
        if found:
            self._last_sign = now
            self._pause = 0.0
        if found >= room:
            self.next_look = now
            return
        limit = self._poll
        if now - self._last_sign < ALERT:
            limit = min(limit, 4 * SHORTEST_PAUSE)
        self._pause = min(max(self._pause * 2, SHORTEST_PAUSE), limit)
        self.next_look = now + self._pause

    def is_away(self) -> float:
        """The database did not answer: say how long to leave it alone."""
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - spreads a fleet, hides no secret
        self.outage = min(max(self.outage * 2, 0.1), LONGEST_RETRY) * jitter
        return self.outage
