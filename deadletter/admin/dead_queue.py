"""The death of a message that lies in a dead queue, or that died there again, in one sentence."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext

from ..lifecycle.dead_queues import OriginalDeath, read_original_death
from ..models import Message, PoisonRecord
from ..text import page_text
from ..times import age
from .error_text import hidden_text
from .render import reason_name

#: Characters of an error in a list.
_ERROR_SHOWN = 200


def show_death(row: Message | PoisonRecord, now: Any, *, texts: bool) -> str:
    """Say where a message that was moved to a dead queue died, of what, and when."""
    if "death" in row.get_deferred_fields():
        # From where the row was read: by itself Django asks the router, which may name a replica.
        row.refresh_from_db(using=row._state.db, fields=["death"])
    death = read_original_death(row)
    if death is None:
        return "-"
    return str(
        format_html("<bdi>{}</bdi>", page_text(_sentence(death, now, texts=texts), limit=1_000))
    )


def _sentence(death: OriginalDeath, now: Any, *, texts: bool) -> str:
    cause = reason_name(death.cause) if death.cause is not None else gettext("unknown")
    values = {"queue": death.queue or "?", "reason": cause, "id": death.message_id}
    text = gettext("died in %(queue)s of %(reason)s") % values
    error = death.error or "" if texts else hidden_text(death.error)
    said = (error or death.verdict)[:_ERROR_SHOWN]
    parts = [text, *([said] if said else [])]
    if death.at is not None:
        parts.append(gettext("%(time)s ago") % {"time": age(death.at, now)})
    parts.append(gettext("as message %(id)s") % values)
    return ", ".join(parts)
