"""
Converters: JSON values become what annotations say, for dataclasses and TypedDicts.

A converter is built once from an annotation. A value that does not fit is a `Mismatch`, to which
the containers around the value add its place on the way out: values that fit pay nothing for it.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_duration

from ..text import storable_text

#: Characters of a value, of a key and of an application's text that are quoted.
_QUOTED, _KEY, _TEXT = 60, 40, 500
#: How many fields or choices a text lists.
_LISTED = 10

Convert = Callable[[Any], Any]


class Mismatch(Exception):
    """A value that does not fit: what is wrong, and where, seen from the outermost container."""

    def __init__(self, problem: str, *, value: str = "", place: str = "", field: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        #: The end of the sentence, with the value.
        self.value = value
        #: ".items[2].quantity"
        self.place = place
        #: ".items[].quantity": without indices and keys of the payload.
        self.field = field

    @classmethod
    def of(cls, expected: str, value: Any) -> Mismatch:
        kind = "None" if value is None else type(value).__name__
        return cls(f"expected {expected}, got {kind}", value=quoted(value))

    def add_place(self, place: str, field: str) -> None:
        """Add the place in a container in front."""
        self.place = place + self.place
        self.field = field + self.field


def quoted(value: Any) -> str:
    """Return the end of a sentence that quotes a value: ` "x"`; nothing for a container or None."""
    if not isinstance(value, str | int | float):
        return ""
    # Cut first: a text may have 256 KiB.
    shown = value[: _QUOTED + 1] if isinstance(value, str) else value
    text = json.dumps(shown, ensure_ascii=False)
    return f" {text if len(text) <= _QUOTED else text[:_QUOTED] + '…'}"


def as_place(key: str) -> str:
    """Return a key of a dict as a part of a place."""
    return f".{key[:_KEY]}"


@dataclasses.dataclass(frozen=True)
class Converter:
    """Reads JSON values as one type. `name` is the type in error texts."""

    name: str
    convert: Convert


class RecordConverter:
    """Reads a dict as a dataclass or a TypedDict. Its fields are set later: classes may nest."""

    def __init__(self, name: str, make: Callable[[dict[str, Any]], Any]) -> None:
        self.name = name
        self.fields: dict[str, Convert] = {}
        self.required: frozenset[str] = frozenset()
        self._make = make

    def convert(self, value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch.of(self.name, value)
        fields = self.fields
        if not value.keys() <= fields.keys():
            self._refuse_unknown(value)
        if not value.keys() >= self.required:
            name = next(name for name in fields if name in self.required and name not in value)
            problem = f"is missing; {self.name} needs it"
            raise Mismatch(problem, place=f".{name}", field=f".{name}")
        found = {}
        name = ""
        try:
            for name, item in value.items():
                found[name] = fields[name](item)
        except Mismatch as error:
            error.add_place(f".{name}", f".{name}")
            raise
        try:
            return self._make(found)
        except ValidationError as error:
            raise Mismatch(_application_text("; ".join(error.messages))) from error
        except (ValueError, TypeError) as error:
            raise Mismatch(_application_text(error)) from error

    def _refuse_unknown(self, value: dict[str, Any]) -> None:
        key = next(key for key in value if key not in self.fields)
        there = _listed(self.fields, ", ")
        # The field stays empty: a key of the payload must not make a group of its own.
        raise Mismatch(f"is no field of {self.name} (fields: {there})", place=as_place(key))


def _application_text(value: object) -> str:
    return storable_text(value, limit=_TEXT) or "is refused"


class Builder:
    """
    Builds the converters of one class and of the classes in its annotations.

    Raises TypeError for an annotation that JSON cannot carry, NameError for one that cannot be
    resolved (yet).
    """

    def __init__(self, library: Callable[[type], Converter | None]) -> None:
        #: Returns the converter of a class that belongs to a validation library, else None.
        self._library = library
        self._records: dict[type, RecordConverter] = {}

    def build(self, hint: Any, where: str) -> Converter | RecordConverter:
        """Return the converter for an annotation; `where` names it in errors."""
        hint = unwrapped(hint)
        if hint is Any or hint is object:
            return Converter("anything", _as_it_is)
        if hint in _PLAIN:
            return _PLAIN[hint]
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Literal:
            return _choices((_json_form(arg, where), arg) for arg in args)
        if origin in (typing.Union, types.UnionType):
            return self._union(args, where)
        kind = origin or hint
        if kind in _LISTS:
            return _collection(self._element(args, where), _LISTS[kind])
        if kind is tuple:
            return self._tuple(args, where)
        if kind in _DICTS:
            return self._dict(args, where)
        if origin is None and isinstance(hint, type):
            found = self._of_class(hint, where)
            if found is not None:
                return found
        raise TypeError(f"{where}: {_shown(hint)} cannot be read from JSON. {_USABLE}")

    def _element(self, args: tuple[Any, ...], where: str) -> Convert:
        return self.build(args[0] if args else Any, where).convert

    def _tuple(self, args: tuple[Any, ...], where: str) -> Converter:
        if not args or args[-1] is Ellipsis:
            return _collection(self._element(args, where), tuple)
        return _fixed_tuple([self.build(arg, where).convert for arg in args])

    def _dict(self, args: tuple[Any, ...], where: str) -> Converter:
        key, value = args if args else (Any, Any)
        key = unwrapped(key)
        if key not in _TEXT_KEYS and not _is_enum(key) and typing.get_origin(key) != typing.Literal:
            raise TypeError(f"{where}: keys are text in JSON; {_shown(key)} cannot be a key")
        return _mapping(self.build(key, where).convert, self.build(value, where).convert)

    def _union(self, args: tuple[Any, ...], where: str) -> Converter:
        # An int stays an int, in whichever order the types are written; None is found at once.
        ordered = sorted(args, key=lambda arg: (arg is types.NoneType, arg is float))
        members = [self.build(arg, where) for arg in ordered]
        return _any_of(members, accepts_none=types.NoneType in args)

    def _of_class(self, cls: type, where: str) -> Converter | RecordConverter | None:
        if _is_enum(cls):
            return _enumeration(cls, where)
        if (found := self._library(cls)) is not None:
            return found
        if is_typed_dict(cls) or dataclasses.is_dataclass(cls):
            return self._record(cls)
        return None

    def _record(self, cls: type) -> RecordConverter:
        if cls in self._records:
            return self._records[cls]
        is_dict = is_typed_dict(cls)
        record = RecordConverter(cls.__name__, _as_it_is if is_dict else lambda found: cls(**found))
        # Known before its fields are read: a class may contain itself.
        self._records[cls] = record
        hints = typing.get_type_hints(cls, include_extras=True)
        names = _keys_of(cls, hints) if is_dict else _fields_of(cls)
        record.fields = {
            name: self.build(hints[name], f"{cls.__name__}.{name}").convert for name in names
        }
        record.required = frozenset(name for name, is_required in names.items() if is_required)
        return record


def is_typed_dict(cls: Any) -> bool:
    """True for a TypedDict of typing or typing_extensions, which differ before Python 3.13."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def _keys_of(cls: Any, hints: dict[str, Any]) -> dict[str, bool]:
    """
    Return the keys of a TypedDict and whether each is required.

    Annotations that were text when the class was made hide Required and NotRequired from
    `__required_keys__`, so the resolved annotation decides.
    """
    found = {}
    for name, hint in hints.items():
        is_required = name in cls.__required_keys__
        while (origin := typing.get_origin(hint)) is not None and _is_qualifier(origin):
            if origin in (typing.Required, typing.NotRequired):
                is_required = origin is typing.Required
            hint = typing.get_args(hint)[0]
        found[name] = is_required
    return found


