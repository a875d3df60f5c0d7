"""Redaction: values whose keys name a secret are replaced by "[redacted]"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conf import get_settings
from .exceptions import Undecodable
from .models import Damaged
from .payload import decode

HIDDEN = "[redacted]"


def redact(value: Any) -> Any:
    """
    Return the value with secrets replaced, for pages, command output and exports.

    The row is not changed.

    DEADLETTER["REDACT"] is a list of words (the values of keys that contain one are hidden) or a
    callable that gets the value and returns what may be shown. A text that is JSON is hidden as a
    whole if it has such a key. A payload that cannot be decoded has no keys: it is hidden if it
    contains such a word.
    """
    rule = get_settings().redact
    text = value.text if isinstance(value, Damaged) else None
    if callable(rule):
        return _apply_rule(rule, value if text is None else text)
    words = tuple(word.lower() for word in rule)
    if text is not None:
        return HIDDEN if any(word in text.lower() for word in words) else text
    return _hidden(value, words, 0)


def redact_tag(key: str, value: str) -> str:
    """Return the value of a tag, or "[redacted]" if the rule hides it at its place in a payload."""
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    shown = redact(nested)
    for part in key.split("."):
        if not isinstance(shown, dict) or part not in shown:
            return HIDDEN
        shown = shown[part]
    return value if shown == value else HIDDEN


def redact_history(history: Any) -> list[dict[str, Any]]:
    """Return the history of a message; payloads that an edit replaced are redacted."""
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


def _apply_rule(rule: Callable[[Any], Any], value: Any) -> Any:
    try:
        return rule(value)
    except Exception as error:  # noqa: BLE001 - a page must open, and leak nothing
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
    """Return whether a text is JSON with a key to hide, such as a stored request body."""
    if text.lstrip()[:1] not in ("{", "[", '"') or len(text) < 2:
        return False
    # Decode only if a word is there; it may be written with escapes.
    lower = text.lower()
    if "\\u" not in lower and not any(word in lower for word in words):
        return False
    try:
        value = decode(text)
    except Undecodable:
        return False
    return bool(_hidden(value, words, depth + 1) != value)
