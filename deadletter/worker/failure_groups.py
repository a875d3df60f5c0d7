"""What the application says about the group of a failure: its own fingerprint, and tags."""

from __future__ import annotations

from typing import Any

from ..conf import get_settings
from ..exceptions import PayloadRejected, Undecodable
from ..lifecycle import Claimed
from ..logs import crash
from ..message_tags import Tag, read_tags
from ..models import Kind
from ..payload import decode
from ..redaction import redact
from ..tasks import lookup
from ..tasks.calls import bind, read_payload
from ..text import storable_text
from .registry import Handler

#: Bytes of a text, and parts of it, that make a fingerprint.
_TEXT, _PARTS = 1_000, 20


def own_fingerprint(error: BaseException, message: Claimed) -> str:
    """
    Return what the application says makes failures of this name the same, or "".

    Order: the exception's `fingerprint`, then DEADLETTER["FINGERPRINT"]: a text, or some texts.
    Never raises: application code that does is logged and ignored.
    """
    try:
        own = _as_text(getattr(error, "fingerprint", None))
        if own:
            return own
        custom = get_settings().fingerprint
        return "" if custom is None else _as_text(custom(error, message))
    except Exception as problem:  # noqa: BLE001 - application code; logged
        crash(
            "fingerprint_failed",
            "the fingerprint for {exception} of message {name} {message_id} raised",
            problem,
            exception=type(error).__name__,
            name=message.name,
            message_id=message.id,
        )
        return ""


def _as_text(value: Any) -> str:
    """Return a fingerprint as one text; "" for anything else that has the name."""
    if isinstance(value, str):
        return storable_text(value, limit=_TEXT)
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return "\n".join(storable_text(part, limit=_TEXT) for part in value[:_PARTS])
    return ""


def tags_of(message: Claimed, handler: Handler) -> tuple[Tag, ...]:
    """
    Return the tags of a message: the values of its payload that its handler names.

    Of a task its arguments, by name. Values that the rules of redaction hide are left out.
    """
    if not handler.tags:
        return ()
    try:
        # What was sent: the handler may have changed the decoded payload.
        payload = decode(message.raw_payload)
        shown = redact(payload)
        if message.kind == Kind.TASK:
            payload, shown = _arguments(message.name, payload), _arguments(message.name, shown)
        return read_tags(payload, shown, handler.tags)
    except (PayloadRejected, TypeError, Undecodable):
        return ()  # no payload, or no call of this task
    except Exception as problem:  # noqa: BLE001 - a rule of the site; a failure must be recorded
        crash(
            "tags_failed",
            "the tags of message {name} {message_id} could not be read",
            problem,
            name=message.name,
            message_id=message.id,
        )
        return ()


def _arguments(path: str, payload: Any) -> dict[str, Any]:
    """Return the arguments of a task by name. Raises: PayloadRejected, TypeError."""
    task = lookup.find(path)
    if task is None:
        return {}
    args, kwargs = read_payload(payload)
    return bind(task.func, args, kwargs, takes_context=task.takes_context)
