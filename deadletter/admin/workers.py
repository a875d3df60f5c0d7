"""Workers: who is alive, what does each run and for how long; which names are held back?"""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db import router
from django.db.models import DateTimeField, Q, Value
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import Breaker, WorkerDeath, WorkerProcess
from ..times import ago
from .base import ReadOnlyAdmin
from .error_text import hidden_text
from .render import show_text
from .urls import link, to_messages

#: A worker says every five seconds that it is alive; after this long it counts as dead.
ALIVE = timedelta(seconds=30)
#: What a worker runs, in the list; its page shows everything it told.
IN_A_LIST = 3
#: Deaths on the page, the latest first.
DEATHS = 20


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "status",
        "running_now",
        "served",
        "completed",
        "failed",
        "version",
    )
    ordering = ("name",)
    search_fields = ("name", "host")
    search_help_text = _("The whole of a worker's name or host.")
    fields = (
        "name",
        "status",
        "all_running",
        "served",
        "concurrency",
        "held",
        "completed",
        "failed",
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
        """List the workers, and below them those that died."""
        deaths = {"deaths": self._deaths(request)}
        return super().changelist_view(request, {**deaths, **(extra_context or {})})

    def _deaths(self, request: HttpRequest) -> list[dict[str, Any]]:
        rows = WorkerDeath.objects.using(router.db_for_write(WorkerDeath)).order_by("-id")
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
        if worker.now - worker.seen_at <= ALIVE:
            return _badge("due", gettext("alive"))
        text = gettext("dead, seen %(ago)s") % {"ago": ago(worker.seen_at, worker.now)}
        return _badge("halted", text)

    @admin.display(description=_("runs now"))
    def running_now(self, worker: Any) -> str:
        return self._running(worker, IN_A_LIST)

    @admin.display(description=_("runs now"))
    def all_running(self, worker: Any) -> str:
        return self._running(worker, None)

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
            "dead": worker.now - worker.seen_at > ALIVE,
        }
        return render_to_string("admin/deadletter/running.html", context)

    def _entry(self, entry: dict[str, Any], worker: Any) -> dict[str, Any]:
        """Add what passed since the worker told; link to the message."""
        id, seconds = entry.get("id"), entry.get("seconds")
        known = isinstance(id, int)
        return {
            "label": f"{entry.get('name', '')} #{id}",
            "url": link(self.admin_site.name, "message_change", id) if known else "",
            "since": _elapsed(seconds, worker.seen_at, worker.now),
        }


class OpenBreakers(ChangeList):
    """Lists what is held back now. The page of a breaker whose time is over is still there."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> Any:
        rows: Any = super().get_queryset(*args, **kwargs)
        return rows.open(clock.now(rows.db))


@admin.register(Breaker)
class BreakerAdmin(ReadOnlyAdmin):
    """An open breaker is a row; workers remove it when a probe succeeds."""

    list_display = ("name", "status", "failures", "error_start", "opened_at", "opened_by")
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("The whole of a message name.")
    fields = ("name", "status", "until", "failures", "shown_error", "opened_at", "opened_by")
    readonly_fields = fields
    without_payload = dict.fromkeys(("error_start", "shown_error", "error"), "hidden_error")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        return rows.annotate(now=Value(clock.now(rows.db), DateTimeField()))

    def matches(self, term: str) -> Q:
        return Q(name=term)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return OpenBreakers

    @admin.display(description=_("status"))
    def status(self, breaker: Any) -> Any:
        if breaker.until > breaker.now:
            left = (breaker.until - breaker.now).total_seconds()
            return _badge("halted", gettext("held for %(n)d more seconds") % {"n": left})
        return _badge("waiting", gettext("the next message is tried"))

    @admin.display(description=_("last error"))
    def error_start(self, breaker: Breaker) -> str:
        return breaker.error[:120]

    @admin.display(description=_("last error"))
    def shown_error(self, breaker: Breaker) -> str:
        return show_text(breaker.error)

    @admin.display(description=_("last error"))
    def hidden_error(self, breaker: Breaker) -> str:
        return hidden_text(breaker.error)


def _reason(death: WorkerDeath) -> str:
    if death.signal is None:
        return gettext("exit code %(n)s") % {"n": death.exit_code}
    try:
        name = signal.Signals(death.signal).name
    except ValueError:
        name = gettext("signal")
    return f"{name} ({death.signal})"


def _memory(size: int) -> str:
    """Say it in the unit of the record and of the log: the same death has one number."""
    return f"{size / 2**20:.0f} MiB"


def _held(death: WorkerDeath) -> list[dict[str, Any]]:
    """Return what it held, as far as it can be read."""
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
