"""Which messages does the caller say it holds? As the statements compare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Held(NamedTuple):
    """Messages in the order of their ids: rows are locked in that order."""

    ids: list[int]
    #: Lease and id of each as one text, which one comparison finds among many.
    pairs: list[str]


def held(items: Sequence[Any]) -> Held:
    """Read reports, each with an id and the token it was claimed under."""
    # A batch has few tokens and many messages.
    safe = {token: _safe(token) for token in {item.token for item in items}}
    return _held({item.id: safe[item.token] for item in items})


def held_under(tokens: Mapping[int, str]) -> Held:
    return _held({id: _safe(token) for id, token in tokens.items()})


def _held(tokens: Mapping[int, str]) -> Held:
    ids = sorted(tokens)
    return Held(ids, [f"{tokens[id]}-{id}" for id in ids])


def _safe(token: object) -> str:
    """A token nobody was given matches nothing, whatever it looks like."""
    text = str(token)
    return text if text.isalnum() and text.isascii() and len(text) <= 32 else ""