def _fields_of(cls: Any) -> dict[str, bool]:
    """Return the fields of a dataclass that its constructor takes, and whether each is required."""
    found = {
        field.name: field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(cls)
        if field.init
    }
    for parameter in inspect.signature(cls).parameters.values():
        is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_variable and parameter.name not in found:
            raise TypeError(
                f"{cls.__name__}.{parameter.name}: an InitVar is no field and is not stored; "
                "give it a default"
            )
    return found


def unwrapped(hint: Any) -> Any:
    """Return an annotation without what JSON does not know: Annotated, NewType, aliases, …"""
    while True:
        origin = typing.get_origin(hint)
        if origin is not None and _is_qualifier(origin):
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":  # `type X = …`, since Python 3.12
            hint = hint.__value__
        else:
            return types.NoneType if hint is None else hint


def _is_qualifier(origin: Any) -> bool:
    # ReadOnly by name: typing has it since Python 3.13, typing_extensions before.
    qualifiers = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final)
    return origin in qualifiers or getattr(origin, "_name", "") == "ReadOnly"


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def _shown(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


def _as_it_is(value: Any) -> Any:
    return value


def _exactly(kind: type) -> Converter:
    """Read one type of JSON. A bool is no int: `isinstance` would take it for one."""
    name = "None" if kind is types.NoneType else kind.__name__

    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Mismatch.of(name, value)

    return Converter(name, convert)


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    raise Mismatch.of("float", value)


def _parsed(kind: type, parse: Callable[[str], Any]) -> Converter:
    """Read the text that `send` stores for a value that JSON does not have."""

    def convert(value: Any) -> Any:
        if type(value) is str:
            try:
                found = parse(value)
            except (ValueError, OverflowError, InvalidOperation):
                found = None
            if found is not None:
                return found
        raise Mismatch.of(kind.__name__, value)

    return Converter(kind.__name__, convert)


def _read_datetime(text: str) -> datetime | None:
    # fromisoformat reads a date as midnight; the text of a datetime has a time.
    return datetime.fromisoformat(text) if len(text) > len("2026-01-31") else None


def _read_time(text: str) -> time | None:
    found = time.fromisoformat(text)
    return found if found.tzinfo is None else None


def _decimal(value: Any) -> Decimal:
    # A float is refused: it is not the number that its sender wrote.
    if type(value) is int:
        return Decimal(value)
    if type(value) is str:
        try:
            found = Decimal(value)
        except InvalidOperation:
            found = Decimal("NaN")
        if found.is_finite():
            return found
    raise Mismatch.of("Decimal", value)


_PLAIN: dict[Any, Converter] = {
    **{kind: _exactly(kind) for kind in (bool, int, str, types.NoneType)},
    float: Converter("float", _float),
    Decimal: Converter("Decimal", _decimal),
    date: _parsed(date, date.fromisoformat),
    datetime: _parsed(datetime, _read_datetime),
    time: _parsed(time, _read_time),
    timedelta: _parsed(timedelta, parse_duration),
    UUID: _parsed(UUID, UUID),
}
_TEXT_KEYS = {Any, str, date, datetime, time, timedelta, UUID, Decimal}
_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    set: set,
    abc.MutableSet: set,
    abc.Set: frozenset,
    frozenset: frozenset,
}
_DICTS = {dict, abc.Mapping, abc.MutableMapping}
_USABLE = (
    "Use dataclasses, TypedDicts, enumerations, text, numbers, bool, None, dates, times, UUID, "
    "Decimal, and list, tuple, set, dict, Literal and unions of these"
)


