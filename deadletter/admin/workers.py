"""The workers with what each of them runs, and their deaths."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, DateTimeField, Q, Value
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import WorkerDeath, WorkerProcess, primary_alias
from ..text import page_text
from ..times import ago
from .base import ReadOnlyAdmin
from .urls import link, to_messages

#: Messages of a worker shown in the list; its page shows all that it reported.
IN_A_LIST = 3
#: Deaths listed, the latest first.
DEATHS = 20
#: Releases named in the line about live workers that run different ones.
RELEASES = 10


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "status",
        "running_now",
        "served",
        "completed",
        "failed",
        "shown_release",
        "version",
    )
    ordering = ("name",)
    search_fields = ("name", "host")
    search_help_text = _("The exact name or host of a worker.")
    fields = (
        "name",
        "status",
        "all_running",
        "served",
        "concurrency",
        "held",
        "completed",
        "failed",
        "shown_release",
        "version",
        "host",
        "pid",
        "started_at",
        "seen_at",
    )
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        return rows.annotate(now=Value(clock.now(rows.db), DateTimeField()))

    def matches(self, term: str) -> Q:
        return Q(name=term) | Q(host=term)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """List the workers, and below them the latest deaths."""
        own = {"deaths": self._deaths(request), "releases": _mixed_releases()}
        return super().changelist_view(request, {**own, **(extra_context or {})})

    def _deaths(self, request: HttpRequest) -> list[dict[str, Any]]:
        rows = WorkerDeath.objects.using(primary_alias()).order_by("-id")
        found = list(rows[:DEATHS])
        told = {death.pk: _held(death) for death in found}
        ids = {entry["id"] for entries in told.values() for entry in entries[:IN_A_LIST]}
        urls = to_messages(self.admin_site.name, request, ids) if ids else {}
        return [
            {
                "death": death,
                "reason": _reason(death),
                "peak": _memory(death.peak_memory) if death.peak_memory else "",
                "held": [
                    entry | {"url": urls.get(entry["id"], "")}
                    for entry in told[death.pk][:IN_A_LIST]
                ],
                "more": len(told[death.pk]) - len(told[death.pk][:IN_A_LIST]),
            }
            for death in found
        ]

    @admin.display(description=_("status"))
    def status(self, worker: Any) -> Any:
        if worker.is_alive(worker.now):
            return _badge("due", gettext("alive"))
        text = gettext("dead, seen %(ago)s") % {"ago": ago(worker.seen_at, worker.now)}
        return _badge("halted", text)

    @admin.display(description=_("runs now"))
    def running_now(self, worker: Any) -> str:
        return self._running(worker, IN_A_LIST)

    @admin.display(description=_("runs now"))
    def all_running(self, worker: Any) -> str:
        return self._running(worker, None)

    @admin.display(description=_("release"))
    def shown_release(self, worker: WorkerProcess) -> str:
        return page_text(worker.release, limit=100) or "-"

    @admin.display(description=_("queues"))
    def served(self, worker: Any) -> str:
        names = worker.queues if isinstance(worker.queues, list) else []
        return ", ".join(str(name) for name in names) or "-"

    def _running(self, worker: Any, limit: int | None) -> str:
        told = worker.running if isinstance(worker.running, list) else []
        entries = [entry for entry in told if isinstance(entry, dict)]
        context = {
            "entries": [self._entry(entry, worker) for entry in entries[:limit]],
            "more": len(entries) - len(entries[:limit]),
            "dead": not worker.is_alive(worker.now),
        }
        return render_to_string("admin/deadletter/running.html", context)

    def _entry(self, entry: dict[str, Any], worker: Any) -> dict[str, Any]:
        """Add the time since the worker's report; link to the message."""
        id, seconds = entry.get("id"), entry.get("seconds")
        known = isinstance(id, int)
        return {
            "label": f"{entry.get('name', '')} #{id}",
            "url": link(self.admin_site.name, "message_change", id) if known else "",
            "since": _elapsed(seconds, worker.seen_at, worker.now),
        }


def _mixed_releases() -> list[tuple[str, int]]:
    """Return the releases of the live workers and their workers, if there are several; else []."""
    alias = primary_alias()
    alive = WorkerProcess.objects.using(alias).alive(clock.now(alias))
    counted = alive.order_by().values_list("release").annotate(n=Count("pk"))
    found = sorted(counted, key=lambda line: (-line[1], line[0]))[: RELEASES + 1]
    return found if len(found) > 1 else []


def _reason(death: WorkerDeath) -> str:
    if death.signal is None:
        return gettext("exit code %(n)s") % {"n": death.exit_code}
    try:
        name = signal.Signals(death.signal).name
    except ValueError:
        name = gettext("signal")
    return f"{name} ({death.signal})"


def _memory(size: int) -> str:
    """Use the unit of the poison record and of the log, so that a death has one number."""
    return f"{size / 2**20:.0f} MiB"


def _held(death: WorkerDeath) -> list[dict[str, Any]]:
    """Return the in-flight messages of a dead worker, as far as they can be read."""
    told = death.held if isinstance(death.held, list) else []
    return [e for e in told if isinstance(e, dict) and isinstance(e.get("id"), int)]


def _badge(kind: str, word: str) -> Any:
    return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)


def _elapsed(seconds: Any, seen_at: datetime, now: datetime) -> str:
    if not isinstance(seconds, int | float):
        return ""
    total = int(seconds + (now - seen_at).total_seconds())
    if total < 60:
        return gettext("%(n)s s") % {"n": total}
    return str(timedelta(seconds=total))
