"""
Candidates: what a claim does with the due messages that it finds.

The statement `claim` leases plain messages at once and returns the other candidates with a verdict.
Messages of streams are leased in runs or parked; messages at a limit are judged, and leased or
quarantined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any, NamedTuple

from .. import crash_points, sql
from ..conf import get_settings
from ..error_details import HISTORY_LIMIT
from ..failure_policy import Policy, stored_reasons
from ..models import Message
from ..status import FailureReason, Status
from . import streams
from .counters import CounterKey
from .limits import Limits
from .locks import for_each_unlocked
from .quarantine import MessageDeath, count_lost, quarantine, releases_of_workers
from .transaction import Stream, Transaction
from .values import Claimed, Floor

#: Looks at one place before a claim gives up on it, when all that it met was blocked.
ROUNDS = 10
#: Candidates of one look, and streams after which a claim looks no further: each stream is a lock,
#: and PostgreSQL has room for some thousands of them in all.
REACH = 1_000
#: Factor on the candidates expected to be enough: another look costs more than a few candidates too
#: many.
SPARE = 1.25

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Verdicts on messages that the statement leases by itself.
_PLAIN = ("leased", "lease")
#: Verdicts that say only that a limit may have been reached.
_JUDGED = ("exhausted", "exhausted or expired", "lost", "unregistered")
#: Constructing a flag takes longer than reading the rest of the row.
_STATUS = {int(flag): flag for flag in (Status.STORED, Status.STORED | Status.FAILED)}


class _Candidate(NamedTuple):
    """A due message that the statement `claim` did not lease."""

    id: int
    verdict: str
    queue_id: int
    stream: str | None
    #: This transaction holds the lock of its stream.
    is_stream_locked: bool


class _Run(NamedTuple):
    """Messages to lease in order, and the stream they belong to."""

    stream: Stream | None
    ids: list[int]


@dataclass
class _Decisions:
    """What one look decides about its candidates."""

    #: Candidates of streams whose lock is held, by stream.
    in_streams: dict[Stream, list[int]] = field(default_factory=dict)
    runs: list[_Run] = field(default_factory=list)
    deaths: list[MessageDeath] = field(default_factory=list)
    #: Candidates that cannot run now and are parked, by stream.
    blocked: dict[Stream, list[int]] = field(default_factory=dict)


@dataclass
class OpenClaim:
    """One claim in progress: what it has leased so far, and what it passes over."""

    tx: Transaction
    token: str
    worker: str
    lease: timedelta | None
    limit: int
    limits: Limits
    #: Messages that failed in this transaction.
    failed: frozenset[int]
    #: Candidates that a message is expected to take, and candidates that were of use so far.
    expected: float = 1.0
    used: int = 0
    #: Where the first look found its first candidate.
    floor: Floor | None = None
    messages: list[Claimed] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    #: Streams whose lock is held.
    locked: set[Stream] = field(default_factory=set)
    #: Streams that are passed over for the rest of this claim, and their candidates: another
    #: transaction is changing them, or they are not needed. Looking at such a stream again could
    #: take later messages while the earlier ones are passed over.
    skipped: set[Stream] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    #: Messages whose last lease ran out unreported.
    lost: set[int] = field(default_factory=set)
    #: Messages that were parked, and whether there may be more where they were.
    parked: int = 0
    cut_short: bool = False

    @property
    def room(self) -> int:
        return self.limit - len(self.messages)

    def take_from(self, places: Iterator[dict[str, Any]]) -> None:
        """Claim from one place after the other until the claim is full."""
        for place in places:
            for _ in range(ROUNDS):
                if not self.room or not self._look(place):
                    break
            else:
                self.cut_short = True
            if not self.room:
                return

    def _look(self, place: dict[str, Any]) -> bool:
        """Claim what is due at a place; return whether another look is worthwhile."""
        # Each candidate is locked, and so is its stream: where ten streams will fill the room, the
        # next five hundred are left alone. After the first look the expectation has failed.
        limit = min(self.room, REACH)
        if not self.used:
            limit = min(limit, ceil(self.room * self.expected * SPARE) + 1)
        params = {"lease": self.lease, **place}
        if self.tx.is_sqlite and self.lease is None:
            params["lease"] = place["lease_timeout"]
        rows = self.tx.run(
            "claim",
            limit=limit,
            token=self.token,
            worker=self.worker,
            exclude=sorted(self.failed | self.passed),
            **params,
        )
        # A row: verdict, first due time or queue id, place or stream lock, id, then the message;
        # see `_claimed`. The hot path: only the other candidates become named tuples.
        leased = [row for row in rows if row[0] == "leased"]
        if self.tx.is_sqlite:
            # Every candidate comes first, in order; the leased ones come again.
            turns = {id: turn for turn, id in enumerate(dict.fromkeys(row[3] for row in rows))}
            leased.sort(key=lambda row: turns[row[3]])
        else:
            leased.sort(key=lambda row: row[2])
        if leased and self.floor is None and not self.tx.is_sqlite:
            since = _EPOCH + timedelta(microseconds=leased[0][1])
            self.floor = Floor(since, min([row[3] for row in rows]))
        self.messages += [self._claimed(row) for row in leased]
        others: list[_Candidate] = []
        if len(leased) < len(rows):
            others = [
                _Candidate(row[3], row[0], row[1], row[9], bool(row[2]))
                for row in rows
                if row[0] not in _PLAIN
            ]
        seen = len(leased) + len(others)
        unneeded = self._decide(others) if others else 0
        self.used += seen - unneeded
        if seen < limit or not (others or self.room > 0):
            return False
        if len(self.locked) >= REACH:
            self.cut_short = True
        return not self.cut_short

    def _decide(self, candidates: Sequence[_Candidate]) -> int:
        """Lease, park or quarantine candidates; return how many were not needed."""
        decisions = _Decisions()
        judgement = self.limits.judge([item.id for item in candidates if item.verdict in _JUDGED])
        self.lost |= judgement.lost
        for id, verdict, queue_id, name, is_stream_locked in candidates:
            if name is not None and verdict == "stream":
                stream = (queue_id, name)
                if is_stream_locked and stream not in self.skipped:
                    decisions.in_streams.setdefault(stream, []).append(id)
                else:
                    # Another transaction is changing the stream. Leave the message due: parking it
                    # without the lock could hide it from the transaction that would wake it.
                    self._skip(stream, [id])
            elif verdict not in _JUDGED:
                decisions.deaths.append(_death(id, verdict))
            elif id in judgement.deaths:
                decisions.deaths.append(judgement.deaths[id])
            elif verdict == "exhausted or expired":
                decisions.deaths.append(_death(id, "expired"))
            else:
                decisions.runs.append(_Run(None, [id]))
        self.locked |= decisions.in_streams.keys()
        unneeded = self._choose_runs(decisions)
        dying = {death.id for death in decisions.deaths}
        if decisions.runs:
            self._lease_runs(decisions, dying)
        self._park(decisions, dying)
        if decisions.deaths:
            self._quarantine(decisions.deaths)
        return unneeded

    def _choose_runs(self, decisions: _Decisions) -> int:
        """
        Decide for each stream: a run, some deaths, or nothing to be leased now.

        Streams are read some at a time: a few long ones may fill the batch. Streams that are not
        needed are neither read nor parked, only left for the next claim. Returns the number of
        their candidates.
        """
        cap = get_settings().stream_cap
        room = self.room - len(decisions.runs)
        unread = list(decisions.in_streams)
        many = -(-room // cap)
        while unread and room > 0:
            some, unread = unread[:many], unread[many:]
            taken = self._choose_from(some, decisions, cap=cap, room=room)
            room -= taken
            # As many as are enough if the next are like these; more each time nothing is found.
            many = -(-room * len(some) // taken) if taken else 4 * many
        for stream in unread:
            self._skip(stream, decisions.in_streams[stream])
        return sum(len(decisions.in_streams[stream]) for stream in unread)

    def _choose_from(
        self, some: Sequence[Stream], decisions: _Decisions, *, cap: int, room: int
    ) -> int:
        """Add the decisions on these streams; return how many messages are to be leased."""
        left = room
        heads, judgement = streams.read_heads(
            self.tx, some, cap=cap, exclude=self.failed, limits=self.limits
        )
        for stream in some:
            ids = decisions.in_streams[stream]
            head = heads.get(stream)
            if head is None:
                decisions.blocked[stream] = ids
                continue
            self.lost.update(member.id for member in head.members if member.lost)
            choice = streams.choose_run(
                head.members, policy=head.policy, halted_at=head.halted_at, room=min(cap, left)
            )
            overflowing = {member.id for member in head.members if member.overflow}
            decisions.deaths += [
                _death(id, "overflow") if id in overflowing else judgement.deaths[id]
                for id in choice.exhausted
            ]
            decisions.deaths += [_death(id, "expired") for id in choice.expired]
            if choice.run:
                decisions.runs.append(_Run(stream, choice.run))
                left -= len(choice.run)
            elif choice.blocked:
                decisions.blocked[stream] = ids
            elif left <= 0:
                self._skip(stream, ids)
            # Else all that was read is dying: another look decides.
        return room - left

    def _lease_runs(self, decisions: _Decisions, dying: Collection[int]) -> None:
        """Lease the runs; the other candidates of their streams are blocked by them."""
        runs = decisions.runs
        ids = [id for run in runs for id in run.ids]
        rows = self.tx.run(
            "lease_runs",
            ids=ids,
            keep=sorted({*ids, *dying}),
            runs=[n for n, run in enumerate(runs) for _ in run.ids],
            places=[place for run in runs for place, _ in enumerate(run.ids, 1)],
            token=self.token,
            worker=self.worker,
            lease=self.lease,
            history_limit=HISTORY_LIMIT,
        )
        # As `claim` returns them: three columns in front, the largest limit instead of the queue's.
        leased = {
            row[0]: ("leased", None, None, *row[:8], largest_limit(row[8], row[17]), *row[9:17])
            for row in rows
        }
        lost: list[Claimed] = []
        for stream, run in runs:
            taken = [id for id in run if id in leased]
            messages = [self._claimed(leased[id]) for id in taken]
            self.messages += messages
            for message in messages:
                if message.id in self.lost:
                    # A lease that ran out unreported was a failed attempt; it is found only now.
                    reason = int(FailureReason.WORKER_LOST)
                    key = CounterKey(message.queue, message.name, message.kind, reason)
                    self.tx.counts.add(key, "failed")
                    lost.append(message)
            if stream is None:
                continue
            rest = [id for id in decisions.in_streams[stream] if id not in leased]
            if taken:
                decisions.blocked[stream] = rest
            else:
                # Another claim has locked the head: nothing blocks the stream, so nothing is
                # parked.
                self._skip(stream, rest)
        if lost:
            self._count_lost(lost)

    def _count_lost(self, lost: Sequence[Claimed]) -> None:
        """Add attempts whose leases ran out to their groups, with the releases of the workers."""
        rows = Message.objects.using(self.tx.using).filter(pk__in=[item.id for item in lost])
        # The lease before this one added its worker to the row.
        workers = {
            id: str(names[-1]) if isinstance(names, list) and names else ""
            for id, names in rows.values_list("pk", "workers")
        }
        releases = releases_of_workers(self.tx, set(workers.values()) - {""})
        for message in lost:
            worker = workers.get(message.id, "")
            release = releases.get(worker, "")
            count_lost(self.tx, message.queue, message.name, release=release, worker=worker)

    def _park(self, decisions: _Decisions, dying: Collection[int]) -> None:
        # A dying message is not parked first: that would erase whose lease ran out.
        waiting = {
            stream: [id for id in ids if id not in dying]
            for stream, ids in decisions.blocked.items()
        }
        parked = streams.park(self.tx, waiting, exclude=self.failed | self.passed | {*dying})
        self.parked += len(parked)
        if parked:
            crash_points.reach("claim.parked")

    def _quarantine(self, deaths: Sequence[MessageDeath]) -> None:
        """Quarantine without waiting: what another transaction blocks stays due for a later one."""
        done = for_each_unlocked(
            self.tx, deaths, lambda tx, some: quarantine(tx, some, by=self.worker)
        )
        for dead in done.results:
            self.dead += dead
        self.passed.update(death.id for death in done.busy)

    def _skip(self, stream: Stream, ids: Collection[int]) -> None:
        self.skipped.add(stream)
        self.passed.update(ids)

    def _claimed(self, row: sql.Row) -> Claimed:
        """Build a message from a row of `claim`. Unpacking takes 60 % of the time of slicing."""
        (
            _verdict,
            _since,
            _place,
            id,
            queue,
            name,
            kind,
            payload,
            headers,
            stream,
            attempt,
            max_attempts,
            status,
            fence,
            created_at,
            instance,
            execution_id,
            activity_id,
            lease,
            reason,
        ) = row
        if self.tx.is_sqlite:
            created_at = sql.as_datetime(created_at, self.tx.connection)
            lease = sql.as_timedelta(lease)
        return Claimed(
            id,
            queue,
            name,
            kind,
            payload,
            headers,
            stream,
            attempt,
            max_attempts,
            _STATUS.get(status) or Status(status),
            fence,
            created_at,
            instance,
            execution_id,
            activity_id,
            lease,
            self.token,
            None if reason is None else FailureReason.read(reason),
            self.worker,
            self.tx.using,
        )


def largest_limit(limit: int | None, reason_policies: str | None) -> int | None:
    """Return the largest limit of a queue where limits differ by the reason of a failure."""
    if reason_policies is None:
        return limit
    return Policy(reasons=stored_reasons(reason_policies)).largest(limit)


def _death(id: int, verdict: str) -> MessageDeath:
    if verdict == "expired":
        return MessageDeath(id, FailureReason.EXPIRED, "expired before it was handled")
    return MessageDeath(
        id,
        FailureReason.POISON_MESSAGE,
        "cannot be claimed: its attempts or its fence is the largest number that can be "
        "stored. Send it again as a new message.",
    )