def _collection(element: Convert, make: Callable[[list[Any]], Any]) -> Converter:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch.of("list", value)
        found: list[Any] = []
        try:
            for item in value:
                found.append(element(item))  # noqa: PERF401 - its length is the place of a mismatch
        except Mismatch as error:
            error.add_place(f"[{len(found)}]", "[]")
            raise
        if make is list:
            return found
        try:
            return make(found)
        except TypeError as error:  # the elements of a set
            raise Mismatch(f"cannot be a set: {error}") from None

    return Converter("list", convert)


def _fixed_tuple(elements: list[Convert]) -> Converter:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch.of("list", value)
        if len(value) != len(elements):
            raise Mismatch(f"expected {len(elements)} elements, got {len(value)}")
        found: list[Any] = []
        try:
            for element, item in zip(elements, value, strict=True):
                found.append(element(item))
        except Mismatch as error:
            error.add_place(f"[{len(found)}]", f"[{len(found)}]")
            raise
        return tuple(found)

    return Converter("list", convert)


def _mapping(read_key: Convert, read_value: Convert) -> Converter:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch.of("dict", value)
        found = {}
        key = ""
        try:
            for key, item in value.items():
                found[_key(read_key, key)] = read_value(item)
        except Mismatch as error:
            error.add_place(as_place(key), "[]")
            raise
        return found

    return Converter("dict", convert)


