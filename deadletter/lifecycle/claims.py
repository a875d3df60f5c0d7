"""Who gets which messages? select, judge, lease, park, look further."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from django.db.models import Q

from .. import crash_points, sql
from ..conf import get_settings
from ..durations import Duration, as_timedelta
from ..error_details import HISTORY_LIMIT
from ..failure_policy import Policy, stored_reasons
from ..models import Queue
from ..patterns import queue_selection
from ..status import FailureReason, Status
from . import levels, streams
from .counters import Subject
from .limits import Limits
from .locks import each_free
from .quarantine import Death, quarantine
from .transaction import Stream, Transaction, in_transaction
from .values import Batch, Claimed, ClaimRequest, Floor, Level, Levels

#: How often one claim looks further when what it met was blocked.
ROUNDS = 10
#: Everything a claim may take at once; above 500 nothing is gained.
LIMIT = 10_000
#: Candidates of one look, and streams after which a claim looks no further: each stream is a lock,
#: and PostgreSQL has room for some thousands of them in all.
REACH = 1_000
#: Levels that one statement looks at; of more, the rest is looked at when these were not enough.
LEVELS = 200
#: Candidates looked at beyond those expected to do: another look costs more than a few too many.
SPARE = 1.25


def claim(
    queues: Sequence[str] | None = None,
    limit: int = 100,
    worker: str = "worker",
    lease: Duration | None = None,
    using: str | None = None,
) -> Batch:
    """
    Take up to `limit` due messages under a lease and count the attempt, in one transaction.

    `queues` are names or glob patterns in order of preference, patterns never matching a dead queue
    or deadletter's own; None: all but dead queues. `lease` defaults to the queue's.
    A message that has used up its attempts is quarantined instead, without being returned.
    """
    request = ClaimRequest(queues, limit, lease)
    hint = look_ahead(request, using=using)
    if hint is not None:
        if not hint.due:
            return Batch(new_token(), levels=hint)
        request = replace(request, levels=hint, rediscover=False)
    return in_transaction(lambda tx: take(tx, request, worker=worker), using=using)


def look_ahead(request: ClaimRequest, *, using: str | None) -> Levels | None:
    """
    Find the levels before the transaction, where that spares SQLite its write lock; else None.

    For a claim with nothing to report. One that finds nothing would keep every writer waiting.
    """
    _check(request)
    return levels.look(request, using=using)


def new_token() -> str:
    return secrets.token_hex(8)


def take(
    tx: Transaction, request: ClaimRequest, *, worker: str, exclude: Collection[int] = ()
) -> Batch:
    """Claim inside a transaction; `exclude` are messages that failed in it a moment ago."""
    lease = _check(request)
    taking = _Taking(
        tx=tx,
        token=request.token or new_token(),
        worker=worker,
        lease=lease,
        limit=request.limit,
        limits=Limits(tx, _policies(request), request.knows),
        failed=frozenset(exclude),
        expected=request.candidates if 0 < request.candidates < 1 else 1.0,
    )
    found = _look_at_levels(tx, request, taking)
    if taking.messages:
        crash_points.reach("claim.leased")
    more = taking.cut_short and taking.parked > 0
    return Batch(
        taking.token, taking.messages, taking.dead, more, taking.began, taking.needed, found
    )


def _policies(request: ClaimRequest) -> Mapping[str, Policy]:
    """Return what handlers say, by message name."""
    if not request.max_attempts:
        return request.policies
    limits = {name: Policy(max_attempts=limit) for name, limit in request.max_attempts.items()}
    return {**limits, **request.policies}


def _check(request: ClaimRequest) -> timedelta | None:
    """Refuse a request that makes no sense; return its lease."""
    if not 0 <= request.limit <= LIMIT:
        raise ValueError(f"limit: expected 0 to {LIMIT:,}, got {request.limit!r}")
    lease = None if request.lease is None else as_timedelta(request.lease, field="lease")
    if lease == timedelta(0):
        raise ValueError("lease: must be longer than nothing")
    return lease


def _look_at_levels(tx: Transaction, request: ClaimRequest, taking: _Taking) -> Levels | None:
    """
    Look at the levels that are known, then, if there is room left, at those that exist by now.

    Returns the levels that were found, None where the known ones were enough.
    """
    known, floors = request.levels, request.floors
    if known is not None:
        taking.look_at(_places(tx, request, _asked_for(request, known.due), floors))
        if not (taking.room and request.rediscover) or taking.cut_short:
            return None
    found = levels.discover(tx, request)
    rest: Sequence[Level] = found.due
    if known is not None:
        # Begin at the beginning; what was looked at from there has nothing more to give.
        seen = set() if floors else {(level.queue_id, level.priority) for level in known.due}
        rest = [level for level in rest if (level.queue_id, level.priority) not in seen]
        floors = {}
    taking.look_at(_places(tx, request, rest, floors))
    return found


def _asked_for(request: ClaimRequest, due: Sequence[Level]) -> Sequence[Level]:
    """Return the levels of the queues asked for: those that were known may be of others too."""
    if request.queues is None:
        return due
    place = queue_selection(tuple(request.queues)).place
    return [
        level for level in due if place(level.queue, is_dead_queue=level.is_dead_queue) is not None
    ]


def _places(
    tx: Transaction, request: ClaimRequest, due: Sequence[Level], floors: Mapping[str, Floor]
) -> Iterator[dict[str, Any]]:
    """Yield what a look at some levels needs: many at once on PostgreSQL, one by one on SQLite."""
    if request.shuffle:
        due = levels.shuffled(due)
    # What the queues are is read when it is needed: one may be paused or renamed since.
    names = {} if request.queues is None else queue_selection(tuple(request.queues)).names
    for place in range(0, len(due), LEVELS):
        some = due[place : place + LEVELS]
        if tx.is_sqlite:
            yield from _sqlite_places(tx, some, names)
            continue
        starts = [floors.get(level.queue) for level in some]
        yield {
            "queue_ids": [level.queue_id for level in some],
            "names": [level.queue if level.queue in names else None for level in some],
            "priorities": [level.priority for level in some],
            "since": [start and start.since for start in starts],
            "from_ids": [start.id if start else 0 for start in starts],
        }


def _sqlite_places(
    tx: Transaction, some: Sequence[Level], names: Collection[str]
) -> Iterator[dict[str, Any]]:
    policies = Queue.objects.using(tx.using).filter(paused=False)
    if any(level.queue not in names for level in some):
        policies = policies.filter(Q(sources=None) | Q(name__in=names)).distinct()
    queues = policies.in_bulk({level.queue_id for level in some})
    for level in some:
        queue = queues.get(level.queue_id)
        if queue is None or (level.queue in names and queue.name != level.queue):
            continue
        yield {
            "queue_id": queue.pk,
            "priority": level.priority,
            "max_attempts": queue.max_attempts,
            "unregistered_attempts": (
                queue.max_attempts
                if queue.unregistered_attempts is None
                else queue.unregistered_attempts
            ),
            "largest_limit": _largest_limit(
                queue.max_attempts,
                json.dumps(queue.reason_policies) if queue.reason_policies else None,
            ),
            "lease_timeout": queue.lease_timeout,
        }


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Verdicts on messages that nothing has to be decided about.
_PLAIN = ("leased", "lease")
#: Verdicts that say only that a limit may have been reached.
_JUDGED = ("exhausted", "exhausted or expired", "lost", "unregistered")
#: Making a flag anew takes longer than reading the rest of the row.
_STATUS = {int(flag): flag for flag in (Status.STORED, Status.STORED | Status.FAILED)}

#: The messages to lease in order, and the stream they belong to.
_Run = tuple[Stream | None, list[int]]


@dataclass
class _Taking:
    """One claim under way."""

    tx: Transaction
    token: str
    worker: str
    lease: timedelta | None
    limit: int
    limits: Limits
    failed: frozenset[int]
    #: How many candidates a message is expected to take, and how many were of use so far.
    expected: float = 1.0
    used: int = 0
    #: Where the first look began to find something.
    began: Floor | None = None
    messages: list[Claimed] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    #: Streams whose lock is held.
    locked: set[Stream] = field(default_factory=set)
    #: Streams left to whoever is busy with them, for the rest of this claim, and their candidates.
    #: Looking at one again could take later messages while the earlier ones are passed over.
    skipped: set[Stream] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    #: Messages whose last lease ran out unreported.
    lost: set[int] = field(default_factory=set)
    #: Messages taken out of sight, and whether there may be more where they were.
    parked: int = 0
    cut_short: bool = False

    @property
    def room(self) -> int:
        return self.limit - len(self.messages)

    @property
    def needed(self) -> float:
        """How many candidates a message took."""
        return min(self.used / len(self.messages), 1.0) if self.messages else 1.0

    def look_at(self, places: Iterator[dict[str, Any]]) -> None:
        """Look at one place after the other until there is enough."""
        for place in places:
            for _ in range(ROUNDS):
                if not self.room or not self.look(place):
                    break
            else:
                self.cut_short = True
            if not self.room:
                return

    def look(self, level: dict[str, Any]) -> bool:
        """Claim what is due at a place; say whether it is worth looking again."""
        asked = self._reach()
        rows = self._candidates(level, asked)
        leased = [row for row in rows if row[0] == "leased"]
        others = [row for row in rows if row[0] not in _PLAIN] if len(leased) < len(rows) else []
        if self.tx.is_sqlite:
            # Every candidate comes first, in order; what was leased of them comes again.
            turns = {id: turn for turn, id in enumerate(dict.fromkeys(row[3] for row in rows))}
            leased.sort(key=lambda row: turns[row[3]])
        else:
            leased.sort(key=lambda row: row[2])
        if leased and self.began is None and not self.tx.is_sqlite:
            since = _EPOCH + timedelta(microseconds=leased[0][1])
            self.began = Floor(since, min([row[3] for row in rows]))
        seen = len(leased) + len(others)
        self.messages += [self._claimed(row[3:]) for row in leased]
        unneeded = self._judge(others) if others else 0
        self.used += seen - unneeded
        if seen < asked or not (others or self.room > 0):
            return False
        if len(self.locked) >= REACH:
            self.cut_short = True
        return not self.cut_short

    def _reach(self) -> int:
        """
        How many candidates to look at. Each is locked, and so is its stream: where ten streams will
        fill the room, the next five hundred are left alone. If they do not, there is no telling.
        """
        if self.used:
            return min(self.room, REACH)
        return min(self.room, REACH, ceil(self.room * self.expected * SPARE) + 1)

    def _candidates(self, level: dict[str, Any], room: int) -> list[sql.Row]:
        params = {"lease": self.lease, **level}
        if self.tx.is_sqlite and self.lease is None:
            params["lease"] = level["lease_timeout"]
        return self.tx.run(
            "claim",
            limit=room,
            token=self.token,
            worker=self.worker,
            exclude=sorted(self.failed | self.passed),
            **params,
        )

    def _judge(self, rows: list[sql.Row]) -> int:
        """Deal with candidates that are not simply leased; say how many were not needed."""
        deaths: list[Death] = []
        runs: list[_Run] = []
        blocked: dict[Stream, list[int]] = {}
        candidates: dict[Stream, list[int]] = {}
        judged = self.limits.judge([row[3] for row in rows if row[0] in _JUDGED])
        self.lost |= judged.lost
        for verdict, queue_id, locked, id, _, _, _, _, _, stream, *_ in rows:
            if verdict == "stream" and locked and (queue_id, stream) not in self.skipped:
                candidates.setdefault((queue_id, stream), []).append(id)
            elif verdict == "stream":
                # Somebody is changing the stream at this moment. Leave the message due: parking it
                # now, without the lock, could hide it from the one who would have to wake it.
                self._skip((queue_id, stream), [id])
            elif verdict not in _JUDGED:
                deaths.append(_death(id, verdict))
            elif id in judged.deaths:
                deaths.append(judged.deaths[id])
            elif verdict == "exhausted or expired":
                deaths.append(_death(id, "expired"))
            else:
                runs.append((None, [id]))
        self.locked |= candidates.keys()
        unneeded = self._choose(candidates, runs, deaths, blocked)
        dying = {death.id for death in deaths}
        self._lease(runs, candidates, blocked, dying)
        waiting = {stream: [id for id in ids if id not in dying] for stream, ids in blocked.items()}
        # What dies is not parked first: that would wipe off whose lease ran out.
        parked = streams.park(self.tx, waiting, exclude=self.failed | self.passed | dying)
        self.parked += len(parked)
        if parked:
            crash_points.reach("claim.parked")
        if deaths:
            self._quarantine(deaths)
        return unneeded

    def _quarantine(self, deaths: Sequence[Death]) -> None:
        """Let them die, but wait for nobody: what is in use elsewhere stays due for a later one."""
        done = each_free(self.tx, deaths, lambda tx, some: quarantine(tx, some, by=self.worker))
        for dead in done.results:
            self.dead += dead
        self.passed.update(death.id for death in done.busy)

    def _choose(
        self,
        candidates: dict[Stream, list[int]],
        runs: list[_Run],
        deaths: list[Death],
        blocked: dict[Stream, list[int]],
    ) -> int:
        """
        Decide for each stream: a run, some deaths, or nothing to be had now.

        Streams are read some at a time: a few long ones may fill the batch, and what is not needed
        is neither read nor parked, only left for the next claim. Returns how many these are.
        """
        cap = get_settings().stream_cap
        room = self.room - len(runs)
        unread = list(candidates)
        many = -(-room // cap)
        while unread and room > 0:
            some, unread = unread[:many], unread[many:]
            left = self._choose_from(some, cap, room, candidates, runs, deaths, blocked)
            taken = room - left
            # As many as will do if the next are like these; more each time while nothing is found.
            many = -(-left * len(some) // taken) if taken else 4 * many
            room = left
        for stream in unread:
            self._skip(stream, candidates[stream])
        return sum(len(candidates[stream]) for stream in unread)

    def _choose_from(
        self,
        some: Sequence[Stream],
        cap: int,
        room: int,
        candidates: dict[Stream, list[int]],
        runs: list[_Run],
        deaths: list[Death],
        blocked: dict[Stream, list[int]],
    ) -> int:
        """Decide for some streams; return how much room is left."""
        heads, judged = streams.read(
            self.tx, some, cap=cap, exclude=self.failed, limits=self.limits
        )
        for stream in some:
            ids = candidates[stream]
            if stream not in heads:
                blocked[stream] = ids
                continue
            policy, halted_at, members = heads[stream]
            self.lost.update(member.id for member in members if member.lost)
            choice = streams.choose_run(
                members, policy=policy, halted_at=halted_at, room=min(cap, room)
            )
            full = {member.id for member in members if member.overflow}
            deaths += [
                _death(id, "overflow") if id in full else judged.deaths[id]
                for id in choice.exhausted
            ]
            deaths += [_death(id, "expired") for id in choice.expired]
            if choice.run:
                runs.append((stream, choice.run))
                room -= len(choice.run)
            elif choice.blocked:
                blocked[stream] = ids
            elif room <= 0:
                self._skip(stream, ids)
            # Else all that was read is dying: another look decides.
        return room

    def _lease(
        self,
        runs: list[_Run],
        candidates: dict[Stream, list[int]],
        blocked: dict[Stream, list[int]],
        dying: set[int],
    ) -> None:
        """Lease the runs; what is left of their streams' candidates waits for them, parked."""
        if not runs:
            return
        ids = [id for _, run in runs for id in run]
        rows = self.tx.run(
            "lease_runs",
            ids=ids,
            keep=sorted({*ids, *dying}),
            runs=[n for n, (_, run) in enumerate(runs) for _ in run],
            places=[place for _, run in runs for place, _ in enumerate(run, 1)],
            token=self.token,
            worker=self.worker,
            lease=self.lease,
            history_limit=HISTORY_LIMIT,
        )
        # The largest limit in place of the queue's, as the statement `claim` has it.
        leased = {row[0]: (*row[:8], _largest_limit(row[8], row[17]), *row[9:]) for row in rows}
        for stream, run in runs:
            taken = [id for id in run if id in leased]
            self.messages += [self._claimed(leased[id]) for id in taken]
            self._count_lost(taken, leased)
            if stream is None:
                continue
            rest = [id for id in candidates[stream] if id not in leased]
            if taken:
                blocked[stream] = rest
            else:
                # Another claim looks at the head: nothing holds the stream, so nothing is parked.
                self._skip(stream, rest)

    def _skip(self, stream: Stream, ids: Collection[int]) -> None:
        self.skipped.add(stream)
        self.passed.update(ids)

    def _count_lost(self, taken: Sequence[int], leased: Mapping[int, sql.Row]) -> None:
        """A lease that ran out unreported was a failed attempt; only now does anybody know."""
        for id in taken:
            if id in self.lost:
                _, queue, name, kind, *_rest = leased[id]
                lost = Subject(queue, name, kind, int(FailureReason.WORKER_LOST))
                self.tx.counts.add(lost, "failed")

    def _claimed(self, row: sql.Row) -> Claimed:
        status, created_at, lease, reason = row[9], row[11], row[15], row[16]
        if self.tx.is_sqlite:
            created_at = sql.as_datetime(created_at, self.tx.connection)
            lease = sql.as_timedelta(lease)
        return Claimed(
            *row[:9],  # type: ignore[call-arg]
            _STATUS.get(status) or Status(status),
            row[10],
            created_at,
            *row[12:15],
            lease,
            self.token,
            None if reason is None else FailureReason.read(reason),
        )


def _largest_limit(limit: int | None, reason_policies: str | None) -> int | None:
    if reason_policies is None:
        return limit
    return Policy(reasons=stored_reasons(reason_policies)).largest(limit)


def _death(id: int, verdict: str) -> Death:
    if verdict == "expired":
        return Death(id, FailureReason.EXPIRED, "expired before it was handled")
    return Death(
        id,
        FailureReason.POISON_MESSAGE,
        "cannot be claimed: its attempts or its fence is the largest number that can be "
        "stored. Send it again as a new message.",
    )
