"""
The dashboard: whether anything is wrong, what it is, and since when.

It is the app's index page. Django renders that page from a template named after the app, so every
AdminSite has the dashboard. Parts that the user may not view or the site does not have are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext

from ... import clock
from ...conf import get_settings
from ...models import primary_alias
from ...operations.series import HOUR, WINDOWS, Window
from ...sql.planner import by_index
from .attempt_bars import AttemptBars, read_attempt_bars
from .broker_table import BrokerTable, read_broker_table
from .charts import draw_charts
from .figure import Figure
from .group_table import GroupTable, read_group_table
from .links import Links
from .navigation import PageGroup
from .queue_table import QueueTable, read_queue_table
from .stream_table import StreamTable, read_stream_table
from .verdict import Verdict, judge
from .worker_table import WorkerTable, read_worker_table


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Everything on the page; None for the parts that the user may not view."""

    now: datetime
    verdict: Verdict
    window: Window
    #: All windows of time: label, URL, and whether it is the current one.
    tabs: list[dict[str, Any]]
    #: All pages that the user may see, by task.
    pages: list[PageGroup]
    queues: QueueTable | None
    charts: list[Figure]
    #: False if the setting COUNTS switches the counters off.
    counting: bool
    retries: AttemptBars | None
    streams: StreamTable | None
    groups: GroupTable | None
    workers: WorkerTable | None
    brokers: BrokerTable | None


def read_dashboard(request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> Dashboard:
    """Read the page in a bounded number of bounded queries; `app_list` has the viewable models."""
    links = Links.of(request, app_list)
    using = primary_alias()
    now = clock.now(using)
    window = WINDOWS.get(request.GET.get("window", ""), HOUR)
    with by_index(using):
        workers = read_worker_table(links, now, using)
        queues = read_queue_table(links, now, using)
        streams = read_stream_table(links, using)
        brokers = read_broker_table(links, using)
        groups = read_group_table(links, now, using)
        verdict = judge(
            links,
            now,
            using,
            queues=queues,
            streams=streams,
            workers=workers,
            brokers=brokers,
            groups=groups,
        )
        retries = read_attempt_bars(links, using)
        # By index: counters are kept for a year, and a chart reads at most a week of them.
        charts = draw_charts(links, window, now, using)
    return Dashboard(
        now=now,
        verdict=verdict,
        window=window,
        tabs=_tabs(window),
        pages=links.pages,
        queues=queues,
        counting=get_settings().counts,
        charts=charts,
        retries=retries,
        streams=streams,
        groups=groups,
        workers=workers,
        brokers=brokers,
    )


def _tabs(here: Window) -> list[dict[str, Any]]:
    labels = {
        "hour": gettext("Last hour"),
        "day": gettext("Last day"),
        "week": gettext("Last week"),
    }
    return [
        {"label": labels[name], "url": f"?window={name}", "here": name == here.name}
        for name in WINDOWS
    ]
