"""
Every verb in any order, crashes, a clock that jumps and policies that change, against a model.

MACHINE_EXAMPLES and MACHINE_STEPS look further, with other examples each time (`make machine`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deadletter import Status, lifecycle, operations, send
from deadletter.backoff import Backoff
from deadletter.exceptions import Undecodable
from deadletter.lifecycle import (
    Batch,
    Claimed,
    ClaimRequest,
    Completed,
    Completion,
    CompletionRefused,
    Failure,
    LeaseLost,
    Poisoned,
    Refused,
    Released,
    Scheduled,
    Staged,
)
from deadletter.models import Message, OnPoison, PoisonRecord, Queue, StreamPolicy
from deadletter.testing import frozen_clock

from .model import Model, Row, rows

pytestmark = pytest.mark.slow

#: In the suite the same examples every time.
IN_SUITE = "MACHINE_EXAMPLES" not in os.environ
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "100"))
STEPS = int(os.environ.get("MACHINE_STEPS", "40"))

STAGES = [Status(0), Status.EVENT_STORED, Status(8), Status.EVENT_STORED | Status.PUBLISHED]
VERBS = ["complete", "stage", "fail", "release", "renew", "abandon"]
#: Of completions: a stage, one that may be there already, the end, and what is no stage.
FLAGS = [2, 8, 1, 8 | 16, 1 << 14, 4 | 8, 1 << 15, 8 | 1 << 20]
#: Chooses one of however many there are; smaller is simpler, so it shrinks well.
pick = st.integers(0, 50)
few = st.integers(1, 6)
delays = st.sampled_from([None, 0, 5, 90])


class Regret(Exception):
    pass


@dataclass
class Held:
    """What a worker believes it holds."""

    token: str
    ids: list[int]
    worker: str
    messages: dict[int, Claimed]


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.freezing = frozen_clock()
        self.clock = self.freezing.__enter__()
        self.dead = Queue.objects.create(name="dead", max_attempts=2, lease_timeout=60)
        self.work = Queue.objects.create(name="work", max_attempts=3, lease_timeout=60)
        self.model = Model([self.work, self.dead], lambda: self.clock.now)
        self.held: list[Held] = []
        self.used: list[tuple[str, int]] = []
        self.began = True

    def teardown(self) -> None:
        if not hasattr(self, "began"):
            return
        try:
            self.drain()
        finally:
            Message.objects.all().delete()
            PoisonRecord.objects.all().delete()
            Queue.objects.filter(name="work").delete()
            Queue.objects.filter(name="dead").delete()
            self.freezing.__exit__(None, None, None)

    def drain(self) -> None:
        """After all that, nothing is stuck: once poison is out of the way, everything runs."""
        self.edit(paused=False)
        for _ in range(30):
            operations.remove_poison(list(PoisonRecord.objects.values_list("id", flat=True)))
            self.clock.advance(timedelta(days=1))
            while batch := lifecycle.claim(["work", "dead"], limit=3, worker="last"):
                lifecycle.complete(batch.token, batch.ids)
            assert lifecycle.sweep().repaired == 0
            if not Message.objects.exists() and not PoisonRecord.objects.exists():
                return
        raise AssertionError(f"stuck: {rows()}")

    # Sending.

    @rule(
        queue=st.sampled_from(["work", "work", "work", "dead"]),
        stream=st.sampled_from([None, "a", "a", "a", "b"]),
        key=st.sampled_from([None, None, "k1", "k2"]),
        delay=delays,
        expires_in=st.sampled_from([None, None, None, 5, 100]),
        priority=st.sampled_from([0, 0, 0, 3, 9, -100, 100]),
    )
    def send(self, queue, stream, key, delay, expires_in, priority) -> None:
        row = send(
            "m",
            {"n": 1},
            queue=queue,
            stream=stream,
            key=key,
            delay=delay,
            expires_in=expires_in,
            priority=priority,
        )
        holder = [
            known.id
            for known in self.model.rows.values()
            if key and (known.queue_id, known.key) == (row.queue_id, key)
        ]
        if holder:
            assert row.id == holder[0], "a second message with the key"
        else:
            self.model.add(row.id)

    @rule(stream=st.sampled_from([None, "a", "a", "b"]))
    def send_three(self, stream) -> None:
        for _ in range(3):
            self.model.add(send("m", {"n": 1}, queue="work", stream=stream).id)

    @rule(stream=st.sampled_from([None, "a"]), key=st.sampled_from([None, "k1"]))
    def send_and_roll_back(self, stream, key) -> None:
        @transaction.atomic
        def regretted() -> None:
            send("m", queue="work", stream=stream, key=key)
            raise Regret

        with pytest.raises(Regret):
            regretted()

    @rule(which=pick, text=st.sampled_from(["{", "[" * 500, ""]))
    @precondition(lambda self: self.model.rows)
    def damage(self, which, text) -> None:
        # Past the ORM, which would make JSON of it.
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE deadletter_message SET payload = %s WHERE id = %s",
                [text, self.one(self.model.rows, which).id],
            )

    # Claiming.

    @rule(limit=few, queues=st.sampled_from([["work"], ["work", "dead"], ["dead", "work"]]))
    def claim(self, limit, queues) -> None:
        batch = lifecycle.claim(queues, limit=limit, worker="w", lease=60)
        self.took(batch, limit, queues)

    @rule(limit=few)
    def claim_from_the_queue_that_is_edited(self, limit) -> None:
        """Most of the time somebody works: half the steps are for that."""
        self.claim(limit, ["work"])

    @rule(limit=few)
    @precondition(lambda self: self.held)
    def take_over(self, limit) -> None:
        """The leases run out, and somebody else comes before the old holder reports."""
        self.clock.advance(61)
        self.model.compare()
        self.claim(limit, ["work", "dead"])

    @rule(verb=st.sampled_from(VERBS))
    @precondition(lambda self: self.stolen())
    def report_what_somebody_else_holds_now(self, verb) -> None:
        self.report_in_vain(*self.stolen()[0], verb)

    def stolen(self) -> list[tuple[str, int]]:
        """Tokens once given for messages that are under another one now."""
        given = [*self.used, *((held.token, id) for held in self.held for id in held.ids)]
        now = self.clock.now
        return [
            (token, id)
            for token, id in given
            if id in self.model.rows
            and self.model.rows[id].held(now)
            and self.model.rows[id].token != token
        ]

    def took(self, batch: Batch, limit: int, queues: list[str], failed: frozenset = frozenset()):
        """Take a claim over into the model, and see that it was allowed and not too shy."""
        model, now = self.model, self.clock.now
        names = {queue.pk: queue for queue in model.queues.values() if queue.name in queues}
        assert len(set(batch.ids)) == len(batch.ids) <= limit
        assert not failed & set(batch.ids), "claimed what failed in the same call"
        halting = set()
        for id in batch.dead:
            row, most = model.rows[id], model.limit_of(model.rows[id])
            queue = model.queue_of(row)
            is_kept = queue.on_poison == OnPoison.QUARANTINE
            if queue.stream_policy == StreamPolicy.HALT and not is_kept:
                halting.add((row.queue_id, row.stream))
            assert row.claimable(now)
            assert row.expired(now) or (most is not None and row.attempts >= most), row
            lost = row.token is not None
            model.change(id, failures=row.failures + lost, token=None)
            model.die(id)
        for message in batch:
            if message.id not in model.rows:
                model.take_over_copy(message.id)
            row, most = model.rows[message.id], model.limit_of(model.rows[message.id])
            assert row.claimable(now), "claimed what waits or is held"
            assert row.queue_id in names
            assert not names[row.queue_id].paused
            assert not row.expired(now)
            assert message.attempt == row.attempts + 1
            assert most is None or message.attempt <= most
            assert (message.fence, message.status) == (row.fence + 1, row.status)
            assert message.token == batch.token
            model.change(
                message.id,
                attempts=message.attempt,
                fence=message.fence,
                token=batch.token,
                available=now + timedelta(seconds=60),
                failures=row.failures + (row.token is not None),
            )
            with suppress(Undecodable):
                assert message.payload in ({"n": 1}, None)
        model.compare()
        model.check_order(batch.ids, failed)
        self.check_adjacent(batch)
        if batch.ids:
            self.held.append(
                Held(batch.token, list(batch.ids), "w", dict(zip(batch.ids, batch, strict=True)))
            )
        if len(batch.ids) < limit:
            left = [
                row
                for row in model.rows.values()
                if row.due(now) and row.queue_id in names and not names[row.queue_id].paused
            ]
            # What died in this claim may have come to a dead queue behind its back.
            left = [row for row in left if row.source not in batch.dead]
            # Under halt a death ends the look at its stream. When it was discarded or moved,
            # nothing halts after all: what it has woken is due, and the next claim takes it.
            left = [row for row in left if (row.queue_id, row.stream) not in halting]
            assert {row.id for row in left} <= failed, ("left behind", left)

    def check_adjacent(self, batch: Batch) -> None:
        runs = [(run[0].queue, run[0].stream) for run in batch.runs() if run[0].stream]
        assert len(runs) == len(set(runs)), "the messages of a stream are not adjacent"
        for run in batch.runs():
            assert [message.id for message in run] == sorted(message.id for message in run)

    # Settling. What the model says of a token decides what must come of it.

    @rule(which=pick, upto=few)
    @precondition(lambda self: self.held)
    def complete(self, which, upto) -> None:
        held = self.one(self.held, which)
        ids = held.ids[:upto]
        self.settle(held, ids, lambda: lifecycle.complete(held.token, ids), self.completed)

    @rule(which=pick, upto=few, flags=st.sampled_from(FLAGS))
    @precondition(lambda self: self.held)
    def complete_stage(self, which, upto, flags) -> None:
        held = self.one(self.held, which)
        ids = held.ids[:upto]
        mine = [id for id in ids if self.is_held(id, held.token)]
        expected = {id: self.staged(id, flags) for id in mine}
        refused = {id for id, what in expected.items() if what is Refused}
        try:
            outcomes = lifecycle.complete(held.token, ids, status=flags)
            lost, said = [], set()
            assert {id: type(outcomes[id]) for id in mine} == expected
        except CompletionRefused as error:
            lost, said = error.lost, set(error.ids)
        except LeaseLost as error:
            lost, said = error.ids, set()
        assert said == refused
        assert sorted(lost) == sorted(set(ids) - set(mine))
        rest = self.release_rest(held, [id for id in mine if expected[id] is Staged])
        self.forget(held, [*(id for id in ids if id not in refused), *rest])

    @rule(
        which=pick,
        upto=few,
        delay=delays,
        permanent=st.sampled_from([False, False, False, True]),
        stages=st.sampled_from(STAGES),
    )
    @precondition(lambda self: self.held)
    def fail(self, which, upto, delay, permanent, stages) -> None:
        held = self.one(self.held, which)
        ids = held.ids[:upto]
        failures = [
            Failure(id, error="x", delay=delay, permanent=permanent, completed=stages) for id in ids
        ]
        by_id = {failure.id: failure for failure in failures}
        self.settle(
            held,
            ids,
            lambda: lifecycle.fail(held.token, failures),
            lambda one, outcome: self.failed(by_id[one], outcome),
        )

    @rule(which=pick, upto=few, by_name=st.booleans())
    @precondition(lambda self: self.held)
    def release(self, which, upto, by_name) -> None:
        held = self.one(self.held, which)
        ids = held.ids[-upto:]
        self.settle(
            held,
            ids,
            lambda: lifecycle.release(held.token, ids, by_name=by_name),
            lambda one, outcome: self.released(one, outcome, by_name=by_name),
        )

    @rule(which=pick, lease=st.sampled_from([10, 60, 200]))
    @precondition(lambda self: self.held)
    def renew(self, which, lease) -> None:
        held = self.one(self.held, which)
        mine = [id for id in held.ids if self.is_held(id, held.token)]
        try:
            lifecycle.renew(held.token, held.ids, lease=lease)
            lost = []
        except LeaseLost as error:
            lost = error.ids
        assert sorted(lost) == sorted(set(held.ids) - set(mine))
        for id in mine:
            self.model.change(id, available=self.clock.now + timedelta(seconds=lease))

    @rule(which=pick)
    @precondition(lambda self: self.held)
    def refund(self, which) -> None:
        held = self.one(self.held, which)
        now = self.clock.now
        over = [
            id
            for id in held.ids
            if id in self.model.rows
            and self.model.rows[id].token == held.token
            and self.model.rows[id].due(now)
        ]
        assert sorted(lifecycle.refund(held.token, held.ids)) == sorted(over)
        for id in over:
            row = self.model.rows[id]
            self.model.change(id, token=None, attempts=max(row.attempts - 1, 0))

    @rule(
        which=pick,
        delay=delays,
        count=st.booleans(),
        force=st.sampled_from([False, False, True]),
        limit=st.sampled_from([None, None, 1, 4]),
    )
    @precondition(lambda self: self.held)
    def abandon(self, which, delay, count, force, limit) -> None:
        held = self.one(self.held, which)
        id = held.ids[0]

        def call() -> dict:
            outcome = lifecycle.abandon(
                held.token,
                id,
                delay=delay,
                count=count,
                force_poison=force,
                max_attempts=limit,
                error="x",
            )
            return {id: outcome}

        def expect(id: int, outcome: Any) -> None:
            row = self.model.rows[id]
            most = self.model.queue_of(row).max_attempts if limit is None else limit
            if not count and not force:
                assert outcome == Released()
                wait = timedelta(seconds=delay or 0)
                self.released(id, outcome, by_name=False, wait=wait)
                return
            self.model.change(
                id,
                token=None,
                available=self.clock.now + timedelta(seconds=delay or 0),
                failures=row.failures + 1,
            )
            if force or (most is not None and row.attempts >= most):
                assert outcome == Poisoned(row.attempts)
                self.model.die(id)
            else:
                assert outcome == Released()

        self.settle(held, [id], call, expect)

    @rule(
        which=pick,
        choices=st.lists(st.sampled_from("cfrnbs"), min_size=6, max_size=6),
        delay=delays,
        limit=st.integers(0, 6),
        queues=st.sampled_from([["work"], ["work", "dead"]]),
        known=st.booleans(),
    )
    @precondition(lambda self: self.held)
    def process_batch(self, which, choices, delay, limit, queues, known) -> None:
        held = self.one(self.held, which)
        # Who has the messages has them finished by other statements, to the same end.
        messages = held.messages if known else {}
        plan = dict(zip(held.ids, choices, strict=False))
        failures = [Failure(id, error="x", delay=delay) for id, c in plan.items() if c == "f"]
        by_id = {failure.id: failure for failure in failures}
        reported = [id for id, choice in plan.items() if choice != "n"]
        mine = [id for id in reported if self.is_held(id, held.token)]

        batch = lifecycle.process_batch(
            worker="w",
            token=held.token,
            completions=[
                Completion(id, {"c": 4, "b": 0, "s": 32}[choice], message=messages.get(id))
                for id, choice in plan.items()
                if choice in "cbs"
            ],
            failures=failures,
            releases=[id for id, choice in plan.items() if choice == "r"],
            claim=ClaimRequest(queues, limit, 60) if limit else None,
        )

        assert sorted(batch.lost) == sorted(set(reported) - set(mine))
        assert batch.outcomes.keys() >= set(mine)
        refused = set()
        for id in sorted(mine, key=lambda one: "cbfrs".index(plan[one])):
            outcome = batch.outcomes[id]
            if plan[id] == "s":
                expected = self.staged(id, 32)
                assert type(outcome) is expected
                refused |= {id} if expected is Refused else set()
            elif plan[id] == "c":
                self.completed(id, outcome)
            elif plan[id] == "f":
                self.failed(by_id[id], outcome)
            else:
                self.released(id, outcome, by_name=plan[id] == "b")
        assert set(batch.refused) == refused
        rest = self.release_rest(
            held, [id for id in mine if isinstance(batch.outcomes[id], Staged)]
        )
        assert batch.outcomes.keys() == {*mine, *rest}
        self.forget(held, [*(id for id in reported if id not in refused), *rest])
        failed = frozenset(id for id in mine if plan[id] == "f")
        if limit:
            self.took(batch, limit, queues, failed)

    @rule(which=pick)
    @precondition(lambda self: self.held)
    def crash(self, which) -> None:
        """The worker is gone, and with it the knowledge of what it held."""
        held = self.one(self.held, which)
        self.used += [(held.token, id) for id in held.ids]
        self.held.remove(held)

    @rule(which=pick, verb=st.sampled_from(["complete", "fail", "release", "renew", "abandon"]))
    @precondition(lambda self: self.used)
    def settle_again(self, which, verb) -> None:
        """A used token, a token of a crashed worker, of a lease that is over: nothing changes."""
        token, id = self.one(self.used, which)
        if self.is_held(id, token):
            return  # crashed, but its lease is still good
        self.report_in_vain(token, id, verb)

    def report_in_vain(self, token: str, id: int, verb: str) -> None:
        call = {
            "complete": lambda: lifecycle.complete(token, [id]),
            "stage": lambda: lifecycle.complete(token, [id], status=64),
            "fail": lambda: lifecycle.fail(token, [Failure(id, permanent=True)]),
            "release": lambda: lifecycle.release(token, [id], by_name=True),
            "renew": lambda: lifecycle.renew(token, [id]),
            "abandon": lambda: lifecycle.abandon(token, id, force_poison=True),
        }[verb]
        before = rows()
        with pytest.raises(LeaseLost):
            call()
        assert rows() == before

    # The world.

    @rule(seconds=st.sampled_from([1, 5, 59, 61, 61, 130, 3600]))
    def advance(self, seconds) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([1, 61, 7200]))
    def set_the_clock_back(self, seconds) -> None:
        self.clock.advance(-seconds)

    @rule()
    def sweep(self) -> None:
        now = self.clock.now
        expired = [row.id for row in self.model.rows.values() if row.expired(now)]
        dying = [id for id in expired if self.model.rows[id].claimable(now)]
        swept = lifecycle.sweep()
        for id in dying:
            row = self.model.rows[id]
            self.model.change(id, failures=row.failures + (row.token is not None), token=None)
            self.model.die(id)
        assert swept.expired == len(dying)
        assert swept.repaired == 0

    @rule(
        max_attempts=st.sampled_from([None, 0, 1, 2, 5]),
        stream_policy=st.sampled_from(["strict", "release", "halt"]),
    )
    def edit_policy(self, max_attempts, stream_policy) -> None:
        self.edit(max_attempts=max_attempts, stream_policy=stream_policy)

    @rule(on_poison=st.sampled_from(OnPoison.values))
    def edit_destination(self, on_poison) -> None:
        target = self.dead if on_poison == OnPoison.DEAD_QUEUE else None
        self.edit(on_poison=on_poison, dead_queue=target)

    @rule(paused=st.booleans())
    def pause(self, paused) -> None:
        self.edit(paused=paused)

    def edit(self, **values) -> None:
        for name, value in values.items():
            setattr(self.work, name, value)
        is_refused = self.work.stream_policy == "halt" and self.work.on_poison != "quarantine"
        try:
            self.work.save()
        except ValidationError:
            assert is_refused
            self.work.refresh_from_db()
        else:
            assert not is_refused

    # People.

    @rule(which=pick)
    @precondition(lambda self: self.model.poison)
    def retry_poison(self, which) -> None:
        record = self.one(self.model.poison, which)
        key = PoisonRecord.objects.get(message_id=record.message_id).pk
        queue = self.work if record.queue == "work" else self.dead
        taken = any(
            record.key and (row.queue_id, row.key) == (queue.pk, record.key)
            for row in self.model.rows.values()
        )
        result = operations.retry_poison([key])
        if taken:
            assert list(result.refused) == [key]
            return
        assert result.retried == [key]
        del self.model.poison[record.message_id]
        self.model.add(record.message_id)
        row = self.model.rows[record.message_id]
        assert (row.attempts, row.fence, row.token) == (0, record.fence, None)
        assert row.status == record.status & ~Status.FAILED
        assert not row.released
        assert row.due(self.clock.now)

    @rule(which=pick)
    @precondition(lambda self: self.model.poison)
    def remove_poison(self, which) -> None:
        record = self.one(self.model.poison, which)
        key = PoisonRecord.objects.get(message_id=record.message_id).pk
        assert operations.remove_poison([key]).removed == [key]
        del self.model.poison[record.message_id]
        self.model.ended[record.message_id] = "removed"

    @rule(which=pick)
    @precondition(lambda self: self.model.rows)
    def retry_now(self, which) -> None:
        row = self.one(self.model.rows, which)
        now = self.clock.now
        reason = Message.objects.get(pk=row.id).failure_reason
        was_tried = bool(row.status & Status.FAILED) or row.attempts > 0 or reason is not None
        done = operations.retry_now([row.id]).retried
        expected = was_tried and (row.waits(now) or row.due(now))
        assert done == ([row.id] if expected else [])
        if done:
            self.model.change(
                row.id,
                attempts=0,
                status=row.status & ~int(Status.FAILED),
                available=now if row.waits(now) else row.available,
            )

    @rule(which=pick)
    @precondition(lambda self: self.model.rows)
    def release_by_hand(self, which) -> None:
        row = self.one(self.model.rows, which)
        done = operations.release([row.id]).done
        expected = row.stream is not None and not row.held(self.clock.now)
        assert done == ([row.id] if expected else [])
        if done:
            self.model.change(row.id, released=True)

    @rule(which=pick)
    @precondition(lambda self: self.model.rows)
    def poison_by_hand(self, which) -> None:
        row = self.one(self.model.rows, which)
        done = operations.poison([row.id], why="bad").done
        assert done == ([] if row.held(self.clock.now) else [row.id])
        if done:
            self.model.change(row.id, failures=row.failures + (row.token is not None), token=None)
            self.model.die(row.id)

    @rule(which=pick)
    @precondition(lambda self: self.model.rows)
    def remove(self, which) -> None:
        row = self.one(self.model.rows, which)
        done = operations.remove([row.id]).removed
        assert done == ([] if row.held(self.clock.now) else [row.id])
        if done:
            self.model.end(row.id, "removed")

    # After every step.

    @invariant()
    def everything_is_where_the_model_says(self) -> None:
        if hasattr(self, "began"):
            self.model.compare()
            self.model.check_streams()

    # Helpers.

    def one(self, of: Any, which: int) -> Any:
        things = list(of.values()) if isinstance(of, dict) else list(of)
        return things[which % len(things)]

    def is_held(self, id: int, token: str) -> bool:
        row: Row | None = self.model.rows.get(id)
        return row is not None and row.token == token and row.held(self.clock.now)

    def settle(self, held: Held, ids: list[int], call: Any, expect: Any) -> None:
        mine = [id for id in ids if self.is_held(id, held.token)]
        before = rows()
        try:
            outcomes = call()
            lost: list[int] = []
        except LeaseLost as error:
            outcomes, lost = {}, error.ids
        assert sorted(lost) == sorted(set(ids) - set(mine))
        if not mine:
            assert rows() == before, "a token that is not good changed something"
        for id in mine:
            # LeaseLost says nothing of the others: None, and the rows are compared all the same.
            expect(id, outcomes.get(id))
        self.forget(held, ids)

    def forget(self, held: Held, ids: list[int]) -> None:
        self.used += [(held.token, id) for id in ids]
        held.ids = [id for id in held.ids if id not in ids]
        if not held.ids:
            self.held.remove(held)

    def completed(self, id: int, outcome: Any) -> None:
        assert outcome in (Completed(), None)
        self.model.end(id, "completed")

    def staged(self, id: int, flags: int) -> type:
        """Say what becomes of a completion without PUBLISHED, or with more than stages."""
        row = self.model.rows[id]
        if flags >= 1 << 15:
            return Refused
        if (row.status | flags) & Status.PUBLISHED:
            self.model.end(id, "completed")
            return Completed
        if row.status | flags == row.status:
            return Refused
        self.model.change(
            id,
            status=(row.status | flags) & ~int(Status.FAILED),
            attempts=0,
            token=None,
            available=self.clock.now,
        )
        return Staged

    def release_rest(self, held: Held, staged: list[int]) -> list[int]:
        """What is held behind a stage in its run goes back with it; return these ids."""
        rest = set()
        for id in staged:
            first = self.model.rows[id]
            members = self.model.streams().get((first.queue_id, first.stream), ())
            for row in members:
                if row.id > id and self.is_held(row.id, held.token):
                    self.released(row.id, None, by_name=False)
                    rest.add(row.id)
        return sorted(rest)

    def failed(self, failure: Failure, outcome: Any) -> None:
        row = self.model.rows[failure.id]
        queue = self.model.queue_of(row)
        most = queue.max_attempts
        dies = failure.permanent or (most is not None and row.attempts >= most)
        backoff = Backoff(base=queue.backoff_base, cap=queue.backoff_cap)
        wait = (
            backoff.delay(row.attempts)
            if failure.delay is None
            else timedelta(seconds=failure.delay)
        )
        at = self.clock.now + wait
        if outcome is not None:
            assert outcome == (Poisoned(row.attempts) if dies else Scheduled(at))
        self.model.change(
            failure.id,
            status=row.status | failure.completed | Status.FAILED,
            token=None,
            available=at,
            failures=row.failures + 1,
        )
        if dies:
            self.model.die(failure.id)

    def released(
        self, id: int, outcome: Any, *, by_name: bool, wait: timedelta = timedelta(0)
    ) -> None:
        assert outcome in (Released(), None)
        row = self.model.rows[id]
        self.model.change(
            id,
            token=None,
            available=self.clock.now + wait,
            attempts=max(row.attempts - 1, 0),
            released=row.released or by_name,
        )


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.django_db(transaction=True)
def test_whatever_happens_every_message_is_in_one_place_and_nothing_is_stuck(quiet):
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=IN_SUITE,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
