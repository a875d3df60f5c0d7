"""A bar chart of the failed messages that are still in a queue, by their number of attempts."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from ...models import Message
from ..counts import Capped
from ..messages.filters import BANDS, REACH, failed_of_late
from .links import Links


@dataclass(frozen=True)
class AttemptBar:
    label: str
    n: Capped
    #: Percent of the highest bar.
    share: int
    url: str


@dataclass(frozen=True)
class AttemptBars:
    bars: list[AttemptBar]
    #: True if there is a failed message.
    any: bool
    url: str


def read_attempt_bars(links: Links, using: str) -> AttemptBars | None:
    """Count the newest failed messages by attempts, in one statement."""
    if not links.messages:
        return None
    found = (
        failed_of_late(using)
        .values("id", "attempts")
        .aggregate(every=Count("pk"), **{b.key: Count("pk", filter=b.where) for b in BANDS})
    )
    more = found["every"] == REACH
    highest = max(*(found[band.key] for band in BANDS), 1)
    return AttemptBars(
        [
            AttemptBar(
                band.label,
                Capped(found[band.key], more),
                round(100 * found[band.key] / highest),
                links.to(Message, "message_changelist", attempts=band.key),
            )
            for band in BANDS
        ],
        found["every"] > 0,
        links.to(Message, "message_changelist", state="failed"),
    )
