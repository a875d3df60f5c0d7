"""May this be said to an instance? Checked before anything is stored, naming the field."""

from __future__ import annotations

from typing import Any

from ..conf import NAME, get_settings
from ..exceptions import MessageRejected
from ..lifecycle.enqueue import checked_priority
from ..models.instance import LONGEST_ID
from ..payload import DEPTH_LIMIT, accept, as_stored
from ..text import short_repr
from .flows import VERSION


def checked(field: str, value: Any) -> Any:
    """Return it as it is read back. Refuse what JSON cannot carry in an event, a level of it."""
    limit = get_settings().payload_limit
    return as_stored(value, accept(value, field=field, limit=limit, depth=DEPTH_LIMIT - 1))


def instance_id(value: object) -> str:
    if isinstance(value, str) and NAME.fullmatch(value) and len(value) <= LONGEST_ID:
        return value
    raise MessageRejected(
        "instance",
        f"{short_repr(value)} is not an id: 1 to {LONGEST_ID} letters, digits and _ . : / @ + -, "
        "starting with a letter, digit or underscore",
    )


def name(field: str, value: object) -> str:
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise MessageRejected(
        field, f"{short_repr(value)} is not a name: letters, digits and _ . : / @ + -"
    )


def priority(value: object) -> int:
    return checked_priority(value)


def version(value: object) -> str:
    if isinstance(value, str) and VERSION.fullmatch(value):
        return value
    raise MessageRejected("version", f"{short_repr(value)} is not a version, such as 1.2.0")
