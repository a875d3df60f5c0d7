"""The registry of handlers: the function for each message name, and how it is to be run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from django.utils.module_loading import autodiscover_modules

from .. import payload_types
from ..backoff import BreakerPolicy
from ..conf import NAME, get_settings, read_results_kept
from ..durations import Duration, as_timedelta
from ..exceptions import TwoHandlers
from ..failure_policy import UNSET, Policy, read_reasons
from ..instances import TIMER, Flow, Flows, flows, highest
from ..lifecycle import Claimed
from ..lifecycle.internal_queue import PREFIX
from ..lifecycle.publications import Publication, read_publication
from ..message_tags import check_tag_names
from ..models import Kind
from ..payload import accept
from ..payload_types import PayloadType
from ..schedules import handler_names
from ..status import FailureReason
from ..tasks import lookup

Function = TypeVar("Function", bound=Callable[..., Any])

_MESSAGE, _ORCHESTRATION = Kind.MESSAGE.value, Kind.ORCHESTRATION.value
_TASK = Kind.TASK.value
#: As long as a result that is not kept at all.
NOT_KEPT = timedelta(0)

#: "As the queue or the settings say", where None means "no limit".
DEFAULT: Any = UNSET


@dataclass(frozen=True, kw_only=True)
class Handler:
    """A registered function and how it is to be run."""

    name: str
    function: Callable[..., Any]
    timeout: timedelta | None = DEFAULT
    atomic: bool = False
    max_attempts: int | None = DEFAULT
    backoff_base: timedelta = DEFAULT
    backoff_cap: timedelta = DEFAULT
    breaker: BreakerPolicy | None = DEFAULT
    #: The versions of an orchestration; None: an ordinary handler.
    versions: Mapping[str, Flow] | None = None
    #: Policies for single failure reasons.
    reasons: Mapping[FailureReason, Policy] = field(default_factory=dict)
    #: Turns what the function returned into JSON text; None: the result is not kept.
    encode: Callable[[Any], str] | None = None
    #: How long the result is kept; None: for ever.
    keep_result: timedelta | None = DEFAULT
    #: What its payloads are read as; None: they stay as they are decoded.
    payload: PayloadType | None = None
    #: Where what the function returned is published; None: it is not.
    publication: Publication | None = None
    #: Paths into the payload whose values are tags of its failures.
    tags: tuple[str, ...] = ()

    @cached_property
    def is_plain(self) -> bool:
        """True if the function is called without a transaction or an event loop."""
        return not self.atomic and not self.is_async

    @cached_property
    def keeps_returned(self) -> bool:
        """True if what the function returned is kept or published."""
        return self.encode is not None or self.publication is not None

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def seconds(self) -> float | None:
        """The timeout of an attempt, in seconds; None: no limit."""
        limit = get_settings().handler_timeout if self.timeout is DEFAULT else self.timeout
        return None if limit is None else limit.total_seconds()

    @cached_property
    def circuit(self) -> BreakerPolicy | None:
        return get_settings().breaker if self.breaker is DEFAULT else self.breaker

    @cached_property
    def kept(self) -> timedelta | None:
        """How long a result is kept; None: for ever, NOT_KEPT: not at all."""
        return get_settings().results_kept if self.keep_result is DEFAULT else self.keep_result

    @cached_property
    def policy(self) -> Policy | None:
        """Its own failure policy; None: the queue's policy applies."""
        policy = Policy(
            max_attempts=self.max_attempts,
            backoff_base=self.backoff_base,
            backoff_cap=self.backoff_cap,
            reasons=self.reasons,
        )
        return None if policy == Policy() else policy

    def limit(self, queue: int | None) -> int | None:
        """Return the largest limit of attempts in force; `queue` is the queue's."""
        return queue if self.policy is None else self.policy.largest(queue)

    @property
    def where(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


class Registry:
    """Handlers by message name. A second handler for a name is refused, with both named."""

    def __init__(self, flows: Flows = flows, types: dict[str, PayloadType] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        #: Tasks that were found, as handlers by path.
        self._tasks: dict[str, Handler] = {}
        #: The failure policies of handlers and tasks that have their own, by name.
        self._policies: dict[str, Policy] = {}
        self._flows = flows
        #: The payload types of the handlers, for code that knows no handlers.
        self._types = {} if types is None else types

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.name)
        if known is not None and known.where != handler.where:
            raise TwoHandlers(
                f"message name {handler.name!r} has two handlers: {known.where} and "
                f"{handler.where}. Rename one of them."
            )
        self._handlers[handler.name] = handler
        self._types.pop(handler.name, None)
        if handler.payload is not None:
            self._types[handler.name] = handler.payload
        self._set_policy(handler)

    def _set_policy(self, handler: Handler) -> None:
        if handler.policy is None:
            self._policies.pop(handler.name, None)
        else:
            self._policies[handler.name] = handler.policy

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name) or self._tasks.get(name)

    def find(self, message: Claimed) -> Handler | None:
        """Return the handler of a message, or its flow if it drives an instance and is no timer."""
        if message.kind == _ORCHESTRATION and message.name != TIMER:
            return self._flow(message.name)
        if message.kind == _TASK:
            return self.task(message.name)
        return self._handlers.get(message.name)

    def task(self, path: str) -> Handler | None:
        """Return a task as a handler; its module is imported if that is allowed."""
        found = self._tasks.get(path)
        if found is None and (task := lookup.find(path)) is not None:
            found = self._tasks[path] = task_handler(task)
            self._set_policy(found)
        return found

    def add_tasks(self) -> None:
        """Add the tasks that were found when their modules were imported."""
        for path in lookup.known_paths():
            self.task(path)

    def _flow(self, name: str) -> Handler | None:
        """Return the versions of an orchestration as one handler."""
        versions = self._flows.versions(name)
        if not versions:
            return None
        latest = versions[highest(versions) or ""]
        limit = DEFAULT if latest.timeout is None else latest.timeout
        # No breaker: a turn calls no service, so a failing flow says nothing about one.
        return Handler(
            name=name,
            function=latest.function,
            timeout=limit,
            atomic=True,
            breaker=None,
            versions=versions,
        )

    def remove(self, name: str) -> None:
        self._handlers.pop(name, None)
        self._policies.pop(name, None)
        self._types.pop(name, None)

    def publications(self) -> Iterator[tuple[str, Publication]]:
        """Yield the names of handlers and tasks whose return values are published, and where."""
        for item in self._all():
            if item.publication is not None:
                yield item.name, item.publication

    def names(self) -> list[str]:
        return sorted(self._handlers)

    def all_names(self) -> list[str]:
        """Return the names of handlers, tasks and flows, without deadletter's internal ones."""
        found = {*self._handlers, *self._tasks, *self._flows.names()}
        return sorted(name for name in found if not name.startswith(PREFIX))

    @property
    def has_async(self) -> bool:
        return any(handler.is_async for handler in self._all())

    @property
    def has_circuits(self) -> bool:
        return any(handler.circuit is not None for handler in self._all())

    def _all(self) -> Iterator[Handler]:
        return chain(list(self._handlers.values()), list(self._tasks.values()))

    def policies(self) -> dict[str, Policy]:
        """Return the failure policies of handlers that have their own, by name; kept up to date."""
        return self._policies

    def knows(self, kind: str, name: str, version: str | None) -> bool:
        """True if a message of this kind, name and version (None: any) can be handled here."""
        if kind == _TASK:
            return self.task(name) is not None
        if kind != _ORCHESTRATION or name == TIMER:
            return name in self._handlers
        versions = self._flows.versions(name)
        return bool(versions) if version is None else version in versions

    def known(self) -> list[list[str]]:
        """
        Return all that can be handled here, as [kind, name, version], for other workers to read.

        Handlers are listed by name only: messages and activities share them. Tasks are listed as
        messages, too: workers of the release before tasks look for their names there.
        """
        handlers = [[_MESSAGE, name] for name in self._handlers]
        paths = list(self._tasks)
        tasks = [[_TASK, path] for path in paths] + [[_MESSAGE, path, _TASK] for path in paths]
        timers = [[_ORCHESTRATION, TIMER]] if TIMER in self._handlers else []
        flows = [
            [_ORCHESTRATION, name, version]
            for name in self._flows.names()
            for version in self._flows.versions(name)
        ]
        return sorted([*handlers, *tasks, *timers, *flows])


