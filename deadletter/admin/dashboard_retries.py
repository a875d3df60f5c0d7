"""How often were the messages tried that failed and are not done?"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from ..models import Message
from ..status import Status
from .counts import Capped
from .dashboard_links import Links

#: The newest failed messages looked at.
COUNTED = 5_000
#: From how many attempts to how many: one bar each.
BANDS = ((0, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 9), (10, None))


@dataclass(frozen=True)
class Band:
    label: str
    n: Capped
    #: Of a hundred of the highest.
    share: int


@dataclass(frozen=True)
class Retries:
    bands: list[Band]
    total: Capped
    url: str


def read_retries(links: Links, using: str) -> Retries | None:
    """Count the newest COUNTED of them by attempts, in one statement."""
    if not links.messages:
        return None
    # Implied by the bit, and unlike it known to an index.
    rows = Message.objects.using(using).filter(status__gte=int(Status.FAILED)).order_by("-id")
    found = rows.values("id", "attempts")[: COUNTED + 1].aggregate(
        every=Count("pk"),
        **{f"band_{n}": Count("pk", filter=_between(*band)) for n, band in enumerate(BANDS)},
    )
    numbers = [found[f"band_{n}"] for n in range(len(BANDS))]
    more = found["every"] > COUNTED
    highest = max(*numbers, 1)
    return Retries(
        [
            Band(_label(*band), Capped(n, more), round(100 * n / highest))
            for band, n in zip(BANDS, numbers, strict=True)
        ],
        Capped(min(found["every"], COUNTED), more),
        links.to(Message, "message_changelist", state="failed"),
    )


def _between(low: int, high: int | None) -> Q:
    return Q(attempts__gte=low) if high is None else Q(attempts__range=(low, high))


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}+"
    return str(high) if low in (0, high) else f"{low}–{high}"  # noqa: RUF001 - a range
