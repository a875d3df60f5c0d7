"""
Classes of validation libraries: pydantic and msgspec check them and write them as JSON.

A library is imported only when a class is its own; it is installed then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from .converters import Converter, Mismatch, as_place, quoted

#: A text of msgspec: the problem, and where it is if not at the top.
_MSGSPEC = re.compile(r"(.*?)(?: - at (`key` in )?`\$(.*)`)?", re.DOTALL)
#: The texts of msgspec that quote a value.
_QUOTING = re.compile(r"(Invalid (?:enum )?value) (.*)", re.DOTALL)


def library_of(cls: type) -> str | None:
    """Return the library whose class this is: "pydantic", "msgspec" or None."""
    if hasattr(cls, "__pydantic_validator__"):  # also of a pydantic dataclass
        return "pydantic"
    packages = {str(base.__module__).partition(".")[0] for base in cls.__mro__}
    return "msgspec" if "msgspec" in packages else None


def library_converter(cls: type) -> Converter | None:
    """
    Return the converter of a class of a library, or None.

    Raises TypeError for a class that the library cannot use, NameError for an annotation that
    cannot be resolved (yet).
    """
    library = library_of(cls)
    return None if library is None else _CONVERTERS[library](cls)


def dump_instance(value: Any) -> Any:
    """
    Return an instance of a class of a library as JSON values.

    Raises ValueError or TypeError for what the library cannot write, and for a secret of pydantic
    that it would write as asterisks.
    """
    cls: Any = type(value)
    if library_of(cls) == "pydantic":
        # `round_trip` leaves out computed fields, which validation would refuse.
        options = {"by_alias": True, "round_trip": True, "warnings": False}
        adapter = _adapter(cls)
        found = adapter.dump_python(value, mode="json", **options)
        if _may_mask(cls):
            _refuse_masked(found, adapter.dump_python(value, **options))
        return found
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)


@lru_cache(maxsize=256)
def _may_mask(cls: Any) -> bool:
    """Return whether JSON of a class may have asterisks for a secret, as its schema says."""
    import pydantic

    try:
        schema = _adapter(cls).json_schema(mode="serialization")
    except pydantic.errors.PydanticUserError:  # a class with a field that has no schema
        return True
    return '"writeOnly": true' in json.dumps(schema, default=str)


def _refuse_masked(written: Any, plain: Any) -> None:
    """Refuse a secret that was written as asterisks: the handler would get these."""
    import pydantic

    secrets = (pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret)
    # A serializer of the application may have written the secret itself.
    texts = {text for text in _leaves(written) if isinstance(text, str) and text}
    if any(isinstance(leaf, secrets) and str(leaf) in texts for leaf in _leaves(plain)):
        raise ValueError(
            "a secret would be stored as asterisks. Send a reference to it, or give the field a "
            "serializer"
        )


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        yield value
        return
    for item in value:
        yield from _leaves(item)


@lru_cache(maxsize=256)
def _adapter(cls: Any) -> Any:
    import pydantic

    try:
        adapter = pydantic.TypeAdapter(cls)
        # Without forward references that pydantic could not resolve when it made the class.
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except AttributeError:
        raise TypeError(f"{cls.__name__}: pydantic 2.10 or newer is needed") from None
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise TypeError(f"{cls.__name__}: {str(error).partition(chr(10))[0]}") from None
    return adapter


def _pydantic(cls: type) -> Converter:
    from pydantic import ValidationError

    adapter = _adapter(cls)

    def convert(value: Any) -> Any:
        try:
            # As JSON: a strict model accepts the text of a date there, and nowhere else.
            return adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            raise _of_pydantic(error) from None

    return Converter(cls.__name__, convert)


def _of_pydantic(error: Any) -> Mismatch:
    first, *others = error.errors(include_url=False, include_context=False)
    place = "".join(
        f"[{part}]" if isinstance(part, int) else as_place(str(part)) for part in first["loc"]
    )
    more = f" (and {len(others)} more)" if others else ""
    value = quoted(first["input"])
    value = f", got {type(first['input']).__name__}{value}" if value else ""
    return Mismatch(first["msg"] + more, value=value, place=place)


def _msgspec(cls: type) -> Converter:
    import msgspec
    import msgspec.inspect

    msgspec.inspect.type_info(cls)  # raises for annotations that msgspec cannot resolve or use

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise _of_msgspec(str(error)) from error.__cause__

    return Converter(cls.__name__, convert)


def _of_msgspec(text: str) -> Mismatch:
    found = _MSGSPEC.fullmatch(text)
    problem, is_key, place = found.groups() if found else (text, None, None)
    value = ""
    if quoting := _QUOTING.fullmatch(problem):
        problem, value = quoting[1], f" {quoting[2]}"
    return Mismatch(problem, value=value, place=(place or "") + (" key" if is_key else ""))


_CONVERTERS: dict[str, Callable[[type], Converter]] = {"pydantic": _pydantic, "msgspec": _msgspec}
