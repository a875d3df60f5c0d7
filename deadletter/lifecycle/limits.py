"""Limits: which of the messages that a claim meets have used up their attempts or deferrals."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from ..failure_policy import Policy, PolicyInForce, read_counts, stored_reasons, with_one_more
from ..models import Instance, Kind, Message, Queue, WorkerProcess
from ..patterns import ServedQueues
from ..status import FailureReason
from .quarantine import MessageDeath, death_by_limit
from .transaction import Transaction

#: How long a message beyond its limit of deferrals is still deferred while only other workers
#: know its name.
LONGEST_DEFERRAL = timedelta(hours=24)

#: True if the claimer can handle a message of this kind, name and version (None: any version).
Knows = Callable[[str, str, str | None], bool]


@dataclass(frozen=True)
class LimitJudgement:
    """The judgement on messages that may have reached a limit."""

    deaths: dict[int, MessageDeath] = field(default_factory=dict)
    #: Messages whose last lease ran out unreported.
    lost: set[int] = field(default_factory=set)


class _Suspect(NamedTuple):
    """A message that may have reached a limit, and the limits of its queue."""

    id: int
    kind: str
    name: str
    attempts: int
    failure_reason: int | None
    lease_token: str | None
    reason_counts: Any
    unregistered_count: int | None
    unregistered_at: datetime | None
    instance: str | None
    queue: str
    max_attempts: int | None
    reason_policies: Any
    unregistered_attempts: int | None

    @property
    def is_lost(self) -> bool:
        # The message is due: a token that it still has belongs to a lease that ran out.
        return self.lease_token is not None

    @property
    def reason(self) -> FailureReason | None:
        if self.is_lost:
            return FailureReason.WORKER_LOST
        return None if self.failure_reason is None else FailureReason.read(self.failure_reason)

    @property
    def counts(self) -> dict[str, int]:
        found = read_counts(self.reason_counts)
        return with_one_more(found, FailureReason.WORKER_LOST) if self.is_lost else found

    @property
    def deferrals(self) -> int:
        return self.unregistered_count or 0

    @property
    def deferral_limit(self) -> int | None:
        own = self.unregistered_attempts
        return self.max_attempts if own is None else own

    @property
    def is_deferred_too_often(self) -> bool:
        limit = self.deferral_limit
        is_over = limit is not None and self.deferrals >= max(limit, 1)
        # Once a handler has failed or a worker was lost, the attempts are counted instead.
        return is_over and self.reason is FailureReason.UNREGISTERED


_FIELDS = (
    *_Suspect._fields[:10],
    "queue__name",
    "queue__max_attempts",
    "queue__reason_policies",
    "queue__unregistered_attempts",
)


@dataclass
class Limits:
    """The limits of handlers and queues during one claim. Reads rows only when it judges."""

    tx: Transaction
    #: The policies of handlers, by message name.
    handlers: Mapping[str, Policy] = field(default_factory=dict)
    knows: Knows | None = None

    def may_be_reached(self, name: str, kind: str, attempts: int) -> bool:
        """Return whether the handler may have a smaller limit than the queue."""
        return bool(attempts) and name in self.handlers and kind != Kind.ORCHESTRATION

    def judge(self, ids: Collection[int]) -> LimitJudgement:
        """Judge due messages whose rows or streams are locked."""
        judgement = LimitJudgement()
        if not ids:
            return judgement
        rows = Message.objects.using(self.tx.using).filter(pk__in=sorted(ids))
        suspects = [_Suspect(*row) for row in rows.values_list(*_FIELDS)]
        unknown: list[_Suspect] = []
        for suspect in suspects:
            if suspect.is_lost:
                judgement.lost.add(suspect.id)
            if death := self._judge(suspect):
                judgement.deaths[suspect.id] = death
            elif suspect.is_deferred_too_often:
                unknown.append(suspect)
        for suspect in self._without_handler(unknown):
            judgement.deaths[suspect.id] = _death_without_handler(suspect)
        return judgement

    def _judge(self, suspect: _Suspect) -> MessageDeath | None:
        # A flow may have the same name as a handler, whose policy is not meant for it.
        is_flow = suspect.kind == Kind.ORCHESTRATION
        if suspect.kind == Kind.TASK and self.knows is not None:
            # Looks for the task, whose module may not be imported yet: then its policy is known.
            self.knows(suspect.kind, suspect.name, None)
        handler = None if is_flow else self.handlers.get(suspect.name)
        reasons = stored_reasons(json.dumps(suspect.reason_policies))
        queue = Policy(max_attempts=suspect.max_attempts, reasons=reasons)
        policy = PolicyInForce(queue, handler or Policy())
        return death_by_limit(
            suspect.id, policy, suspect.reason, attempts=suspect.attempts, counts=suspect.counts
        )

    def _without_handler(self, suspects: Sequence[_Suspect]) -> list[_Suspect]:
        """Return the messages that no live worker of their queue knows, or deferred too long."""
        versions = self._versions(suspects)
        return [
            suspect
            for suspect in suspects
            if not self._is_known(suspect, versions.get(suspect.instance or ""))
        ]

    def _is_known(self, suspect: _Suspect, version: str | None) -> bool:
        if self.knows is not None and self.knows(suspect.kind, suspect.name, version):
            return True
        since = suspect.unregistered_at
        if since is not None and self.tx.time() - since >= LONGEST_DEFERRAL:
            return False
        is_dead_queue = suspect.queue in self._dead_queues
        return any(
            served.count(suspect.queue, is_dead_queue=is_dead_queue)
            and _can_handle(handlers, suspect, version)
            for served, handlers in self._workers
        )

    def _versions(self, suspects: Sequence[_Suspect]) -> dict[str, str]:
        """Return the flow versions that instances have begun with, by instance."""
        ids = {suspect.instance for suspect in suspects if suspect.kind == Kind.ORCHESTRATION}
        rows = Instance.objects.using(self.tx.using).filter(pk__in=ids - {None})
        return {pk: version for pk, version in rows.values_list("pk", "version") if version}

    @cached_property
    def _dead_queues(self) -> set[str]:
        """The names of dead queues: a pattern never matches one."""
        queues = Queue.objects.using(self.tx.using).filter(sources__isnull=False)
        return set(queues.values_list("name", flat=True))

    @cached_property
    def _workers(self) -> list[tuple[ServedQueues, Sequence[Any]]]:
        """The queues and handlers of the live workers."""
        alive = WorkerProcess.objects.using(self.tx.using).alive(self.tx.time())
        return [
            (ServedQueues([queues]), handlers)
            for queues, handlers in alive.values_list("queues", "handlers")
            if isinstance(handlers, list)
        ]


def _can_handle(handlers: Sequence[Any], suspect: _Suspect, version: str | None) -> bool:
    """Return whether the handlers of a worker's row include the message; see `Registry.known`."""
    # Messages and activities share their handlers. A later release may know other kinds.
    kind = Kind.MESSAGE.value if suspect.kind == Kind.ACTIVITY else suspect.kind
    wanted = [kind, suspect.name]
    return any(
        isinstance(entry, list)
        and entry[:2] == wanted
        and entry[2:] != [Kind.TASK.value]
        and (version is None or entry[2:] in ([], [version]))
        for entry in handlers
    )


def _death_without_handler(suspect: _Suspect) -> MessageDeath:
    return MessageDeath(
        suspect.id,
        verdict=f"gave up after {suspect.deferrals} of {max(suspect.deferral_limit or 0, 1)} "
        "deferrals: no worker knows its name",
        max_attempts=suspect.deferral_limit,
        attempts=suspect.deferrals,
    )
