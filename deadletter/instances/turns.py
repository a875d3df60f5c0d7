"""Turns: a flow decides on one event of its instance; all of the turn is committed, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from django.db import connections, transaction

from .. import forks
from ..exceptions import DeadletterError, LeaseLost, Undecodable
from ..instance_events import (
    ActivityFailed,
    ChildFailed,
    Raised,
    Started,
    as_payload,
    kind_of,
    read_event,
)
from ..lifecycle import Claimed, Completion, complete_in
from ..lifecycle.instances.log import add_log_entry
from ..lifecycle.instances.rows import lock_instances, why_stale, why_unwanted
from ..lifecycle.transaction import Transaction, begin_writing, in_transaction
from ..logs import event
from ..models import Damaged, Instance, InstanceLogKind, InstanceStatus, primary_alias
from ..status import Status
from .decisions import apply_decisions
from .flow_registry import Flow, highest
from .run import Run

#: How often a turn is repeated because its instance changed while the flow was deciding.
TRIES = 5


class UnknownVersion(DeadletterError):
    """No flow of this version is registered here: another worker may have it."""

    def __init__(self, version: str) -> None:
        super().__init__(f"version {version} is not registered")
        self.version = version


class KeepsChanging(DeadletterError):
    """An instance changed during every try of a turn."""


class _Changed(Exception):
    """Rolls back the decisions of a flow about an instance that has changed since."""


def take_turn(message: Claimed, versions: Mapping[str, Flow], *, using: str | None = None) -> None:
    """
    Let the flow of an instance decide on one event, and complete its message with the decisions.

    The flow runs before anything is locked: a flow that hangs must not block reports in its stream.
    Then the locks are taken in the usual order: the stream, the message, the instance.
    Raises: LeaseLost, UnknownVersion, and what the flow raises; nothing of the turn is stored.
    """
    alias = primary_alias(using)
    for _ in range(TRIES):
        try:
            with transaction.atomic(using=alias):
                begin_writing(connections[alias])
                return _Turn(message, versions, alias).take()
        except _Changed:
            continue
    raise KeepsChanging(f"instance {message.instance} changed {TRIES} times during one turn")


class _Turn:
    """One try of a turn."""

    def __init__(self, message: Claimed, versions: Mapping[str, Flow], using: str) -> None:
        self.message = message
        self.versions = versions
        self.using = using
        self.id = message.instance or ""
        self.event = read_event(message.payload)

    def take(self) -> None:
        known = Instance.objects.using(self.using).filter(pk=self.id).first()
        if known is None and isinstance(self.event, Started):
            known = self._without_row(self.event)
        if known is None:
            self._drop()
            return
        run, failure = None, None
        if not self._why_not(known) and not self._must_wait(known):
            run, failure = self._decide(known)
        self._in_transaction(lambda tx: self._commit(tx, known, run, failure))

    def _in_transaction(self, work: Callable[[Transaction], None]) -> None:
        # Only the thread of this handler waits, and not longer than its lease.
        lease = self.message.lease.total_seconds()
        in_transaction(work, using=self.using, wait=lease, is_last=True)

    def _without_row(self, started: Started) -> Instance:
        """Return an unsaved row for an instance of which only the first message exists."""
        execution = self.message.execution_id or 1
        return Instance(
            id=self.id,
            name=self.message.name,
            queue=self.message.queue,
            execution_id=execution,
            first_execution_id=execution,
            input=started.input,
        )

    def _drop(self) -> None:
        """Complete an event whose instance ended and was deleted before it came."""
        self._in_transaction(self._complete)
        event(
            logging.WARNING,
            "instance_missing",
            "message {message_id} ({what}) came for instance {instance}, which no longer exists",
            message_id=self.message.id,
            what=kind_of(self.event),
            instance=self.id,
        )

    def _why_not(self, instance: Instance) -> str:
        return why_unwanted(instance, **self._about)

    @property
    def _about(self) -> dict[str, Any]:
        """What decides whether the event still concerns an instance."""
        return {
            "execution_id": self.message.execution_id,
            "activity_id": self.message.activity_id,
            "event": kind_of(self.event),
        }

    def _must_wait(self, instance: Instance) -> bool:
        """Return whether it was raised before the flow has seen the start of this execution."""
        return isinstance(self.event, Raised) and not instance.is_begun

    def _decide(self, instance: Instance) -> tuple[Run, ActivityFailed | ChildFailed | None]:
        """Call the flow with the event, then with the events raised before its start."""
        version = instance.version or highest(self.versions) or ""
        if version not in self.versions:
            raise UnknownVersion(version)
        for field in ("state", "input", "inbox"):
            if isinstance(damaged := getattr(instance, field), Damaged):
                raise Undecodable(f"the {field} of instance {instance.id}: {damaged.problem}")
        if isinstance(self.event, Started):
            # Different from the row only if an operator has edited the message before a retry.
            instance.input = self.event.input
        run = Run(instance, version=version)
        function = self.versions[version].function
        forks.call(function, run, self.event)
        if isinstance(self.event, ActivityFailed | ChildFailed) and not run.has_answered:
            return run, self.event
        if isinstance(self.event, Started):
            while instance.inbox and run.ending is None:
                forks.call(function, run, read_event(instance.inbox[0]["payload"]))
                instance.inbox = instance.inbox[1:] or None
        return run, None

    def _commit(
        self,
        tx: Transaction,
        known: Instance,
        run: Run | None,
        failure: ActivityFailed | ChildFailed | None,
    ) -> None:
        self._complete(tx)
        instance = self._lock(tx, known)
        if why := self._why_not(instance):
            self._ignore(tx, instance, why)
            return
        self._log(tx, instance)
        if run is None:
            waiting = {"payload": self.message.payload, "message_id": self.message.id}
            instance.inbox = [*(instance.inbox or []), waiting]
        apply_decisions(tx, instance, run, failure, settled=self.message.activity_id)

    def _complete(self, tx: Transaction) -> None:
        seconds = monotonic() - self.message.started if self.message.started else None
        done = Completion(self.message.id, Status.PUBLISHED, self.message.token, seconds)
        if self.message.id not in complete_in(tx, [done]):
            raise LeaseLost([self.message.id])

    def _lock(self, tx: Transaction, known: Instance) -> Instance:
        """Lock the row that the flow saw; if it has changed since, the turn starts again."""
        locked = lock_instances(tx, [self.id]).get(self.id)
        if locked is None and known._state.adding:
            known.created_at = known.updated_at = tx.time()
            known.save(using=tx.using, force_insert=True)
        elif locked is None or locked.revision != known.revision:
            raise _Changed
        return known

    def _ignore(self, tx: Transaction, instance: Instance, why: str) -> None:
        """Log an unwanted event; if the instance has failed, whole: a retry sends it again."""
        missed = (
            instance.status == InstanceStatus.FAILED
            and instance.failed_by is not None
            and not why_stale(instance, **self._about)
        )
        data: dict[str, Any] = {"why": why, "event": kind_of(self.event)}
        if missed:
            data["missed"] = self.message.payload
        add_log_entry(
            tx,
            instance,
            InstanceLogKind.IGNORED,
            name=getattr(self.event, "name", ""),
            activity_id=self.message.activity_id,
            message_id=self.message.id,
            data=data,
            whole=missed,
        )

    def _log(self, tx: Transaction, instance: Instance) -> None:
        data = {key: value for key, value in as_payload(self.event).items() if key != "event"}
        add_log_entry(
            tx,
            instance,
            kind_of(self.event),
            name=str(data.pop("name", "") or instance.name),
            activity_id=data.pop("activity_id", None),
            message_id=self.message.id,
            data=data or None,
        )
