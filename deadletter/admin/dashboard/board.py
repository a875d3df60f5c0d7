"""
Is anything wrong? What, and since when? The landing page of the app.

Drawn by the template that Django's AdminSite takes for the index of this app, so that it is there
in every AdminSite; what the person may not see, and what the site does not have, is left out.
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
from ...operations.bounded import by_index
from ...operations.series import HOUR, WINDOWS, Window
from .attempts import Retries, read_retries
from .charts import draw
from .drawing import Drawn
from .groups import Groups, read_groups
from .links import Links
from .queues import QueueLine, Queues, read_queues
from .streams import Streams, read_streams
from .verdict import Verdict, judge
from .workers import Workers, read_workers

__all__ = ["Board", "QueueLine", "read_dashboard"]


@dataclass(frozen=True, kw_only=True)
class Board:
    """Everything on the page; None where the person may not look."""

    now: datetime
    verdict: Verdict
    window: Window
    #: The other windows: what to call them, where they are, whether it is this one.
    tabs: list[dict[str, Any]]
    pages: list[dict[str, str]]
    queues: Queues | None
    charts: list[Drawn]
    #: Whether what happens now is counted at all.
    counting: bool
    retries: Retries | None
    streams: Streams | None
    groups: Groups | None
    workers: Workers | None


def read_dashboard(request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> Board:
    """Read the page in a bounded number of bounded queries. `app_list` says who may see what."""
    links = Links.of(request, app_list)
    using = primary_alias()
    now = clock.now(using)
    window = WINDOWS.get(request.GET.get("window", ""), HOUR)
    with by_index(using):
        workers = read_workers(links, now, using)
        queues = read_queues(links, now, using)
        streams = read_streams(links, using)
        verdict = judge(links, now, using, queues=queues, streams=streams, workers=workers)
        retries = read_retries(links, using)
        groups = read_groups(links, now, using)
        # Of a year of counters a week is read: by the index, not by all of it.
        charts = draw(links, window, now, using)
    return Board(
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
