"""
Hidden values in edited payloads: put back where the editor left their markers.

Pages, `show` and `export` replace secrets by "[redacted]". An editor of such a payload leaves the
marker where the value shall stay. A hidden value returns only to its own place: under the same
keys, and inside a list to the element whose visible content is the same. Content that was shown
at another place has moved. Everything else is refused, because a guess would give one customer the
card number of another.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

from ..exceptions import PayloadRejected
from ..redaction import HIDDEN, redact


class HiddenValueMoved(PayloadRejected):
    """The marker at `path` cannot be matched with a hidden value."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            "payload",
            f"{path}: the hidden value for this placeholder is ambiguous, because the content "
            "around it was changed, copied or moved. Write the value instead of its placeholder.",
        )


def restore(edited: Any, original: Any) -> Any:
    """
    Put back the values that `redact` hid from the editor of a payload.

    {"to": 2, "token": "[redacted]"}, edited from {"to": 1, "token": "[redacted]"}, keeps the token.
    Raises HiddenValueMoved for a marker that cannot be matched.
    """
    shown = redact(original)
    return _Restore(shown, original).value(edited, shown, original, "payload")


def has_marker(value: Any) -> bool:
    """Return whether a text in the value is, or contains, the marker of a secret."""
    return _find(value, frozenset(), "") is not None


def find_marker(value: Any, path: str) -> str | None:
    """Return the path of the first marker in a value, or None."""
    return _find(value, frozenset(), path)


def refuse_markers(value: Any) -> None:
    """Refuse a payload that contains a marker, if there is no original to restore it from."""
    found = _find(value, frozenset(), "payload")
    if found is not None:
        raise HiddenValueMoved(found)


def same(one: Any, other: Any) -> bool:
    """Compare as JSON: in Python, 1, 1.0 and True are equal."""
    return _text(one) == _text(other)


class _Restore:
    """One walk over a payload in three forms: as edited, as shown, as stored."""

    def __init__(self, shown: Any, original: Any) -> None:
        self._masks = frozenset(_masks(shown, original))
        self._hiding = frozenset(_hiding(shown, original))

    def value(self, edited: Any, shown: Any, original: Any, path: str) -> Any:
        if same(edited, shown):
            return original
        if isinstance(edited, dict | list) and _text(edited) in self._hiding:
            # {"1": Alice, "2": Bob}, swapped: the content under "1" was under "2".
            raise HiddenValueMoved(_find(edited, self._masks, path) or path)
        if isinstance(edited, dict) and isinstance(shown, dict) and isinstance(original, dict):
            return self._dict(edited, shown, original, path)
        if isinstance(edited, list) and isinstance(shown, list) and isinstance(original, list):
            return self._list(edited, shown, original, path)
        return self._typed(edited, path)

    def _typed(self, edited: Any, path: str) -> Any:
        """Return a value as the editor wrote it; it must not contain a marker."""
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
        # A rule of the site may leave out whole keys: the editor did not see and delete them.
        unseen = {key: value for key, value in original.items() if key not in shown}
        return found | {key: value for key, value in unseen.items() if key not in found}

    def _list(self, edited: list[Any], shown: list[Any], original: list[Any], path: str) -> Any:
        if len(shown) != len(original):  # a rule of the site left out elements: nothing to pair
            raise HiddenValueMoved(path)
        before, after = _places(shown), _places(edited)
        changed = [n for text, places in before.items() if text not in after for n in places]
        in_place = _in_place(shown, edited)
        found = []
        for n, element in enumerate(edited):
            text = _text(element)
            place = f"{path}[{n}]"
            if text in before:
                pair = _Pair(n, after[text], before[text], in_place)
                found.append(self._paired(pair, shown, original, place))
                continue
            for other in changed:
                kept = _kept_mask(element, shown[other], original[other], place)
                if kept is not None:
                    raise HiddenValueMoved(kept)
            found.append(self._typed(element, place))
        return found

    def _paired(self, pair: _Pair, shown: list[Any], original: list[Any], path: str) -> Any:
        """Return the original of an element whose visible content was not changed."""
        first = pair.before[0]
        values = {_text(original[place]) for place in pair.before}
        hides = values != {_text(shown[first])}
        if not hides:
            return shown[first]
        if len(values) == 1 and len(pair.after) <= len(pair.before):
            return original[first]
        # The elements look the same; as long as none moves, each keeps its own hidden value.
        if pair.in_place and pair.after == pair.before:
            return original[pair.n]
        raise HiddenValueMoved(path)


class _Pair(NamedTuple):
    """An element of an edited list, and the places of the elements that look the same."""

    n: int
    after: list[int]
    before: list[int]
    #: True if every element of the list is at its old place, or new.
    in_place: bool


def _in_place(shown: list[Any], edited: list[Any]) -> bool:
    """
    Return whether no element has moved.

    ["Alice", {"card": …}, "Bob", {"card": …}]: swapping the names gives the cards to others.
    """
    if len(shown) != len(edited):
        return False
    texts = {_text(value) for value in shown}
    pairs = zip(shown, edited, strict=True)
    return all(same(one, other) or _text(other) not in texts for one, other in pairs)


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


def _hiding(shown: Any, original: Any) -> list[str]:
    """Return every dict and list, as it was shown, in which something is hidden."""
    if same(shown, original) or not isinstance(shown, dict | list):
        return []
    found = [_text(shown)]
    if isinstance(shown, dict) and isinstance(original, dict):
        for key in shown.keys() & original.keys():
            found += _hiding(shown[key], original[key])
    elif isinstance(shown, list) and isinstance(original, list) and len(shown) == len(original):
        for one, other in zip(shown, original, strict=True):
            found += _hiding(one, other)
    return found


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for child in value.values() for text in _texts(child)]
    if isinstance(value, list):
        return [text for child in value for text in _texts(child)]
    return [value] if isinstance(value, str) and value.strip() else []


def _kept_mask(edited: Any, shown: Any, original: Any, path: str) -> str | None:
    """Return where a changed element still has a marker under its own keys."""
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
    """Return the path of the first marker in a value, or None."""
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
