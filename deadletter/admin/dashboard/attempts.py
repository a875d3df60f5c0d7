"""How often were the messages tried that failed and are not done?"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from ...models import Message
from ..counts import Capped
from ..messages.filters import BANDS, REACH, failed_of_late
from .links import Links


@dataclass(frozen=True)
class Bar:
    label: str
    n: Capped
    #: Of a hundred of the highest.
    share: int
    url: str


@dataclass(frozen=True)
class Retries:
    bars: list[Bar]
    #: Whether there is any such message.
    any: bool
    url: str


def read_retries(links: Links, using: str) -> Retries | None:
    """Count the newest of them by attempts, in one statement."""
    if not links.messages:
        return None
    found = (
        failed_of_late(using)
        .values("id", "attempts")
        .aggregate(every=Count("pk"), **{b.key: Count("pk", filter=b.where) for b in BANDS})
    )
    more = found["every"] == REACH
    highest = max(*(found[band.key] for band in BANDS), 1)
    return Retries(
        [
            Bar(
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
