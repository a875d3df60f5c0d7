"""Checks of ids, names and values for instances, before anything is stored."""

from __future__ import annotations

from typing import Any

from ..conf import NAME, get_settings
from ..exceptions import MessageRejected
from ..models.instance import LONGEST_ID
from ..payload import DEPTH_LIMIT, accept, as_stored
from ..text import short_repr
from .flow_registry import VERSION


def checked(field: str, value: Any) -> Any:
    """
    Return a value as it will be read back. Raises: MessageRejected if JSON cannot carry it.

    One level of depth is left for the event that it is part of.
    """
    limit = get_settings().payload_limit
    return as_stored(value, accept(value, field=field, limit=limit, depth=DEPTH_LIMIT - 1))


def instance_id(value: object) -> str:
    """Return the id of an instance. Raises: MessageRejected."""
    if isinstance(value, str) and NAME.fullmatch(value) and len(value) <= LONGEST_ID:
        return value
    raise MessageRejected(
        "instance",
        f"{short_repr(value)} is not an id: 1 to {LONGEST_ID} letters, digits and _ . : / @ + -, "
        "starting with a letter, digit or underscore",
    )


def name(field: str, value: object) -> str:
    """Return a name. Raises: MessageRejected naming the field."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise MessageRejected(
        field, f"{short_repr(value)} is not a name: letters, digits and _ . : / @ + -"
    )


def version(value: object) -> str:
    """Return the version of a flow. Raises: MessageRejected."""
    if isinstance(value, str) and VERSION.fullmatch(value):
        return value
    raise MessageRejected("version", f"{short_repr(value)} is not a version, such as 1.2.0")
