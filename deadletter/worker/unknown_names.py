"""
A warning for developers: a message was sent whose name has no handler.

In production another deployment may have the handler, and the messages wait for it. On a
developer's machine it is nearly always a misspelling, which only the worker's log would show.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable

from ..descriptions import describe
from ..instances import flows
from ..logs import event
from .registry import discover, registry

#: The most names that are warned of.
MOST = 1_000

_warned: set[str] = set()
_is_discovered = False


def check(names: Iterable[str]) -> None:
    """Warn once of each name without a handler. Never raises: a send must not fail."""
    try:
        new = [name for name in dict.fromkeys(names) if name not in _warned]
        if new and len(_warned) < MOST:
            _look_for_handlers()
            for name in new:
                if registry.get(name) is None and not flows.versions(name):
                    _warned.add(name)
                    _warn(name)
    except Exception as error:  # noqa: BLE001 - a module of handlers may raise anything
        _warned.update(names)
        event(
            logging.WARNING,
            "handlers_unreadable",
            "handlers cannot be imported, so names of sent messages are not checked: {error}",
            error=describe(error).text,
        )


def _look_for_handlers() -> None:
    global _is_discovered
    if not _is_discovered:
        # Set first: a module of handlers may send when it is imported.
        _is_discovered = True
        discover()


def _warn(name: str) -> None:
    close = difflib.get_close_matches(name, registry.names(), n=1, cutoff=0.75)
    event(
        logging.WARNING,
        "name_unknown",
        "message {name} was sent, and no handler in this project has that name{meant}. It waits, "
        "and becomes poison in the end, unless a worker elsewhere has a handler",
        name=name,
        meant=f" (did you mean {close[0]}?)" if close else "",
    )
