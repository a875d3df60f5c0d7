"""Where does a number lead, and may this person see it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.http import urlencode

from ...models import Breaker, Count, Message, PoisonRecord, Queue, State, WorkerProcess
from ..error_text import may_read_errors
from ..urls import link


@dataclass(frozen=True)
class Links:
    """Addresses in one AdminSite, of the models it has and this person may look at; "" if none."""

    site: str
    allowed: frozenset[type]
    pages: list[dict[str, str]] = field(default_factory=list)
    #: Whether texts of errors may be shown.
    texts: bool = False
    #: Addresses found before: looking one up costs more than anything else in a line of a list.
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> Links:
        """Read what `AdminSite.get_app_list` found out: only what may be seen has an address."""
        seen = [
            model for app in app_list for model in app.get("models", ()) if model.get("admin_url")
        ]
        pages = [{"label": str(model["name"]), "url": model["admin_url"]} for model in seen]
        allowed = frozenset(model["model"] for model in seen)
        return cls(request.current_app or "admin", allowed, pages, may_read_errors(request))

    @property
    def messages(self) -> bool:
        return Message in self.allowed

    @property
    def poison(self) -> bool:
        return PoisonRecord in self.allowed

    @property
    def counts(self) -> bool:
        return Count in self.allowed

    @property
    def queues(self) -> bool:
        return Queue in self.allowed

    @property
    def workers(self) -> bool:
        return WorkerProcess in self.allowed

    @property
    def breakers(self) -> bool:
        return Breaker in self.allowed

    def state(self, queue: Queue, state: str) -> str:
        """The messages of a queue in one state; the dead are poison."""
        if state == State.DEAD:
            return self.records(queue=queue.name)
        return self.to(Message, "message_changelist", queue=queue.pk, state=str(state))

    def records(self, **query: Any) -> str:
        return self.to(PoisonRecord, "poisonrecord_records", **query)

    def counters(self, **query: Any) -> str:
        """The rows behind a sum; `what` is the column that was added up."""
        return self.to(Count, "count_changelist", **query)

    def to(self, model: type, page: str, *args: object, **query: Any) -> str:
        if model not in self.allowed:
            return ""
        if (page, *args) not in self._known:
            self._known[page, *args] = link(self.site, page, *args)
        found = self._known[page, *args]
        if not (found and query):
            return found
        times = {key: at.isoformat() for key, at in query.items() if isinstance(at, datetime)}
        return f"{found}?{urlencode({**query, **times})}"
