"""Tags: named values of payloads, by which failures are counted and dead messages are found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .text import short_repr, storable_text

Tag = tuple[str, str]

#: Tags of a handler, and values of one tag in one message.
KEYS, VALUES = 10, 10
#: Characters of a key and of a value.
KEY_LIMIT, VALUE_LIMIT = 100, 200


def check_tag_names(names: Any) -> tuple[str, ...]:
    """Return the option `tags` of a handler: paths into its payload. Raises: ValueError."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"expected a list of paths into the payload, got {short_repr(names)}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= KEY_LIMIT or not all(name.split(".")):
            raise ValueError(
                f"expected a path such as 'customer.id', of at most {KEY_LIMIT} characters, got "
                f"{short_repr(name)}"
            )
        if name != storable_text(name):
            raise ValueError(f"{short_repr(name)} has characters that cannot be stored")
    found = tuple(dict.fromkeys(names))
    if len(found) > KEYS:
        raise ValueError(f"at most {KEYS} tags, got {len(found)}")
    return found


def read_tags(payload: Any, shown: Any, names: Iterable[str]) -> tuple[Tag, ...]:
    """
    Return the tags of a payload: the scalars at these paths, several where a list of them is.

    `shown` is the payload as people may see it: a value that is not the same there is left out.
    """
    tags: list[Tag] = []
    for name in names:
        found = _at(payload, name)
        if found is None or not _is_shown(found, _at(shown, name)):
            continue
        values = found if isinstance(found, list) else [found]
        texts = (text for value in values[: 10 * VALUES] if (text := _as_text(value)))
        tags += [(name, text) for text in list(dict.fromkeys(texts))[:VALUES]]
    return tuple(tags)


def clean_tags(value: Any) -> list[Tag]:
    """Return tags from outside, or from a stored history that may be damaged: [[key, value]…]."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    if not isinstance(value, list | tuple):
        return []
    return list(dict.fromkeys(_pairs(value[: KEYS * VALUES])))


def _pairs(items: Iterable[Any]) -> Iterator[Tag]:
    for item in items:
        if not isinstance(item, list | tuple) or len(item) != 2:
            continue
        key, value = _cut(item[0], KEY_LIMIT), _as_text(item[1])
        if isinstance(item[0], str) and key and value:
            yield key, value


def _at(payload: Any, path: str) -> Any:
    """Return the value at a path; None if there is none."""
    value = payload
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def _is_shown(value: Any, shown: Any) -> bool:
    return type(value) is type(shown) and bool(value == shown)


def _as_text(value: Any) -> str:
    """Return a scalar as text; "" for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return ""
    return _cut(value, VALUE_LIMIT)


def _cut(value: Any, limit: int) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python converts
        return ""
    return storable_text(text[:limit], limit=4 * limit)[:limit].strip()
