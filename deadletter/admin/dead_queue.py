"""The death of a message that lies in a dead queue, or that died there again, in one sentence."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext

from ..lifecycle.dead_queues import Burial, read_burial
from ..models import Message, PoisonRecord
from ..templatetags.deadletter_dashboard import age
from ..text import visible
from .error_text import hidden_text
from .render import reason_name

#: Characters of an error in a list.
_ERROR_SHOWN = 200


def show_death(row: Message | PoisonRecord, now: Any, *, texts: bool) -> str:
    """Say where a message that was moved to a dead queue died, of what, and when."""
    if "death" in row.get_deferred_fields():
        # From where the row was read: by itself Django asks the router, which may name a replica.
        row.refresh_from_db(using=row._state.db, fields=["death"])
    burial = read_burial(row)
    if burial is None:
        return "-"
    return str(
        format_html("<bdi>{}</bdi>", visible(_sentence(burial, now, texts=texts), limit=1_000))
    )


def _sentence(burial: Burial, now: Any, *, texts: bool) -> str:
    cause = reason_name(burial.cause) if burial.cause is not None else gettext("unknown")
    values = {"queue": burial.queue or "?", "reason": cause, "id": burial.message_id}
    text = gettext("died in %(queue)s of %(reason)s") % values
    error = burial.error or "" if texts else hidden_text(burial.error)
    said = (error or burial.verdict)[:_ERROR_SHOWN]
    parts = [text, *([said] if said else [])]
    if burial.at is not None:
        parts.append(gettext("%(time)s ago") % {"time": age(burial.at, now)})
    parts.append(gettext("as message %(id)s") % values)
    return ", ".join(parts)
