"""Exceptions. Their texts say what happened and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from django.db import OperationalError

from .durations import as_timedelta
from .status import FailureReason
from .text import short_repr


class DeadletterError(Exception):
    """Base class of the exceptions that deadletter raises."""


class MessageRejected(DeadletterError, ValueError):
    """A message was refused and nothing was stored. `field` is the argument that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class TwoHandlers(DeadletterError, ValueError):
    """Two functions are registered for one name. The text names both."""


class PayloadRejected(MessageRejected):
    """The payload or a header cannot be stored as JSON on every database."""


class PayloadMismatch(PayloadRejected):
    """
    The payload does not match the class that its handler expects. `place` says where.

    The text quotes no value of the payload, because it is stored, logged and shown. `value` is the
    end of the sentence that does.
    """

    failure_reason = FailureReason.VALIDATION_FAILURE

    def __init__(self, place: str, problem: str, *, value: str = "", origin: str = "") -> None:
        super().__init__(place, problem)
        self.field = "payload"
        self.place = place
        self.value = value
        #: The class and the field, without indices and keys: the same for every payload.
        self.origin = origin

    def with_value(self) -> PayloadMismatch:
        """Return the same mismatch with the value in its text, for the sender of the payload."""
        return PayloadMismatch(self.place, self.problem + self.value, origin=self.origin)


class UnknownQueue(MessageRejected):
    """There is no queue of that name."""

    def __init__(self, name: str, existing: Iterable[str]) -> None:
        self.name = name
        self.existing = sorted(existing)
        there = ", ".join(self.existing) or "none"
        super().__init__(
            "queue",
            f"there is no queue {name!r} (existing: {there}). Create it with "
            f"Queue.objects.create(name={name!r}), or declare it in "
            f'DEADLETTER["QUEUES"] and run "manage.py migrate".',
        )


class UnknownSchedule(DeadletterError, LookupError):
    """There is no schedule of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {short_repr(name)}")
        self.name = name


class InstanceRunning(MessageRejected):
    """An instance of that id is running; nothing was started."""

    def __init__(self, id: str) -> None:
        super().__init__(
            "instance",
            f"{id!r} is running; wait for its end, cancel it, or choose another id",
        )


class InstanceNotRunning(MessageRejected):
    """No instance of that id is running; nothing was sent."""

    def __init__(self, id: object, status: str | None) -> None:
        what = "there is none" if status is None else f"it has {status}"
        super().__init__("instance", f"{short_repr(id)} is not running: {what}")


class LeaseLost(DeadletterError):
    """
    The caller does not hold the lease of `ids`, or no longer; nothing was changed for them.

    The rest of the same call has been applied.
    """

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(ids)
        named = ", ".join(str(id) for id in self.ids[:20])
        more = f" and {len(self.ids) - 20} more" if len(self.ids) > 20 else ""
        super().__init__(
            f"the lease of message {named}{more} is not yours: the token is wrong or used, or the "
            "lease ran out. Nothing was changed; the worker that holds the message now settles it."
        )


class CompletionRefused(DeadletterError, ValueError):
    """
    A completion asks for an impossible stage; nothing was recorded for these messages.

    `refused` gives the reason by id. The rest of the same call has been applied, except for `lost`:
    ids whose lease the caller does not hold, or no longer.
    """

    def __init__(self, refused: Mapping[int, str], lost: Iterable[int] = ()) -> None:
        self.refused = dict(refused)
        self.ids = sorted(self.refused)
        self.lost = sorted(lost)
        named = "; ".join(f"message {id}: {self.refused[id]}" for id in self.ids[:20])
        more = f"; and {len(self.ids) - 20} more" if len(self.ids) > 20 else ""
        lease = f" The lease of {self.lost[:20]} is not yours." if self.lost else ""
        super().__init__(
            f"refused to complete {named}{more}. Nothing was recorded for what is refused.{lease}"
        )


class LockNotAvailable(DeadletterError, OperationalError):
    """
    A row or a stream stayed locked by another transaction; nothing was changed.

    `holders` describes the transactions that may hold the lock. An act on many messages is done in
    pieces, one transaction each: `done` is how many messages the earlier pieces have handled.
    """

    def __init__(self, holders: Iterable[str] = (), *, waited: float = 0.0, done: int = 0) -> None:
        self.holders = list(holders)
        self.waited = waited
        self.done = done
        there = "; ".join(self.holders) or "it has ended meanwhile, or its session is not visible"
        changed = f"{done} were done before and stay done, the rest is" if done else "Nothing was"
        super().__init__(
            f"a row or a stream is locked by another transaction, and was not free after "
            f"{waited:g} s. {changed} {'un' if done else ''}changed. Who may hold it: {there}. Try "
            "again when that transaction has ended, or end it with pg_terminate_backend(pid)."
        )


class Undecodable(DeadletterError, ValueError):
    """A stored payload cannot be decoded; only this message is affected."""


class WorkerLost(DeadletterError):
    """
    An attempt ended because its worker did: named by the results of tasks, never raised.
    """


class Permanent(DeadletterError):
    """Raise in a handler: the message can never succeed and is quarantined at once."""


class Retry(DeadletterError):
    """Raise in a handler: fail, and try again `after` this delay instead of the policy's."""

    def __init__(self, why: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(why)
        # Checked here, inside the handler, where a bad value fails one message only.
        self.after = None if after is None else as_timedelta(after, field="after")
