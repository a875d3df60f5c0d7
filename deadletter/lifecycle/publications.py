"""
Publications: handlers and tasks whose return values are published.

The value becomes a message of the outbox in the transaction that completes the message of the
handler: both are committed, or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from .. import tracing
from ..conf import get_settings
from ..exceptions import MessageRejected
from ..payload import accept
from ..status import Status
from ..text import short_repr
from .enqueue import check_label, check_name
from .outbox import check_broker, lane_of
from .values import Claimed, PreparedEvent

#: What errors call the value.
_RETURNED = "return value"
_EVENT_STORED = int(Status.EVENT_STORED)
_formatter = Formatter()


@dataclass(frozen=True)
class Publication:
    """
    Where a handler's return value is published.

    `key` is a template over the value: "order-{order.id}". Without it the key is the stream of the
    handler's message, if that has one.
    """

    topic: str
    key: str | None = None
    broker: str = "default"

    def __post_init__(self) -> None:
        """Raises: ValueError naming the field."""
        check_name("topic", self.topic)
        if self.key is not None:
            _check_template(self.key)
        broker: Any = self.broker
        if not isinstance(broker, str) or not broker:
            raise ValueError(f"broker: expected a name, got {short_repr(broker)}")


def read_publication(value: Any) -> Publication | None:
    """Return the option `publish`: a topic, a Publication, or None. Raises: ValueError."""
    if value is None or isinstance(value, Publication):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected a topic or a Publication, got {short_repr(value)}")
    return Publication(value)


def prepare_event(publication: Publication, message: Claimed, value: Any) -> PreparedEvent | None:
    """
    Check what a handler returned and return the message for the outbox; None: there is none.

    One message has one event: it is stored with the stage EVENT_STORED, if the handler finishes
    that stage, and otherwise when the message ends. Raises: MessageRejected naming what is wrong.
    """
    if message.stage:
        if not message.stage & _EVENT_STORED:
            return None
        if value is None:
            raise MessageRejected(
                _RETURNED, "the stage EVENT_STORED needs the event: return what is to be published"
            )
    elif value is None or message.status & _EVENT_STORED:
        return None
    check_broker(publication.broker)
    key = message.stream if publication.key is None else _fill(publication.key, value)
    trace = tracing.context()
    columns = {
        "topic": publication.topic,
        "payload": accept(value, field=_RETURNED, limit=get_settings().payload_limit),
        "key": None if key is None else check_label("key", key),
        "headers": None if trace is None else accept(trace, field="headers"),
        "lane": lane_of(key),
    }
    return PreparedEvent(publication.broker, columns)


def _check_template(template: Any) -> None:
    if not isinstance(template, str) or not template:
        raise ValueError(f"key: expected a text such as 'order-{{id}}', got {short_repr(template)}")
    try:
        parts = list(_formatter.parse(template))
    except ValueError as error:
        raise ValueError(f"key: {template!r} is not a template: {error}") from None
    for _text, name, form, conversion in parts:
        if name is None:
            continue
        if form or conversion or not all(name.split(".")) or "[" in name:
            raise ValueError(
                f"key: {template!r} may only name fields of the value, such as {{id}} or "
                "{order.id}"
            )


def _fill(template: str, value: Any) -> str:
    parts = []
    for text, name, _form, _conversion in _formatter.parse(template):
        parts.append(text)
        if name is not None:
            parts.append(_field(template, name, value))
    return "".join(parts)


def _field(template: str, name: str, value: Any) -> str:
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise MessageRejected(
                "key", f"the return value has no field {name!r}, which {template!r} needs"
            )
        value = value[part]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise MessageRejected(
            "key", f"{name}: expected text or a whole number, got {short_repr(value)}"
        )
    return str(value)
