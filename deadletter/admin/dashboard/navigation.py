"""The pages of the app by task: what is wrong comes first, what is rarely changed comes last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import (
    Alert,
    AuditEntry,
    Breaker,
    BrokerStatus,
    Count,
    Instance,
    Message,
    PoisonRecord,
    PublishedMessage,
    Queue,
    Result,
    Schedule,
    WorkerProcess,
)
from ..urls import link

#: The models of each task, in the order in which they are read. A model of no task is a setting.
TASKS: tuple[tuple[Any, tuple[type, ...]], ...] = (
    (_("What is wrong"), (PoisonRecord, Breaker, Alert)),
    (_("Work"), (Queue, Message, Instance, Result, PublishedMessage, Count)),
    (_("Streams"), ()),
    (_("Workers"), (WorkerProcess,)),
    (_("Settings"), (Schedule, BrokerStatus, AuditEntry)),
)


@dataclass(frozen=True)
class PageLink:
    label: str
    url: str


@dataclass(frozen=True)
class PageGroup:
    label: str
    pages: list[PageLink]


def navigation(seen: Sequence[Mapping[str, Any]], site: str) -> list[PageGroup]:
    """Sort the models that the user may view, as `AdminSite.get_app_list` names them, by task."""
    left = {model["model"]: PageLink(_label(model), model["admin_url"]) for model in seen}
    streams = link(site, "streams") if Message in left else ""
    found = []
    for label, models in TASKS:
        pages = [left.pop(one) for one in models if one in left]
        if streams and not models:
            pages = [PageLink(gettext("Blocked and halted"), streams)]
        found.append(PageGroup(str(label), pages))
    found[-1].pages.extend(left.values())
    return [group for group in found if group.pages]


def _label(model: Mapping[str, Any]) -> str:
    return str(capfirst(str(model["name"])))
