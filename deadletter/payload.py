"""Payloads: which values can be stored as JSON, and how they are read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise

from .exceptions import PayloadRejected, Undecodable
from .text import storable_text

#: Bytes of compact UTF-8 JSON that a payload may have.
SIZE_LIMIT = 256 * 1024
#: Levels of nested containers; a scalar has depth 0.
DEPTH_LIMIT = 64
#: Python refuses to parse longer integers (sys.set_int_max_str_digits), so we refuse to store them.
DIGITS_LIMIT = 4300

_INT_LIMIT = 10**DIGITS_LIMIT
#: Limits of a simple payload: number of values, characters of each, size of integers, and levels:
#: three are those of a task whose arguments are lists or dicts of leaves.
_FEW, _SHORT, _LARGE, _LEVELS = 50, 1_000, 2**63, 3
_LEAVES = frozenset((float, bool, type(None)))
_PLAIN = _LEAVES | {str, int}


#: Stored as the text that Django's JSON encoder writes; a datetime is a date, a Promise a lazy
#: translation.
_AS_TEXT = (date, time, timedelta, UUID, Decimal, Promise)

_as_text = DjangoJSONEncoder().default
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
# `default` is called only for values that JSON does not have: other payloads do not pay for it.
_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_text
)
_encode = _encoder.encode


def _simple_encoder() -> Callable[[Any], str]:
    """
    Return an encoder for simple payloads.

    `JSONEncoder.encode` creates one for every value, to detect cycles; a simple value has none.
    """
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    text = json.encoder.encode_basestring
    if make is None:  # a Python without C accelerators
        return _encode
    chunks = make(None, _encoder.default, text, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode_simple = _simple_encoder()


def accept(
    value: Any, *, field: str = "payload", limit: int = SIZE_LIMIT, depth: int = DEPTH_LIMIT
) -> str:
    """
    Return the value as compact JSON text.

    Both databases store every accepted value, and it reads back equal. A tuple reads back as a
    list; a date, time, duration, UUID or Decimal as the text that Django's JSON encoder writes.
    Raises PayloadRejected, which names the place, before anything large is built.
    """
    text = _simple(value, limit)
    if text is not None:
        return text
    _walk(value, field, limit, depth)
    # The walk has checked every leaf: the encoder finds neither NaN nor a cycle.
    text = _encode(value)
    size = len(text.encode())
    if size > limit:
        raise PayloadRejected(field, _too_large(size, limit))
    return text


def as_stored(value: Any, text: str) -> Any:
    """Return the value that `decode` would read from `text`, which `accept` made of `value`."""
    # Most payloads are a dict of a few leaves, which read back unchanged.
    if type(value) is dict and len(value) <= _FEW and _PLAIN.issuperset(map(type, value.values())):
        return value
    return decode(text)


def as_key(key: Any) -> Any:
    """Return a date, time, duration, UUID or Decimal as the text to store; other keys unchanged."""
    return _written(key, "payload key") if isinstance(key, _AS_TEXT) else key


def _simple(value: Any, limit: int) -> str | None:
    """
    Return the text of a simple payload, as most are; None: it needs a walk.

    This takes half the time of the walk, which builds a path for every leaf; only a refusal needs
    the paths.
    """
    if not is_simple(value):
        return None
    try:
        text = _encode_simple(value)
        size = len(text.encode())
    except ValueError:  # NaN, or a lone surrogate
        return None
    # A NUL is written like this, and so is a text about one: the walk tells them apart.
    return None if "\\u0000" in text or size > limit else text


def is_simple(value: Any) -> bool:
    """Return whether a value is a dict of few short leaves, all of exactly the types of JSON."""
    return type(value) is dict and _room_after(value, _FEW, _LEVELS) >= 0


def _room_after(node: Any, room: int, levels: int) -> int:
    """Return how many values there may be beside those of a container; -1: it is not simple."""
    room -= len(node)
    if room < 0 or levels == 0:
        return -1
    children = node
    if type(node) is dict:
        children = node.values()
        for key in node:
            if type(key) is not str or len(key) > _SHORT:
                return -1
    for child in children:
        kind = type(child)
        if kind is str:
            if len(child) > _SHORT:
                return -1
        elif kind is int:
            if not -_LARGE < child < _LARGE:
                return -1
        elif kind is dict or kind is list:
            room = _room_after(child, room, levels - 1)
            if room < 0:
                return -1
        elif kind not in _LEAVES:
            return -1
    return room


def decode(text: str | None) -> Any:
    """
    Return the value of a stored payload. Raises Undecodable, whatever is wrong with the text.

    `json.loads` raises RecursionError for deep nesting and ValueError for long integers. Both are
    properties of one row and must not affect others.
    """
    if text is None:
        return None
    try:
        value = _read(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise Undecodable(f"{type(error).__name__}: {str(error)[:200]}") from None
    # The depth that json.loads allows depends on the Python version; `accept` allows this much.
    if _may_be_deeper(text, DEPTH_LIMIT) and _is_deeper(value, DEPTH_LIMIT):
        raise Undecodable(f"nested deeper than {DEPTH_LIMIT} levels")
    return value


def _read(text: str) -> Any:
    """Do what `json.loads` does, in half its time for text that `accept` wrote."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    # White space around the value, or an error that json.loads describes.
    return value if end == len(text) else json.loads(text)


