"""What must not be shown: values whose keys name a secret."""

from __future__ import annotations

from typing import Any

from ..conf import get_settings

HIDDEN = "[redacted]"


def redact(value: Any) -> Any:
    """
    Return the value with secrets replaced, for pages, exports and logs; the row keeps them.

    DEADLETTER["REDACT"] is a list of words (a key that contains one is hidden) or a callable that
    gets the value and returns what may be shown.
    """
    rule = get_settings().redact
    if callable(rule):
        return rule(value)
    return _hidden(value, tuple(word.lower() for word in rule), 0)


def _hidden(value: Any, words: tuple[str, ...], depth: int) -> Any:
    if depth > 100:
        return HIDDEN
    if isinstance(value, dict):
        return {
            key: HIDDEN
            if any(word in str(key).lower() for word in words)
            else _hidden(child, words, depth + 1)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [_hidden(child, words, depth + 1) for child in value]
    return value
