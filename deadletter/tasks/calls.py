"""Calls of tasks: their arguments as a payload, and the templates of streams and keys over them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from string import Formatter
from typing import Any

from ..exceptions import MessageRejected, PayloadRejected
from ..payload import DEPTH_LIMIT

_formatter = Formatter()
#: What is wrong with a value whose walk exhausts the stack.
TOO_DEEP = f"nested deeper than {DEPTH_LIMIT} levels, or contains itself"
#: The conversions of a format string: {name}, {name!r}, …
_CONVERSIONS = (None, "r", "s", "a")
#: The keys of a payload.
_PARTS = frozenset(("args", "kwargs"))


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a task, for `enqueue_many`."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


#: The arguments and keyword arguments of a call.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def read_calls(calls: Iterable[Any]) -> list[Arguments]:
    """
    Return calls that are given as Call, as a tuple or list of arguments, or as a dict of keywords.

    Raises: TypeError naming the first that is none of these.
    """
    found: list[Arguments] = []
    for number, call in enumerate(calls):
        if isinstance(call, Call):
            found.append((call.args, call.kwargs))
        elif isinstance(call, list | tuple):
            found.append((call, {}))
        elif isinstance(call, Mapping):
            found.append(((), call))
        else:
            raise TypeError(
                f"call {number}: expected a tuple of arguments, a dict of keyword arguments or a "
                f"Call, got {type(call).__name__}"
            )
    return found


def as_payload(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a call whose arguments are JSON types."""
    payload: dict[str, Any] = {}
    if args:
        payload["args"] = list(args)
    if kwargs:
        payload["kwargs"] = dict(kwargs)
    return payload


def read_payload(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments and keyword arguments of a payload. Raises: PayloadRejected."""
    if payload is None:
        return [], {}
    if not isinstance(payload, dict) or not _PARTS.issuperset(payload):
        raise PayloadRejected(
            "payload", 'expected the arguments of a task: {"args": [...], "kwargs": {...}}'
        )
    args, kwargs = payload.get("args", []), payload.get("kwargs", {})
    if not isinstance(args, list):
        raise PayloadRejected("payload.args", f"expected a list, got {type(args).__name__}")
    if not isinstance(kwargs, dict):
        raise PayloadRejected("payload.kwargs", f"expected an object, got {type(kwargs).__name__}")
    return args, kwargs


def check_arguments(
    function: Callable[..., Any], payload: Any, *, takes_context: bool = False
) -> None:
    """Refuse a payload that the function of a task cannot be called with."""
    args, kwargs = read_payload(payload)
    try:
        bind(function, args, kwargs, takes_context=takes_context)
    except TypeError as error:
        raise PayloadRejected("payload", f"{function.__name__}: {error}") from None


def describe_parameters(function: Callable[..., Any], *, takes_context: bool = False) -> str:
    """Return a function with the parameters that a call gives: `welcome(user_id, name='Ada')`."""
    signature = _signature(function)
    given = list(signature.parameters.values())[1 if takes_context else 0 :]
    # Without annotations, which are texts in quotes where a module postpones them.
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in given]
    shown = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return f"{function.__name__}{shown}"


def bind(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    takes_context: bool,
) -> dict[str, Any]:
    """Return the arguments of a call by name, defaults included. Raises: TypeError."""
    given = (None, *args) if takes_context else args
    bound = _signature(function).bind(*given, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def fill(option: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """
    Return the stream or the key of a call: the option is a template such as "user-{user_id}".

    Raises: MessageRejected.
    """
    template: str | None = getattr(task, option)
    if template is None or ("{" not in template and "}" not in template):
        return template
    function = task.func
    try:
        values = bind(function, args, kwargs, takes_context=task.takes_context)
        return _formatter.vformat(template, (), values)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise MessageRejected(
            option,
            f"the template {template!r} cannot be filled with the arguments of "
            f"{function.__name__}: {error}",
        ) from None


def template_problem(
    template: str, function: Callable[..., Any], *, takes_context: bool = False
) -> str:
    """Return why a template cannot be used for a function, or ""."""
    if not template.strip():
        return "expected 1 to 200 characters, got none"
    try:
        fields = [found[1:] for found in _formatter.parse(template) if found[1] is not None]
    except ValueError as error:
        return f"{template!r} is not a template: {error}"
    # The context is no argument of a call.
    parameters = list(_signature(function).parameters)[1 if takes_context else 0 :]
    for name, spec, conversion in fields:
        first = str(name).partition(".")[0].partition("[")[0]
        if first not in parameters:
            known = ", ".join(parameters) or "none"
            return f"{template!r} names {first!r}, which is no parameter (there are: {known})"
        if conversion not in _CONVERSIONS:
            return f"{template!r} has the unknown conversion !{conversion}; use !r, !s or !a"
        if spec and "{" in spec:
            # A width that is an argument could ask for a text of any size.
            return f"{template!r} has an argument in a format specification, which is not supported"
    return ""


def format_call(name: str, payload: Any, *, show: Callable[[Any], str]) -> str:
    """Return a call as Python writes it: `welcome(7, name='Ada')`; `show` formats a value."""
    short = name.rpartition(".")[2]
    try:
        args, kwargs = read_payload(payload)
    except PayloadRejected:
        return f"{short}(…)"
    shown = [show(value) for value in args]
    shown += [f"{key}={show(value)}" for key, value in kwargs.items()]
    return f"{short}({', '.join(shown)})"


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)
