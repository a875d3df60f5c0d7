"""Run a task in a worker: its function as a handler's, its context, and the framework's signals."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections

from ..conf import get_settings
from ..descriptions import describe
from ..logs import event, writes
from ..payload import accept, decode
from . import calls, lookup
from .frameworks import Framework, loaded
from .task_results import get_result, running_result

if TYPE_CHECKING:
    from ..lifecycle import Claimed, Completion


def function_of(task: Any) -> Callable[[Claimed], Any]:
    """Return the function that a worker calls with the message of a task."""
    function, framework = task.func, framework_of(task)
    takes_context = task.takes_context
    is_started_wanted = _asked_per_claim(framework, "task_started")

    if inspect.iscoroutinefunction(function):

        async def call_async(message: Claimed) -> Any:
            args, kwargs = calls.read_payload(message.payload)
            is_wanted = is_started_wanted(message)
            earlier = None
            if _was_tried(message) and (takes_context or is_wanted):
                earlier = await sync_to_async(_read_in_thread)(framework, message)
            if is_wanted:
                running = _running(framework, task, message, earlier)
                await _tell_async(framework, "task_started", running)
            if takes_context:
                args = [make_context(framework)(task, message, lambda: earlier), *args]
            return await function(*args, **kwargs)

        return call_async

    def call(message: Claimed) -> Any:
        args, kwargs = calls.read_payload(message.payload)
        if is_started_wanted(message):
            earlier = _read_earlier(framework, message)
            _tell(framework, "task_started", _running(framework, task, message, earlier))
        if takes_context:
            read = partial(_read_earlier, framework, message)
            args = [make_context(framework)(task, message, read), *args]
        return function(*args, **kwargs)

    return call


def encoder(task: Any) -> Callable[[Any], str]:
    """
    Return the function that turns a return value into JSON text.

    It raises TypeError or ValueError, with a text that names the return value: a list of poison
    shows nothing else of the error.
    """
    normalize = framework_of(task).normalize

    def encode(value: Any) -> str:
        # What most tasks return needs no walk.
        if value is None:
            return "null"
        if value is True or value is False:
            return "true" if value else "false"
        try:
            plain = normalize(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"the return value is not JSON: {error}") from None
        except RecursionError:
            raise ValueError(f"the return value is not JSON: {calls.TOO_DEEP}") from None
        return accept(plain, field="return value", limit=get_settings().payload_limit)

    return encode


def framework_of(task: Any) -> Framework:
    """Return the framework that a task belongs to."""
    return next(found for found in loaded() if isinstance(task, found.task))


@cache
def make_context(framework: Framework) -> Any:
    """Return the class of contexts that extends the one of a framework."""

    class Context(framework.task_context):  # type: ignore[misc,name-defined]
        """
        What a task with `takes_context` knows about its execution.

        `attempt` counts as on the message: from 1 again after a retry by a person.
        """

        __slots__ = ("_read", "_task", "message")

        def __init__(self, task: Any, message: Claimed, read: Callable[[], Any]) -> None:
            object.__setattr__(self, "_task", task)
            object.__setattr__(self, "_read", read)
            object.__setattr__(self, "message", message)

        @property
        def task_result(self) -> Any:
            """
            The result as it is now. Read from the database only if there were attempts.

            An async task sees what was read before it was called.
            """
            return _running(framework, self._task, self.message, self._read())

        @property
        def attempt(self) -> int:
            return self.message.attempt  # type: ignore[no-any-return]

        @property
        def max_attempts(self) -> int | None:
            return self.message.max_attempts  # type: ignore[no-any-return]

        @property
        def is_last_attempt(self) -> bool:
            return self.message.is_last_attempt  # type: ignore[no-any-return]

        def report(self, done: float, total: float | None = None, note: str = "") -> None:
            """Report progress; see `message.report`."""
            self.message.report(done, total, note)

    return Context


def wants_completed() -> bool:
    """Return whether somebody listens to the end of tasks."""
    return any(_is_wanted(found, "task_finished", logging.INFO) for found in loaded())


def tell_completed(completed: Sequence[tuple[int, Completion]], using: str) -> None:
    """Send `task_finished` for completed tasks. Called after the commit."""
    for result_id, item in completed:
        message = item.message
        task = None if message is None else lookup.find(message.name)
        if task is None or message is None:
            continue
        framework = framework_of(task)
        if not _is_wanted(framework, "task_finished", logging.INFO):
            continue
        result = None
        is_kept = item.result is not None and item.result.value is not None
        if is_kept and _was_tried(message):
            result = _read(result_id, framework, using)
        if result is None or not result.is_finished:
            value = None if item.result is None else item.result.value
            result = _running(framework, task, message, None)
            _set(result, id=str(result_id), finished_at=_now(), _return_value=decode(value))
            _set(result, status=framework.status.SUCCESSFUL, state="successful")
        _tell(framework, "task_finished", result)


def tell_poisoned(*, poison: Any, using: str, **kwargs: Any) -> None:
    """Send `task_finished` for a dead task: a receiver of `message_poisoned`, after the commit."""
    from ..models import Kind

    if poison.kind != Kind.TASK:
        return
    task = lookup.find(poison.name)
    frameworks = loaded() if task is None else [framework_of(task)]
    for framework in frameworks[:1]:
        if not _is_wanted(framework, "task_finished", logging.ERROR):
            continue
        result = get_result(poison.message_id, framework=framework, using=using)
        if result is None:
            continue
        if poison.raised is None:
            _tell(framework, "task_finished", result)
            continue
        try:
            # The framework's log takes the exception that is being handled.
            raise poison.raised.with_traceback(poison.raised.__traceback__)
        except BaseException:  # noqa: BLE001 - raised a line above
            _tell(framework, "task_finished", result)


def tell_enqueued(framework: Framework, result: Any) -> None:
    if _is_wanted(framework, "task_enqueued", logging.DEBUG):
        _tell(framework, "task_enqueued", result)


def is_enqueued_wanted(framework: Framework) -> bool:
    return _is_wanted(framework, "task_enqueued", logging.DEBUG)


def _was_tried(message: Claimed) -> bool:
    """Return whether the row of a message knows of earlier attempts."""
    return message.attempt > 1 or message.last_failure is not None


def _read_earlier(framework: Framework, message: Claimed) -> Any | None:
    """Return the result as its row has it, if there were earlier attempts."""
    if not _was_tried(message):
        return None
    return get_result(message.id, framework=framework, using=message.using)


def _read_in_thread(framework: Framework, message: Claimed) -> Any | None:
    """Do the same for an async task: in the thread of the ORM."""
    close_old_connections()
    try:
        return _read_earlier(framework, message)
    finally:
        close_old_connections()


def _read(result_id: int, framework: Framework, using: str) -> Any | None:
    """Return a result for a signal; None if the database is gone: the task has ended anyway."""
    try:
        return get_result(result_id, framework=framework, using=using)
    except DatabaseError:
        return None


def _running(framework: Framework, task: Any, message: Claimed, earlier: Any | None) -> Any:
    """Return the result of a running task; `earlier`: the result as its row has it."""
    at = _now() - timedelta(seconds=monotonic() - message.started)
    if earlier is None:
        workers = [message.worker]
        return running_result(task, message, framework=framework, workers=workers, at=at)
    workers = list(earlier.worker_ids)
    if earlier.state != "active":  # in a dead queue, or its lease ran out
        workers.append(message.worker)
    result = copy(earlier)
    _set(result, status=framework.status.RUNNING, state="active", worker_ids=workers)
    _set(result, last_attempted_at=at, finished_at=None)
    return result


def _is_wanted(framework: Framework, signal: str, level: int) -> bool:
    """
    Return whether a signal has receivers, other than a log that would write nothing.

    A result is made for each signal, which would be a large part of the cost of a short task.
    """
    receivers = getattr(framework.signals, signal).receivers
    log = id(getattr(framework.signals, f"log_{signal}", None))
    if any(key[0] != log for key, *_ in receivers):
        return True
    return bool(receivers) and writes(framework.name, level)


def _asked_per_claim(framework: Framework, signal: str) -> Callable[[Claimed], bool]:
    """Return `_is_wanted` for the message of a task, asked once for all messages of a claim."""
    # Threads share it: both values are replaced together.
    asked: tuple[str | None, bool] = (None, False)

    def is_wanted(message: Claimed) -> bool:
        nonlocal asked
        token, answer = asked
        if token != message.token:
            answer = _is_wanted(framework, signal, logging.INFO)
            asked = (message.token, answer)
        return answer

    return is_wanted


def _tell(framework: Framework, signal: str, result: Any) -> None:
    answers = getattr(framework.signals, signal).send_robust(sender=_sender(), task_result=result)
    _log_failures(framework, signal, answers)


async def _tell_async(framework: Framework, signal: str, result: Any) -> None:
    found = getattr(framework.signals, signal)
    answers = await found.asend_robust(sender=_sender(), task_result=result)
    _log_failures(framework, signal, answers)


def _log_failures(framework: Framework, signal: str, answers: Any) -> None:
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            event(
                logging.ERROR,
                "receiver_failed",
                "receiver {receiver} of {signal} raised {error}",
                receiver=repr(receiver),
                signal=f"{framework.name}.signals.{signal}",
                error=describe(answer).text,
                exc_info=answer,
            )


def _sender() -> Any:
    from .backend import DeadletterBackend

    return DeadletterBackend


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _now() -> datetime:
    # For people and logs, not for a decision: the time in the row is the database's.
    return datetime.now(UTC)
