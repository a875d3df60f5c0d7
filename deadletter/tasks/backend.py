"""The backend: tasks as messages of deadletter, for `django.tasks` and `django_tasks`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core import checks

from .. import clock
from ..conf import NAME, read_results_kept
from ..durations import as_timedelta
from ..exceptions import PayloadRejected
from ..failure_policy import read_reasons
from ..lifecycle.publications import read_publication
from ..message_tags import check_tag_names
from ..payload import is_simple
from . import calls as task_calls
from . import execution, frameworks, lookup
from .calls import read_calls
from .frameworks import Framework
from .task_class import DEFAULT, OPTIONS, is_ours, make_task_class, restore
from .task_results import BACKEND_HEADER, RUN_AFTER_HEADER, get_result, new_result

#: The keys of OPTIONS: the database alias; modules, beside those of installed apps, that may hold
#: tasks; options for tasks by path.
KEYS = {"DATABASE": str, "TASK_MODULES": (list, tuple, set), "TASK_OPTIONS": dict}

_BASE: Any = frameworks.primary().base_backend


class DeadletterBackend(_BASE):  # type: ignore[misc]
    """
    Stores tasks as messages and reads their results back.

    Constructing it opens nothing and imports no model: tasks are defined while apps are loaded.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        # Wrong values are reported by `check`: a text would be taken for the names of its letters.
        self.given_queues = params.get("QUEUES", ["default"])
        super().__init__(alias, {**params, "QUEUES": lookup.queue_names(params)})
        options = self.options if isinstance(self.options, dict) else {}
        self.database: str | None = options.get("DATABASE")

    @cached_property
    def framework(self) -> Framework:
        """The framework that made this backend."""
        framework = frameworks.serving(self)
        if not isinstance(self, framework.base_backend):
            framework.base_backend.register(DeadletterBackend)
        return framework

    @property
    def task_class(self) -> Any:
        return make_task_class(self.framework.task)

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot be enqueued. Raises: InvalidTask of the framework."""
        self.framework.base_backend.validate_task(self, task)
        problem = _path_problem(task) or (_option_problem(task) if is_ours(task) else "")
        if problem:
            raise self.framework.invalid_task(f"{task.module_path}: {problem}")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """
        Store a task in the caller's transaction and return its result.

        With a key that an unfinished task of the queue has, the result of that task is returned.
        """
        from ..lifecycle import enqueue

        self.validate_task(task)
        stored = enqueue.store_message(
            self.outgoing(task)(args, kwargs),
            queue=task.queue_name,
            kind=enqueue.TASK,
            using=self.database,
        )
        if not stored.is_new and (found := self._find(stored.message.pk)) is not None:
            return found
        result = new_result(task, stored.message, backend=self.alias, framework=self.framework)
        if stored.is_new:
            execution.tell_enqueued(self.framework, result)
        return result

    def enqueue_many(self, task: Any, calls: Iterable[Any]) -> list[str]:
        """Store a task once for each call, all or none, and return the ids of the results."""
        from ..lifecycle import enqueue

        self.validate_task(task)
        outgoing = self.outgoing(task)
        items = [outgoing(args, kwargs) for args, kwargs in read_calls(calls)]
        stored = enqueue.store_messages(
            items, queue=task.queue_name, kind=enqueue.TASK, using=self.database
        )
        if execution.is_enqueued_wanted(self.framework):
            self._tell_enqueued(task, items, stored)
        return [str(id) for id in stored.ids]

    def _tell_enqueued(self, task: Any, items: Sequence[Any], stored: Any) -> None:
        """Send the signal for each new task. No row is read: a worker may have ended it already."""
        from ..models import Message, primary_alias

        now = clock.now(primary_alias(self.database))
        # A key that occurs twice is one task.
        new = {id: item for id, item in zip(stored.ids, items, strict=True) if id in stored.new}
        for id, item in new.items():
            due = item.at if item.delay is None else now + as_timedelta(item.delay, field="delay")
            message = Message(pk=id, payload=item.payload, available_at=due, created_at=now)
            result = new_result(task, message, backend=self.alias, framework=self.framework)
            execution.tell_enqueued(self.framework, result)

    async def aenqueue_many(self, task: Any, calls: Iterable[Any]) -> list[str]:
        return await sync_to_async(self.enqueue_many)(task, calls)

    def get_result(self, result_id: Any) -> Any:
        """Return the result of a task. Raises: TaskResultDoesNotExist of the framework."""
        result = self._find(result_id)
        if result is None:
            raise self.framework.result_does_not_exist(result_id)
        return result

    def _find(self, result_id: Any) -> Any | None:
        from ..models import primary_alias

        using = primary_alias(self.database)
        return get_result(result_id, framework=self.framework, using=using)

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        yield from super().check(**kwargs)
        yield from self._check_queues()
        yield from self._check_options()

    def _check_queues(self) -> Iterator[checks.CheckMessage]:
        where, given = f'TASKS["{self.alias}"]["QUEUES"]', self.given_queues
        hint = 'For example ["default", "mail"], or [] for every queue that exists.'
        if not lookup.is_collection(given):
            text = f"{where}: expected a list of names, got {given!r:.100}."
            yield checks.Error(text, hint=hint, id="deadletter.E014")
            return
        for name in given:
            if not lookup.is_queue_name(name):
                text = f"{where}: {name!r:.100} is not the name of a queue."
                yield checks.Error(text, hint=hint, id="deadletter.E014")

    def _check_options(self) -> Iterator[checks.CheckMessage]:
        where = f'TASKS["{self.alias}"]["OPTIONS"]'
        if not isinstance(self.options, dict):
            yield checks.Error(f"{where} must be a dict.", id="deadletter.E014")
            return
        for key, value in self.options.items():
            if key not in KEYS:
                known = ", ".join(sorted(KEYS))
                hint = f"The options of the backend are {known}."
                yield checks.Error(
                    f"{where}: unknown key {key!r}.", hint=hint, id="deadletter.E014"
                )
            elif not isinstance(value, KEYS[key]):  # type: ignore[arg-type]
                yield checks.Error(
                    f'{where}["{key}"]: {value!r} has the wrong type.',
                    hint='For example {"DATABASE": "default", "TASK_MODULES": ["billing.jobs"]}.',
                    id="deadletter.E014",
                )

        database = self.options.get("DATABASE")
        if isinstance(database, str) and database not in settings.DATABASES:
            known = ", ".join(sorted(settings.DATABASES))
            yield checks.Error(
                f'{where}["DATABASE"]: there is no database {database!r}.',
                hint=f"DATABASES has {known}.",
                id="deadletter.E014",
            )

        by_path = self.options.get("TASK_OPTIONS")
        for path, given in by_path.items() if isinstance(by_path, dict) else ():
            if problem := _given_problem(path, given):
                yield checks.Error(
                    f'{where}["TASK_OPTIONS"]["{path}"]: {problem}.',
                    hint=f"The options of a task are {', '.join(OPTIONS)}.",
                    id="deadletter.E014",
                )

    def outgoing(self, task: Any) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
        """
        Return the function that makes the message of a call of the task.

        It raises TypeError for arguments that are no JSON, PayloadRejected for a cycle.
        """
        from ..lifecycle import Outgoing

        normalize = self.framework.normalize
        headers: dict[str, str] = {}
        if self.alias != "default":
            headers[BACKEND_HEADER] = self.alias
        if task.run_after is not None:
            headers[RUN_AFTER_HEADER] = task.run_after.isoformat()
        message = Outgoing(
            task.module_path,
            at=task.run_after,
            # Django's highest priority is deadletter's lowest number.
            priority=-int(task.priority),
            headers=headers or None,
        )
        has_templates = False
        if is_ours(task):
            task = lookup.with_settings(task)
            message = message._replace(delay=task.delay, expires_in=task.expires_in)
            has_templates = task.stream is not None or task.key is not None

        def outgoing(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outgoing:
            payload = task_calls.as_payload(args, kwargs)
            if not is_simple(payload):
                try:
                    payload = normalize(payload)
                except RecursionError:
                    raise PayloadRejected("payload", task_calls.TOO_DEEP) from None
            if not has_templates:
                return message._replace(payload=payload)
            args, kwargs = task_calls.read_payload(payload)
            stream = task_calls.fill("stream", task, args, kwargs)
            key = task_calls.fill("key", task, args, kwargs)
            return message._replace(payload=payload, stream=stream, key=key)

        return outgoing


def _given_problem(path: Any, given: Any) -> str:
    """Return what is wrong with the options that the settings give to a task, or ""."""
    if not isinstance(path, str):
        return "expected the path of a task as text"
    if not isinstance(given, dict):
        return f"expected a dict, got {type(given).__name__}"
    if unknown := sorted(set(given) - set(OPTIONS)):
        return f"unknown option {unknown[0]!r}"
    task = lookup.find(path)
    return "" if task is None or not is_ours(task) else _option_problem(restore(task, **given))


def _path_problem(task: Any) -> str:
    if NAME.fullmatch(task.module_path):
        return ""
    return "its path cannot be the name of a message: at most 200 letters, digits, _ and ."


def _option_problem(task: Any) -> str:
    """Return what is wrong with the options of a task, or ""."""
    for name in ("backoff_base", "backoff_cap", "timeout", "expires_in", "delay"):
        value = getattr(task, name)
        if value is not DEFAULT and value is not None and (text := _duration_problem(name, value)):
            return text
    if task.max_attempts is not DEFAULT and task.max_attempts is not None:
        is_number = isinstance(task.max_attempts, int) and not isinstance(task.max_attempts, bool)
        if not is_number or task.max_attempts < 0:
            return f"max_attempts: expected a number from 0, got {task.max_attempts!r}"
    if task.keep_result is not DEFAULT:
        try:
            read_results_kept(task.keep_result)
        except ValueError as error:
            return f"keep_result: {error}"
    try:
        read_publication(task.publish)
    except ValueError as error:
        return f"publish: {error}"
    try:
        check_tag_names(task.tags or ())
    except ValueError as error:
        return f"tags: {error}"
    try:
        read_reasons(task.reason_policies or {})
    except ValueError as error:
        return f"reason_policies: {error}"
    if task.atomic and inspect.iscoroutinefunction(task.func):
        return "atomic needs a plain function; Django's transactions do not span an event loop"
    if task.delay is not None and task.run_after is not None:
        return "give either delay or run_after, not both"
    for name in ("stream", "key"):
        template = getattr(task, name)
        if template is None:
            continue
        if not isinstance(template, str):
            return f"{name}: expected text, got {type(template).__name__}"
        problem = task_calls.template_problem(template, task.func, takes_context=task.takes_context)
        if problem:
            return f"{name}: {problem}"
    return ""


def _duration_problem(name: str, value: Any) -> str:
    try:
        as_timedelta(value, field=name)
    except ValueError as error:
        return str(error)
    return ""
