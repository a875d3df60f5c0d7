"""
The class of tasks: the task of a framework, with the options of deadletter.

The class is made from the framework's own, so that `isinstance` and the framework's code accept it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import FunctionType
from typing import Any, overload

from asgiref.sync import sync_to_async
from django.utils.module_loading import import_string

from ..backoff import BreakerPolicy
from ..durations import Duration
from . import frameworks
from .calls import read_calls

#: "As the queue or the settings say". Ellipsis, because it stays the same object when pickled.
DEFAULT: Any = ...

#: The options of a task that its definition or the settings may give.
OPTIONS = (
    "max_attempts",
    "backoff_base",
    "backoff_cap",
    "timeout",
    "atomic",
    "breaker",
    "reason_policies",
    "stream",
    "key",
    "expires_in",
    "keep_result",
    "publish",
    "tags",
)
#: The words that `using` understands beside Django's own.
CALL_OPTIONS = ("stream", "key", "delay", "expires_in")


class TaskMethods:
    """The methods that deadletter adds to a task."""

    __slots__ = ()

    def using(self, **changes: Any) -> Any:
        """
        Return the task with other values, for one call or more.

        Django's words are priority, queue_name, run_after and backend. deadletter adds stream, key,
        delay and expires_in, as for `send`. Other words are refused.
        """
        own = {word: changes.pop(word) for word in CALL_OPTIONS if word in changes}
        changed = super().using(**changes)  # type: ignore[misc]
        return replace(changed, **own) if own else changed

    def enqueue_many(self, calls: Iterable[Any]) -> list[str]:
        """Enqueue the task once for each call; see the function of the same name."""
        return enqueue_many(self, calls)

    async def aenqueue_many(self, calls: Iterable[Any]) -> list[str]:
        return await sync_to_async(self.enqueue_many)(calls)

    def __reduce__(self) -> Any:
        # The name of the function is that of the task, so the function cannot be pickled by name.
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        values["func"] = self.module_path  # type: ignore[attr-defined]
        return _unpickle, (type(self), values)


@cache
def make_task_class(base: Any) -> Any:
    """Return the class of tasks that extends `base`, the task class of a backend."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Made(TaskMethods, base):  # type: ignore[misc]
        max_attempts: int | None = DEFAULT
        backoff_base: Duration = DEFAULT
        backoff_cap: Duration = DEFAULT
        timeout: Duration | None = DEFAULT
        atomic: bool = False
        breaker: BreakerPolicy | None = DEFAULT
        reason_policies: Mapping[Any, Mapping[str, Any]] | None = field(default=None, hash=False)
        #: The stream and the key of its messages; templates over the arguments: "user-{user_id}".
        stream: str | None = None
        key: str | None = None
        #: Only for calls: see `using`.
        delay: Duration | None = None
        expires_in: Duration | None = None
        keep_result: Duration | None = DEFAULT
        #: A topic or a Publication: what the task returns is published.
        publish: Any = None
        #: Arguments, or paths into them, whose values are tags of its failures.
        tags: Sequence[str] = field(default=(), hash=False)

    # A name of its own in this module, so that tasks can be pickled.
    Made.__module__ = __name__
    Made.__name__ = Made.__qualname__ = _class_name(base.__module__)
    setattr(sys.modules[__name__], Made.__name__, Made)
    return Made


def _class_name(module: str) -> str:
    return f"DeadletterTask_{module.replace('.', '__')}"


def __getattr__(name: str) -> Any:
    """Make the classes of the frameworks when a pickle names them."""
    for framework in frameworks.NAMES:
        if name == _class_name(f"{framework}.base") and frameworks.exists(framework):
            return make_task_class(frameworks.load(framework).task)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _unpickle(made: Any, values: dict[str, Any]) -> Any:
    found = import_string(values["func"])
    if not is_task(found):
        raise ValueError(f"{values['func']!r} does not lead to a task")
    return made(**values | {"func": found.func})


def is_ours(task: Any) -> bool:
    """Return whether a task has the options of deadletter."""
    return isinstance(task, TaskMethods)


def is_task(value: Any) -> bool:
    """
    Return whether a value is a task of a framework.

    Not `isinstance`: that asks the value for its class, which evaluates a lazy object.
    """
    return any(issubclass(type(value), framework.task) for framework in frameworks.loaded())


def restore(task: Any, **changes: Any) -> Any:
    """
    Return a copy of a task with other values, without the checks of its backend.

    The settings may have changed since the task was enqueued; its result must still be readable.
    """
    copy = object.__new__(type(task))
    for item in fields(task):
        object.__setattr__(copy, item.name, changes.get(item.name, getattr(task, item.name)))
    return copy


def missing_task(path: str, framework: frameworks.Framework, **values: Any) -> Any:
    """Return a task that stands for code which is gone: it has a name, and cannot be called."""
    module, _, name = path.rpartition(".")

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise LookupError(f"the task {path} is not defined here")

    function = FunctionType(missing.__code__, missing.__globals__, name, None, missing.__closure__)
    function.__module__, function.__qualname__ = module, name
    made = make_task_class(framework.task)
    task = object.__new__(made)
    given = {"func": function, "run_after": None, "takes_context": False, **values}
    for item in fields(made):
        object.__setattr__(task, item.name, given.get(item.name, item.default))
    return task


@overload
def task(function: Callable[..., Any], **options: Any) -> Any: ...


@overload
def task(function: None = None, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...


def task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """
    Make a task of a function, on every supported version of Django.

    The same as the decorator of the framework, and it takes the options of deadletter:
    max_attempts, backoff_base, backoff_cap, timeout, atomic, breaker, reason_policies, stream, key,
    expires_in, keep_result, publish, tags. Under another backend (in tests, for example) those have
    no effect.
    """
    for refused, instead in (("run_after", "run_after=…"), ("delay", "delay=…")):
        if refused in options:
            raise TypeError(
                f"{refused} cannot be given to the decorator; use .using({instead}) for a call"
            )

    def make(function: Callable[..., Any]) -> Any:
        alias = options.get("backend", "default")
        base = frameworks.primary().backends[alias].task_class
        made = base if issubclass(base, TaskMethods) else make_task_class(base)
        given = {
            "priority": 0,
            "queue_name": "default",
            "backend": alias,
            "takes_context": False,
            "run_after": None,
            **options,
        }
        return made(func=function, **given)

    return make if function is None else make(function)


def enqueue_many(task: Any, calls: Iterable[Any]) -> list[str]:
    """
    Enqueue a task once for each call, all or none, at the speed of `send_many`.

    A call is a tuple or list of arguments, a dict of keyword arguments, or `Call(args, kwargs)`.
    Returns the ids of the results, in order.
    """
    backend = task.get_backend()
    if hasattr(backend, "enqueue_many"):
        return backend.enqueue_many(task, calls)  # type: ignore[no-any-return]
    # Another backend, for example in tests.
    return [str(task.enqueue(*args, **kwargs).id) for args, kwargs in read_calls(calls)]


async def aenqueue_many(task: Any, calls: Iterable[Any]) -> list[str]:
    """The async version of `enqueue_many`."""
    return await sync_to_async(enqueue_many)(task, calls)
