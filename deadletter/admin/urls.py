"""Addresses of pages, in the same AdminSite; "" where that site does not have the page."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from ..models import Message, PoisonRecord, Queue, State, primary_alias
from ..operations.dead_queues import moved

#: The parameter of the list of messages that asks for a group of dead letters.
GROUP = "group"


def link(site_name: str, page: str, *args: object, **query: Any) -> str:
    """Return the address of `deadletter_<page>`, or "" when its model is not registered there."""
    try:
        found = reverse(f"admin:deadletter_{page}", args=args, current_app=site_name)
    except NoReverseMatch:
        return ""
    return f"{found}?{urlencode(query)}" if query else found


def to_instance(site_name: str, request: HttpRequest, id: str | None) -> str:
    """Return the page of an instance; "" for readers who may not see it."""
    if not id or not request.user.has_perm("deadletter.view_instance"):
        return ""
    return link(site_name, "instance_change", quote(id))


def to_message(site_name: str, request: HttpRequest, id: int) -> str:
    """Return the page of a message; "" for readers who may not see it."""
    seen = request.user.has_perm("deadletter.view_message")
    return link(site_name, "message_change", id) if seen else ""


def to_messages(site_name: str, request: HttpRequest, ids: Collection[int]) -> dict[int, str]:
    """Return where these messages are now: in a queue or dead. Finished messages have no page."""
    found: dict[int, str] = {}
    alias = primary_alias()
    if request.user.has_perm("deadletter.view_message"):
        rows = Message.objects.using(alias).filter(pk__in=ids).values_list("pk", flat=True)
        found |= {id: link(site_name, "message_change", id) for id in rows}
        others = [id for id in ids if id not in found]
        for id, pk in moved(others, using=alias).items():
            found[id] = link(site_name, "message_change", pk)
    if request.user.has_perm("deadletter.view_poisonrecord"):
        dead = PoisonRecord.objects.using(alias).filter(message_id__in=ids)
        for message_id, pk in dead.values_list("message_id", "pk"):
            found[message_id] = link(site_name, "poisonrecord_change", pk)
    return found


def to_state(site_name: str, queue: Queue, state: str) -> str:
    """Return the list of the messages of a queue that are in this state."""
    if state == State.DEAD:
        return link(site_name, "poisonrecord_records", queue=queue.name)
    return link(site_name, "message_changelist", queue=queue.pk, state=str(state))


def to_group(site_name: str, fingerprint: str) -> str:
    """Return the list of the messages in dead queues that died of one cause."""
    return link(site_name, "message_changelist", **{GROUP: fingerprint})


def to_failure_group(site_name: str, request: HttpRequest, fingerprint: str | None) -> str:
    """Return the page of a failure group; "" for readers who may not see it."""
    needed = ("deadletter.view_poisonrecord", "deadletter.view_failuregroup")
    if not fingerprint or not request.user.has_perms(needed):
        return ""
    return link(site_name, "poisonrecord_group", fingerprint)


def to_act(site_name: str, slug: str, ids: Collection[int], *, back: str = "") -> str:
    """Return the page that asks before an act on messages; `back` is where it leads afterwards."""
    query = {"ids": ",".join(str(id) for id in ids)} | ({"next": back} if back else {})
    return link(site_name, "message_act", slug, **query)
