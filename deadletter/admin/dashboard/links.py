"""URLs of the pages behind the numbers of the dashboard, as far as the user may see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.http import urlencode

from ...models import (
    Breaker,
    Count,
    Message,
    PoisonRecord,
    Queue,
    Schedule,
    State,
    WorkerProcess,
)
from ..error_text import may_read_errors
from ..urls import link
from .navigation import PageGroup, navigation


@dataclass(frozen=True)
class Links:
    """URLs in one AdminSite; "" for a model it does not have or the user may not view."""

    site: str
    allowed: frozenset[type]
    #: The pages that the user may see, by task.
    pages: list[PageGroup] = field(default_factory=list)
    #: True if the user may read error texts.
    texts: bool = False
    #: True if the user may see the pages of failure groups.
    groups: bool = False
    #: URLs found before: `reverse` costs more than anything else in a row of a list.
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: HttpRequest, app_list: Iterable[Mapping[str, Any]]) -> Links:
        """Take the models from `AdminSite.get_app_list`: those with a URL may be viewed."""
        seen = [
            model for app in app_list for model in app.get("models", ()) if model.get("admin_url")
        ]
        site = request.current_app or "admin"
        return cls(
            site,
            frozenset(model["model"] for model in seen),
            navigation(seen, site),
            may_read_errors(request),
            groups=request.user.has_perm("deadletter.view_failuregroup"),
        )

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

    @property
    def schedules(self) -> bool:
        return Schedule in self.allowed

    def state(self, queue: Queue, state: str) -> str:
        """Return the list of a queue's messages in one state; dead ones are poison records."""
        if state == State.DEAD:
            return self.records(queue=queue.name)
        return self.to(Message, "message_changelist", queue=queue.pk, state=str(state))

    def records(self, **query: Any) -> str:
        return self.to(PoisonRecord, "poisonrecord_records", **query)

    def group(self, fingerprint: str) -> str:
        """Return the page of a failure group."""
        if not self.groups:
            return ""
        return self.to(PoisonRecord, "poisonrecord_group", fingerprint)

    def counters(self, **query: Any) -> str:
        """Return the list of the counters behind a sum; `what` is the summed column."""
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
