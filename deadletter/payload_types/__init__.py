"""
Payload types: the classes that handlers expect, and the check of a payload against them.

`@handler(payload=…)` registers a class under the name of its messages. A process knows the classes
of the handlers that it has imported; payloads of other names are not checked.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..exceptions import PayloadMismatch, PayloadRejected
from ..payload import DEPTH_LIMIT, SIZE_LIMIT, accept, as_key, as_stored
from ..text import storable_text
from .converters import Builder, Convert, Mismatch, is_typed_dict
from .libraries import dump_instance, library_converter, library_of

__all__ = ["PayloadType", "check", "of_handlers", "problems", "register_checker", "resolve_all"]

_LEAVES = frozenset((str, int, float, bool, type(None)))


class PayloadType:
    """A class whose instances are payloads: reads stored payloads, and stores instances."""

    def __init__(self, cls: Any) -> None:
        """Raises TypeError for a class whose instances cannot be read from JSON."""
        if not _is_usable(cls):
            raise TypeError(
                f"{cls!r:.200} cannot describe a payload. Give a class: a dataclass, a TypedDict, "
                "a pydantic model or a msgspec Struct"
            )
        self.cls = cls
        self._convert: Convert | None = None
        # A class that its module defines further down is found later, by `resolve`.
        with suppress(NameError):
            self._convert = self._build()

    def resolve(self) -> Convert:
        """Return the converter. Raises TypeError if an annotation cannot be resolved."""
        if self._convert is None:
            try:
                self._convert = self._build()
            except NameError as error:
                raise TypeError(
                    f"{self.cls.__name__}: {error}; an annotation uses it. Names in annotations "
                    "must exist in the module when messages are handled, not only for type checkers"
                ) from None
        return self._convert

    def read(self, value: Any) -> Any:
        """Return a decoded payload as the class. Raises PayloadMismatch, naming the place."""
        convert = self._convert or self.resolve()
        try:
            return convert(value)
        except Mismatch as error:
            raise PayloadMismatch(
                f"payload{error.place}",
                error.problem,
                value=error.value,
                origin=f"{self.cls.__module__}:{self.cls.__qualname__}{error.field}",
            ) from error.__cause__

    def accept(self, payload: Any, *, limit: int = SIZE_LIMIT) -> str:
        """
        Return a payload, or an instance of the class, as JSON text that reads as the class.

        Raises: PayloadMismatch, PayloadRejected.
        """
        value = self._plain(payload)
        text = accept(value, limit=limit)
        self.read(as_stored(value, text))
        return text

    def _plain(self, payload: Any) -> Any:
        if _is_record(payload) and (is_typed_dict(self.cls) or not isinstance(payload, self.cls)):
            expected, given = self.cls.__name__, type(payload).__name__
            raise PayloadMismatch("payload", f"expected {expected}, got {given}")
        return _plain(payload, 0)

    def _build(self) -> Convert:
        try:
            return Builder(library_converter).build(self.cls, self.cls.__name__).convert
        except RecursionError:
            raise TypeError(f"{self.cls.__name__}: an alias contains itself; use a class") from None


#: The payload types of the handlers that this process has imported, by message name.
of_handlers: dict[str, PayloadType] = {}


def check(kind: str, name: str, payload: Any) -> None:
    """
    Check a decoded payload of a message of this kind and name, as far as this process knows them.

    Raises PayloadMismatch, whatever the application's code raises.
    """
    checker = _checkers.get(kind)
    if checker is None:
        return
    try:
        checker(name, payload)
    except PayloadMismatch:
        raise
    except Exception as error:
        problem = storable_text(error, limit=500)
        raise PayloadMismatch("payload", f"{type(error).__name__}: {problem}") from error


def register_checker(kind: str, checker: Callable[[str, Any], object]) -> None:
    """Check payloads of a kind by calling `checker` with name and payload; it raises a mismatch."""
    _checkers[kind] = checker


def resolve_all() -> None:
    """Resolve the classes of all handlers. Raises TypeError for the first that cannot be."""
    for problem in problems():
        raise TypeError(problem)


def problems() -> Iterator[str]:
    """Yield why the class of a handler cannot be used, for each such handler."""
    for name, found in of_handlers.items():
        try:
            found.resolve()
        except TypeError as error:
            yield f"handler {name}: payload: {error}"


def _check_handler(name: str, payload: Any) -> None:
    found = of_handlers.get(name)
    if found is not None:
        found.read(payload)


#: By kind. Messages and activities have the same handlers.
_checkers: dict[str, Callable[[str, Any], object]] = {
    "message": _check_handler,
    "activity": _check_handler,
}


def _is_usable(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    return is_typed_dict(cls) or dataclasses.is_dataclass(cls) or library_of(cls) is not None


def _is_record(value: Any) -> bool:
    """True for an instance of a dataclass or of a class of a library."""
    cls = type(value)
    if cls in _LEAVES or cls in (dict, list, tuple):
        return False
    return not isinstance(value, type) and (
        dataclasses.is_dataclass(value) or library_of(cls) is not None
    )


def _plain(value: Any, depth: int) -> Any:
    """Return a value with instances as dicts, enumerations as values and sets as lists."""
    if type(value) in _LEAVES:
        return value
    if depth > DEPTH_LIMIT:
        raise PayloadRejected("payload", f"nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if not _is_record(value):
        return value
    if library_of(type(value)) is not None:
        try:
            return dump_instance(value)
        except (ValueError, TypeError) as error:
            raise PayloadRejected("payload", f"{type(value).__name__}: {error}") from error
    return {
        field.name: _plain(getattr(value, field.name), depth + 1)
        for field in dataclasses.fields(value)
        if field.init
    }


def _plain_key(key: Any) -> Any:
    return key.value if isinstance(key, enum.Enum) else as_key(key)
