"""
What an edited payload keeps of the values that were hidden from its editor.

Pages, `show` and `export` replace secrets by "[redacted]". Whoever edits such a payload leaves the
marker where the value shall stay. A hidden value returns only to where it came from: under the same
keys, and inside a list under the element whose visible content is the same. Everything else is
refused, because a guess would give one customer the card number of another.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from ..exceptions import PayloadRejected
from .redact import HIDDEN, redact


class HiddenValueMoved(PayloadRejected):
    """It cannot be said which hidden value belongs to the marker at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            "payload",
            f"{path}: it cannot be said which hidden value belongs here, because what surrounds it "
            "was changed, copied or moved. Write the value instead of its placeholder.",
        )


def restore(edited: Any, original: Any) -> Any:
    """
    Put back what `redact` hid from the editor of a payload.

    {"to": 2, "token": "[redacted]"}, edited from {"to": 1, "token": "[redacted]"}, keeps the token.
    Raises HiddenValueMoved for a marker that cannot be matched.
    """
    shown = redact(original)
    return _Restoring(shown, original).value(edited, shown, original, "payload")


def has_marker(value: Any) -> bool:
    """Say whether a text in the value is, or contains, what `redact` writes for a secret."""
    return _find(value, frozenset(), "") is not None


def refuse_markers(value: Any) -> None:
    """Refuse a payload with a marker in it where there is nothing to put in its place."""
    found = _find(value, frozenset(), "payload")
    if found is not None:
        raise HiddenValueMoved(found)


def same(one: Any, other: Any) -> bool:
    """Compare as JSON: to Python, 1, 1.0 and True are equal."""
    return _text(one) == _text(other)


class _Restoring:
    """One walk over a payload as it was edited, as it was shown and as it is stored."""

    def __init__(self, shown: Any, original: Any) -> None:
        self._masks = frozenset(_masks(shown, original))

    def value(self, edited: Any, shown: Any, original: Any, path: str) -> Any:
        if same(edited, shown):
            return original
        if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(original, dict):
            return self._dict(edited, shown, original, path)
        if isinstance(edited, list) and isinstance(shown, list) and isinstance(original, list):
            return self._list(edited, shown, original, path)
        return self._typed(edited, path)

    def _typed(self, edited: Any, path: str) -> Any:
        """Take a value as it was written; it must not contain a placeholder."""
        found = _find(edited, self._masks, path)
        if found is not None:
            raise HiddenValueMoved(found)
        return edited

    def _dict(
        self, edited: dict[str, Any], shown: dict[str, Any], original: dict[str, Any], path: str
    ) -> dict[str, Any]:
        found = {
            key: self.value(value, shown[key], original[key], f"{path}.{key}")
            if key in shown and key in original
            else self._typed(value, f"{path}.{key}")
            for key, value in edited.items()
        }
        # A rule of the site may leave out whole keys: nobody deleted what nobody saw.
        unseen = {key: value for key, value in original.items() if key not in shown}
        return found | {key: value for key, value in unseen.items() if key not in found}

    def _list(self, edited: list[Any], shown: list[Any], original: list[Any], path: str) -> Any:
        if len(shown) != len(original):  # a rule of the site left out elements: no pairs
            raise HiddenValueMoved(path)
        before, after = _places(shown), _places(edited)
        changed = [n for text, places in before.items() if text not in after for n in places]
        found = []
        for n, element in enumerate(edited):
            text = _text(element)
            place = f"{path}[{n}]"
            if text in before:
                found.append(self._paired(n, after[text], before[text], shown, original, place))
                continue
            for other in changed:
                kept = _kept_mask(element, shown[other], original[other], place)
                if kept is not None:
                    raise HiddenValueMoved(kept)
            found.append(self._typed(element, place))
        return found

    def _paired(
        self,
        n: int,
        after: list[int],
        before: list[int],
        shown: list[Any],
        original: list[Any],
        path: str,
    ) -> Any:
        """Return the original of an element whose visible content is as it was shown."""
        values = {_text(original[place]) for place in before}
        hides = values != {_text(shown[before[0]])}
        if not hides:
            return shown[before[0]]
        if len(values) == 1 and len(after) <= len(before):
            return original[before[0]]
        if after == before:  # they look the same to the editor, and none of them has moved
            return original[n]
        raise HiddenValueMoved(path)


def _places(values: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for n, value in enumerate(values):
        found[_text(value)].append(n)
    return dict(found)


def _masks(shown: Any, original: Any) -> list[str]:
    """Return the texts that were shown instead of hidden values."""
    if same(shown, original):
        return []
    if isinstance(shown, dict) and isinstance(original, dict):
        return [
            text
            for key, value in shown.items()
            for text in (_masks(value, original[key]) if key in original else _texts(value))
        ]
    if isinstance(shown, list) and isinstance(original, list) and len(shown) == len(original):
        pairs = zip(shown, original, strict=True)
        return [text for value, other in pairs for text in _masks(value, other)]
    return _texts(shown)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for child in value.values() for text in _texts(child)]
    if isinstance(value, list):
        return [text for child in value for text in _texts(child)]
    return [value] if isinstance(value, str) and value.strip() else []


def _kept_mask(edited: Any, shown: Any, original: Any, path: str) -> str | None:
    """Return where a changed element still has, under its own keys, what stood for a secret."""
    if same(shown, original):
        return None
    if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(original, dict):
        pairs = [(f"{path}.{key}", key) for key in edited if key in shown and key in original]
        found = (_kept_mask(edited[key], shown[key], original[key], at) for at, key in pairs)
        return next((at for at in found if at is not None), None)
    if isinstance(edited, list) and isinstance(shown, list) and isinstance(original, list):
        triples = enumerate(zip(edited, shown, original, strict=False))
        found = (_kept_mask(*triple, f"{path}[{n}]") for n, triple in triples)
        return next((at for at in found if at is not None), None)
    return path if same(edited, shown) else None


def _find(value: Any, masks: frozenset[str], path: str) -> str | None:
    """Return the place of the first placeholder in a value, or None."""
    if isinstance(value, dict):
        found = (_find(child, masks, f"{path}.{key}") for key, child in value.items())
        return next((at for at in found if at is not None), None)
    if isinstance(value, list | tuple):
        found = (_find(child, masks, f"{path}[{n}]") for n, child in enumerate(value))
        return next((at for at in found if at is not None), None)
    if not isinstance(value, str):
        return None
    # A rule that raised is shown as "[redacted: the rule raised …]".
    is_marker = HIDDEN in value or value.startswith(f"{HIDDEN[:-1]}:") or value in masks
    return path if is_marker else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)  # a rule of the site may show anything