def _may_be_deeper(text: str, limit: int) -> bool:
    return len(text) > 2 * limit and text.count("[") + text.count("{") > limit


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        nodes = [node for node in level if isinstance(node, dict | list)]
        if not nodes:
            return False
        level = [
            child for node in nodes for child in (node.values() if isinstance(node, dict) else node)
        ]
    return True


def _walk(value: Any, field: str, limit: int, deepest: int) -> None:
    """Check every leaf, iteratively: a hostile value must not exhaust the stack."""
    budget = limit
    todo: list[tuple[Any, int, str]] = [(value, 0, field)]
    while todo:
        node, depth, path = todo.pop()
        if isinstance(node, str):
            budget -= len(node)
            if budget >= 0:  # the check copies the text
                _check_text(node, path)
        elif node is None or isinstance(node, bool):
            budget -= 4
        elif isinstance(node, int):
            if not -_INT_LIMIT < node < _INT_LIMIT:
                raise PayloadRejected(path, f"integers may have {DIGITS_LIMIT} digits at most")
            budget -= 1
        elif isinstance(node, float):
            if not math.isfinite(node):
                raise PayloadRejected(path, f"JSON has no {node!r}; send null or text instead")
            budget -= 1
        elif isinstance(node, dict | list | tuple):
            if depth >= deepest:
                raise PayloadRejected(field, f"nested deeper than {deepest} levels")
            budget -= 2 * len(node)
            if budget >= 0:
                todo.extend(_children(node, depth + 1, path, budget))
        elif isinstance(node, _AS_TEXT):
            text = _written(node, path)
            budget -= len(text)
            if budget >= 0:
                _check_text(text, path)
        else:
            raise PayloadRejected(
                path,
                f"{type(node).__name__} is not JSON; send text, numbers, booleans, null, dates, "
                "times, UUIDs, decimals, lists or dicts",
            )
        if budget < 0:
            raise PayloadRejected(field, _too_large(None, limit))


def _children(node: Any, depth: int, path: str, budget: int) -> list[tuple[Any, int, str]]:
    if not isinstance(node, dict):
        return [(child, depth, f"{path}[{n}]") for n, child in enumerate(node)]
    children: list[tuple[Any, int, str]] = []
    for key, child in node.items():
        if not isinstance(key, str):
            raise PayloadRejected(path, f"keys must be text, not {type(key).__name__}")
        if len(key) > budget:
            raise PayloadRejected(f"{path} key", "is too long to be stored")
        _check_text(key, f"{path} key")
        children.append((child, depth, f"{path}.{key[:40]}"))
    return children


def _written(node: Any, path: str) -> str:
    """Return the text that Django's JSON encoder writes for a value."""
    if isinstance(node, Decimal) and not node.is_finite():
        raise PayloadRejected(path, f"JSON has no {node}; send null or text instead")
    try:
        return str(_as_text(node))
    except Exception as error:  # noqa: BLE001 - a time with a zone, or a translation that fails
        problem = storable_text(error, limit=200)
        raise PayloadRejected(path, f"{type(node).__name__} cannot be sent: {problem}") from None


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise PayloadRejected(path, "the NUL character cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadRejected(path, "lone surrogates cannot be stored") from None


def _too_large(size: int | None, limit: int) -> str:
    found = f"{size:,} bytes" if size is not None else "more"
    return (
        f"larger than {limit:,} bytes as JSON ({found}). Store the data elsewhere and "
        "send a reference to it"
    )
