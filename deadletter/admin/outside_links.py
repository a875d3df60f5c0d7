"""Links of a page to other systems, from the templates of `DEADLETTER["LINKS"]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..conf import get_settings
from ..models import FailureGroup, PoisonRecord, is_moved
from ..operations import FailureGroupRow
from .render import read_json

#: The trace of a W3C `traceparent`: 32 digits, not all of them zero.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


@dataclass(frozen=True)
class OutsideLink:
    label: str
    url: str


def outside_links(
    *,
    message_id: int | None = None,
    trace_id: str = "",
    name: str = "",
    queue: str = "",
    fingerprint: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[OutsideLink]:
    """Return the links of which every value is known, in the order of the settings."""
    values = {
        "message_id": "" if message_id is None else str(message_id),
        "trace_id": trace_id,
        "name": name,
        "queue": queue,
        "fingerprint": fingerprint,
        "since": _time(since),
        "until": _time(until),
    }
    filled = [(link.label, link.fill(values)) for link in get_settings().links]
    return [OutsideLink(str(label), url) for label, url in filled if url]


def links_of_record(record: PoisonRecord, *, headers: bool) -> list[OutsideLink]:
    """Return the links of a dead message; with `headers`, readers may see those."""
    return outside_links(
        message_id=_original_id(record, record.message_id),
        trace_id=_trace(record, headers),
        name=record.name,
        queue=record.queue,
        fingerprint=record.fingerprint,
        since=record.original_created_at,
        until=record.poisoned_at,
    )


def links_of_message(message: Any, queue: str, *, headers: bool) -> list[OutsideLink]:
    """Return the links of a message as a page has read it; of a dead one, until it died."""
    return outside_links(
        message_id=_original_id(message, message.pk),
        trace_id=_trace(message, headers),
        name=message.name,
        queue=queue,
        fingerprint=message.fingerprint or "",
        since=message.created_at,
        until=message.died_at or message.seen_at,
    )


def links_of_group(group: FailureGroup | FailureGroupRow) -> list[OutsideLink]:
    """Return the links of a failure group: from its first failure to its last."""
    return outside_links(
        name=group.name,
        queue=group.queue,
        fingerprint=group.fingerprint,
        since=group.first_failed_at,
        until=group.last_failed_at,
    )


def trace_of(headers: Any) -> str:
    """Return the id of the trace that the headers of a message carry; "" if there is none."""
    if not isinstance(headers, dict):
        return ""
    given = next((headers[key] for key in headers if str(key).lower() == "traceparent"), None)
    found = _TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    return found[1] if found else ""


def _trace(row: Any, headers: bool) -> str:
    """Return the trace of a message, if readers may see headers and a link names it."""
    is_named = any("trace_id" in link.placeholders for link in get_settings().links)
    return trace_of(read_json(row, "headers").value) if headers and is_named else ""


def _original_id(row: Any, id: int) -> int:
    """Return the id under which a message ran: one in a dead queue has a new one."""
    return int(row.source_id) if is_moved(row) and row.source_id is not None else id


def _time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
