"""What must not be shown: values whose keys name a secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..conf import get_settings
from ..exceptions import Undecodable
from ..models import Damaged
from ..payload import decode

HIDDEN = "[redacted]"


def redact(value: Any) -> Any:
    """
    Return the value with secrets replaced, for pages, exports and logs; the row keeps them.

    DEADLETTER["REDACT"] is a list of words (a key that contains one is hidden) or a callable that
    gets the value and returns what may be shown. A text that is JSON is hidden as a whole when such
    a key is in it. What cannot be decoded has no keys: it is hidden when such a word is in it.
    """
    rule = get_settings().redact
    text = value.text if isinstance(value, Damaged) else None
    if callable(rule):
        return _asked(rule, value if text is None else text)
    words = tuple(word.lower() for word in rule)
    if text is not None:
        return HIDDEN if any(word in text.lower() for word in words) else text
    return _hidden(value, words, 0)


def redact_history(history: Any) -> list[dict[str, Any]]:
    """Return the attempts of a message; payloads that an edit replaced are redacted."""
    if not isinstance(history, list):  # a damaged row
        return []
    entries = [dict(entry) for entry in history if isinstance(entry, dict)]
    for entry in entries:
        if "original_payload" in entry:
            entry["original_payload"] = redact(_decoded(entry["original_payload"]))
    return entries


def _decoded(text: Any) -> Any:
    try:
        return decode(text)
    except Undecodable as error:
        return Damaged(str(text), str(error))


def _asked(rule: Callable[[Any], Any], value: Any) -> Any:
    try:
        return rule(value)
    except Exception as error:  # noqa: BLE001 - the page of a record must open, and leak nothing
        return f"[redacted: the rule raised {type(error).__name__}]"


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
    if isinstance(value, str) and _is_json_with_secrets(value, words, depth):
        return HIDDEN
    return value


def _is_json_with_secrets(text: str, words: tuple[str, ...], depth: int) -> bool:
    """Say whether a text is JSON with a key to hide: a stored body of a request, for one."""
    if text.lstrip()[:1] not in ("{", "[", '"') or len(text) < 2:
        return False
    # Decoding is only worth it if a word is there; it may be written with escapes.
    lower = text.lower()
    if "\\u" not in lower and not any(word in lower for word in words):
        return False
    try:
        value = decode(text)
    except Undecodable:
        return False
    return bool(_hidden(value, words, depth + 1) != value)