registry = Registry(types=payload_types.of_handlers)


def handler(
    name: str,
    *,
    timeout: Duration | None = DEFAULT,
    atomic: bool = False,
    max_attempts: int | None = DEFAULT,
    backoff_base: Duration | None = None,
    backoff_cap: Duration | None = None,
    breaker: BreakerPolicy | None = DEFAULT,
    reason_policies: Mapping[FailureReason | str, Mapping[str, Any]] | None = None,
    keep_result: Duration | None = DEFAULT,
    payload: type | None = None,
    publish: str | Publication | None = None,
    tags: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """
    Register a function, plain or async, for a message name.

    `timeout` ends an attempt that takes longer (default: DEADLETTER["HANDLER_TIMEOUT"]; None: no
    limit). `atomic` commits the handler's database work and the completion of its message together.
    `max_attempts`, `backoff_base` and `backoff_cap` replace the queue's; `breaker` replaces the
    settings'. `reason_policies` have the form of a queue's and take precedence over all of them.
    With `keep_result` what the handler returns is kept for so long (None: for ever).
    `payload` is a class (a dataclass, TypedDict, pydantic model or msgspec Struct): payloads are
    checked against it when they are sent and before the handler runs, which gets an instance.
    `publish` is a topic, or a Publication: what the handler returns, unless it is None, is
    published in the transaction that completes its message.
    `tags` are paths into the payload, such as "customer.id": failures are counted by their values,
    and dead messages found by them.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a message name: letters, digits and _ . : / @ + -")
    if max_attempts is not DEFAULT and max_attempts is not None and max_attempts < 0:
        raise ValueError(f"handler {name}: max_attempts cannot be negative, got {max_attempts}")
    try:
        reasons = read_reasons(reason_policies or {})
    except ValueError as error:
        raise ValueError(f"handler {name}: reason_policies: {error}") from None
    kept = keep_result if keep_result is DEFAULT else read_results_kept(keep_result)
    try:
        typed = None if payload is None else PayloadType(payload)
    except TypeError as error:
        raise TypeError(f"handler {name}: payload: {error}") from None

    try:
        publication = read_publication(publish)
    except ValueError as error:
        raise ValueError(f"handler {name}: publish: {error}") from None
    try:
        tag_names = check_tag_names(tags)
    except ValueError as error:
        raise ValueError(f"handler {name}: tags: {error}") from None

    def register(function: Function) -> Function:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ValueError(f"handler {name}: calling a generator runs nothing; remove its yield")
        if atomic and inspect.iscoroutinefunction(function):
            raise ValueError(
                f"handler {name}: atomic needs a plain function; Django's transactions do not "
                "span an event loop"
            )
        registry.add(
            Handler(
                name=name,
                function=function,
                timeout=_seconds("timeout", timeout),
                atomic=atomic,
                max_attempts=max_attempts,
                backoff_base=_duration("backoff_base", backoff_base),
                backoff_cap=_duration("backoff_cap", backoff_cap),
                breaker=breaker,
                reasons=reasons,
                encode=None if kept is DEFAULT else _encode,
                keep_result=kept,
                payload=typed,
                publication=publication,
                tags=tag_names,
            )
        )
        names = handler_names.setdefault(function, [])
        if name not in names:
            names.append(name)
        return function

    return register


def discover() -> None:
    """
    Import the modules `handlers` of all installed apps, and `tasks` if tasks come here.

    Raises TypeError if the payload class of a handler cannot be resolved.
    """
    autodiscover_modules("handlers")
    payload_types.resolve_all()
    lookup.discover()
    registry.add_tasks()


def task_handler(task: Any) -> Handler:
    """Return a task as a handler: its function called with the message, and its options."""
    from ..tasks import execution

    task = lookup.with_settings(task)

    def option(name: str, read: Callable[[Any], Any] | None = None) -> Any:
        value = getattr(task, name, ...)
        if value is ...:
            return DEFAULT
        return value if read is None else read(value)

    return Handler(
        name=task.module_path,
        function=execution.function_of(task),
        timeout=option("timeout", lambda value: _seconds("timeout", value)),
        atomic=getattr(task, "atomic", False),
        max_attempts=option("max_attempts"),
        backoff_base=option("backoff_base", lambda value: _duration("backoff_base", value)),
        backoff_cap=option("backoff_cap", lambda value: _duration("backoff_cap", value)),
        breaker=option("breaker"),
        reasons=read_reasons(getattr(task, "reason_policies", None) or {}),
        encode=execution.encoder(task),
        keep_result=option("keep_result", read_results_kept),
        publication=read_publication(getattr(task, "publish", None)),
        tags=check_tag_names(getattr(task, "tags", None) or ()),
    )


def _encode(value: Any) -> str:
    return accept(value, field="return value", limit=get_settings().payload_limit)


def _seconds(field: str, value: Any) -> Any:
    return value if value is DEFAULT or value is None else as_timedelta(value, field=field)


def _duration(field: str, value: Duration | None) -> Any:
    return DEFAULT if value is None else as_timedelta(value, field=field)
