"""The brokers of the outbox: whether they accept messages, what waits, and what is paused."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...models import BrokerStatus
from ...operations import BrokerReport, list_brokers
from ...operations.brokers import COUNTED
from ..counts import Capped
from ..error_text import hidden_text
from .links import Links

#: Brokers listed.
SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class BrokerRow:
    report: BrokerReport
    url: str
    error: str
    waiting: Capped
    paused: Capped

    @property
    def name(self) -> str:
        return self.report.name


@dataclass(frozen=True)
class BrokerTable:
    lines: list[BrokerRow] = field(default_factory=list)
    all_url: str = ""

    @property
    def shown(self) -> list[BrokerRow]:
        return self.lines[:SHOWN]

    @property
    def more(self) -> int:
        return max(len(self.lines) - SHOWN, 0)


def read_broker_table(links: Links, using: str) -> BrokerTable | None:
    """Return the brokers; None where there are none, or the user may not see them."""
    url = links.to(BrokerStatus, "brokerstatus_changelist")
    if not url:
        return None
    lines = [_row(links, report, url) for report in list_brokers(using=using)]
    return BrokerTable(lines, url) if lines else None


def _row(links: Links, report: BrokerReport, url: str) -> BrokerRow:
    return BrokerRow(
        report=report,
        url=f"{url}?q={report.name}",
        error=report.error if links.texts else hidden_text(report.error or None),
        waiting=_capped(report.waiting),
        paused=_capped(report.paused),
    )


def _capped(n: int) -> Capped:
    return Capped(min(n, COUNTED), n > COUNTED)