def _key(read_key: Convert, key: str) -> Any:
    try:
        return read_key(key)
    except Mismatch as error:
        error.add_place(" key", " key")
        raise


def _any_of(members: list[Converter | RecordConverter], *, accepts_none: bool) -> Converter:
    name = _listed((member.name for member in members), " or ")

    def convert(value: Any) -> Any:
        if value is None and accepts_none:
            return None
        inner: list[tuple[str, Mismatch]] = []
        for member in members:
            try:
                return member.convert(value)
            except Mismatch as error:
                # With a place or a cause, the value is of the right kind and wrong inside.
                if error.place or error.__cause__ is not None:
                    inner.append((member.name, error))
        if not inner:
            raise Mismatch.of(name, value)
        if len(inner) == 1:
            raise inner[0][1]
        raise Mismatch(_alternatives(inner))

    return Converter(name, convert)


def _alternatives(inner: list[tuple[str, Mismatch]]) -> str:
    """Return why a value is none of several classes."""
    shown = (
        f"{name} ({error.place.removeprefix('.')}: {error.problem})"
        if error.place
        else f"{name} ({error.problem})"
        for name, error in inner
    )
    return f"is neither {_listed(shown, ' nor ')}"


def _choices(choices: Iterable[tuple[Any, Any]]) -> Converter:
    """Read one of several JSON values; `choices` are these with what they are read as."""
    # With the type: in Python, 1, 1.0 and True are equal.
    found = {(type(value), value): result for value, result in choices}
    listed = _listed((json.dumps(value, ensure_ascii=False) for _, value in found), ", ")
    name = f"one of {listed}" if len(found) > 1 else listed

    def convert(value: Any) -> Any:
        try:
            return found[type(value), value]
        except (KeyError, TypeError):  # TypeError: a list or dict
            raise Mismatch.of(name, value) from None

    return Converter(name, convert)


def _enumeration(cls: Any, where: str) -> Converter:
    if not issubclass(cls, enum.Flag):
        members = cls.__members__.values()
        return _choices((_json_form(member, where), member) for member in members)

    def convert(value: Any) -> Any:
        if type(value) is int:
            try:
                return cls(value)
            except ValueError:
                pass
        raise Mismatch.of(cls.__name__, value)

    return Converter(cls.__name__, convert)


def _json_form(value: Any, where: str) -> Any:
    """Return the JSON value that stands for a choice."""
    found = value.value if isinstance(value, enum.Enum) else value
    if found is None or type(found) in (str, int, float, bool):
        return found
    raise TypeError(f"{where}: the choice {value!r} has no form in JSON; use text or numbers")


def _listed(names: Iterable[str], separator: str) -> str:
    every = list(names)
    more = [f"{len(every) - _LISTED} more"] if len(every) > _LISTED else []
    return separator.join([*every[:_LISTED], *more])
