"""
A small model of the queue: what every row must look like after each step.

A step drafts the rows as it expects them; `Model.compare` reads the tables and refuses any other
difference than these: a message nobody holds may have been parked or made due again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from deadletter import Status
from deadletter.models import Message, OnPoison, PoisonRecord, Queue, StreamPolicy


class Row(NamedTuple):
    """A message in a queue."""

    id: int
    queue_id: int
    stream: str | None
    key: str | None
    priority: int
    status: int
    attempts: int
    fence: int
    available: datetime | None
    token: str | None
    released: bool
    expires: datetime | None
    source: int | None
    failures: int

    def held(self, now: datetime) -> bool:
        return self.token is not None and self.available is not None and self.available > now

    def waits(self, now: datetime) -> bool:
        return self.token is None and self.available is not None and self.available > now

    def claimable(self, now: datetime) -> bool:
        """Due or parked."""
        return self.available is None or self.available <= now

    def due(self, now: datetime) -> bool:
        return self.available is not None and self.available <= now

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now


class Record(NamedTuple):
    """A poison record."""

    message_id: int
    queue: str
    stream: str | None
    key: str | None
    status: int
    attempts: int
    fence: int
    halts: bool
    poison_count: int


def rows() -> dict[int, Row]:
    values = Message.objects.values_list(
        "id",
        "queue_id",
        "stream",
        "key",
        "priority",
        "status",
        "attempts",
        "fence",
        "available_at",
        "lease_token",
        "released_at",
        "expires_at",
        "source_id",
        "history",
    )
    found = (
        Row(*value[:10], value[10] is not None, *value[11:13], len(value[13])) for value in values
    )
    return {row.id: row for row in found}


def records() -> dict[int, Record]:
    values = PoisonRecord.objects.values_list(
        "message_id",
        "queue",
        "stream",
        "key",
        "status",
        "attempts",
        "fence",
        "halts",
        "poison_count",
    )
    return {value[0]: Record(*value) for value in values}


class Model:
    """Where every message ever sent is: in a queue, in poison, or ended. Exactly one of them."""

    def __init__(self, queues: Iterable[Queue], now: Callable[[], datetime]) -> None:
        self.queues = {queue.pk: queue for queue in queues}
        self.read_now = now
        self.rows: dict[int, Row] = {}
        self.poison: dict[int, Record] = {}
        self.ended: dict[int, str] = {}
        #: Messages that died into a dead queue in this step: their copies are looked for.
        self.moved: list[Row] = []

    @property
    def now(self) -> datetime:
        return self.read_now()

    def queue_of(self, row: Row) -> Queue:
        return self.queues[row.queue_id]

    def limit_of(self, row: Row) -> int | None:
        limit = self.queue_of(row).max_attempts
        return None if limit is None else max(limit, 1)

    # What a step expects.

    def add(self, id: int) -> None:
        """A message was sent: it is taken over as it was stored."""
        assert id not in self.rows
        assert id not in self.poison
        assert id not in self.ended
        self.rows[id] = rows()[id]

    def change(self, id: int, **values: Any) -> None:
        self.rows[id] = self.rows[id]._replace(**values)

    def end(self, id: int, how: str) -> None:
        del self.rows[id]
        self.ended[id] = how

    def die(self, id: int) -> None:
        """Leave the queue for good, as its policy says now."""
        row = self.rows.pop(id)
        queue = self.queue_of(row)
        if queue.on_poison == OnPoison.DISCARD:
            self.ended[id] = "discarded"
        elif queue.on_poison == OnPoison.DEAD_QUEUE:
            self.ended[id] = "moved"
            self.moved.append(row)
        else:
            halts = row.stream is not None and queue.stream_policy == StreamPolicy.HALT
            self.poison[id] = Record(
                id, queue.name, row.stream, row.key, row.status, row.attempts, row.fence, halts, 0
            )

    # What is there.

    def compare(self) -> None:
        """Read the tables; every difference from what was drafted must be an allowed one."""
        now = self.now
        found = rows()
        self._find_copies(found)
        assert found.keys() == self.rows.keys()
        for id, row in found.items():
            drafted = self.rows[id]
            if row == drafted:
                continue
            assert drafted.claimable(now), (drafted, row)
            assert row.claimable(now), (drafted, row)
            if row.token is None and drafted.token is not None:
                # Its lease ran out; parking it forgets whose it was.
                drafted = drafted._replace(token=None)
            assert row == drafted._replace(available=row.available), (drafted, row)
        self.rows = found
        poison = records()
        assert poison.keys() == self.poison.keys()
        for id, record in poison.items():
            assert record == self.poison[id]._replace(poison_count=record.poison_count)
            assert record.poison_count >= 1
        self.poison = poison
        places = [*self.rows, *self.poison, *self.ended]
        assert len(places) == len(set(places)), "a message in two places"

    def _find_copies(self, found: dict[int, Row]) -> None:
        for dead in self.moved:
            target = self.queue_of(dead).dead_queue_id
            copies = [row for row in found.values() if row.source == dead.id]
            assert len(copies) == 1, (dead, copies)
            copy = copies[0]
            assert copy.id not in self.rows
            assert (copy.queue_id, copy.attempts, copy.status) == (target, 0, Status.STORED)
            assert (copy.token, copy.stream) == (None, dead.stream)
            self.rows[copy.id] = copy
        self.moved.clear()

    def take_over_copy(self, id: int) -> None:
        """A message that died in a claim may be claimed from its dead queue by the same claim."""
        copy = rows()[id]
        dead = next(row for row in self.moved if row.id == copy.source)
        self.moved.remove(dead)
        assert copy.queue_id == self.queue_of(dead).dead_queue_id
        self.rows[id] = copy._replace(attempts=0, fence=0, token=None, available=self.now)

    def streams(self) -> dict[tuple[int, str], list[Row]]:
        """The members of each stream, in order."""
        found: dict[tuple[int, str], list[Row]] = {}
        for id in sorted(self.rows):
            row = self.rows[id]
            if row.stream is not None:
                found.setdefault((row.queue_id, row.stream), []).append(row)
        return found

    def halted_at(self, stream: tuple[int, str]) -> int | None:
        queue = self.queues[stream[0]].name
        halts = [
            record.message_id
            for record in self.poison.values()
            if record.halts and (record.queue, record.stream) == (queue, stream[1])
        ]
        return min(halts, default=None)

    def check_streams(self) -> None:
        """One holder a stream; nothing parked that nobody would wake."""
        now = self.now
        for stream, members in self.streams().items():
            holders = {row.token for row in members if row.held(now)}
            assert len(holders) <= 1, (stream, members)
            halt = self.halted_at(stream)
            awake = any(row.available is not None for row in members)
            for row in members:
                halted = halt is not None and halt < row.id and not row.released
                assert row.available is not None or awake or halted, ("stranded", stream, members)

    def check_order(self, taken: Iterable[int], failed: Iterable[int] = ()) -> None:
        """What a claim took passed nothing it must not; `failed` failed in the same call."""
        taken, failed, now = set(taken), set(failed), self.now
        for stream, members in self.streams().items():
            policy = self.queues[stream[0]].stream_policy
            halt = self.halted_at(stream)
            for row in members:
                if row.id not in taken or row.released:
                    continue
                assert halt is None or halt > row.id, ("passed a halt", row)
                for earlier in members:
                    if earlier.id >= row.id or earlier.id in taken:
                        continue
                    assert policy == StreamPolicy.RELEASE, ("passed", earlier, row)
                    assert earlier.waits(now) or earlier.id in failed, ("passed", earlier, row)
