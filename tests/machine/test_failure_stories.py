"""Sequences of failures, lost leases, unknown names and stages; a model predicts the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from deadletter import FailureReason, operations, send
from deadletter.failure_policy import UNSET, Policy, PolicyInForce, as_json, read_reasons
from deadletter.lifecycle import (
    Claimed,
    ClaimRequest,
    Completion,
    Failure,
    Poisoned,
    Release,
    Scheduled,
    Staged,
    process_batch,
)
from deadletter.models import Message, PoisonRecord

pytestmark = pytest.mark.slow

OUTAGE, BUG = FailureReason.TRANSPORT_UNAVAILABLE, FailureReason.HANDLER_EXCEPTION
INVALID, LOST = FailureReason.VALIDATION_FAILURE, FailureReason.WORKER_LOST
UNREGISTERED = FailureReason.UNREGISTERED
LIMITS = [None, 0, 1, 2, 3, 5]
EVENTS = ["outage", "bug", "invalid", "lost", "defer", "stage", "release", "retry"]
WEIGHTS = [6, 4, 2, 3, 4, 1, 2, 1]


@dataclass
class Model:
    policy: PolicyInForce
    deferrals: int | None
    attempts: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    unregistered: int = 0
    reason: FailureReason | None = None
    is_lost: bool = False
    stages: int = 0

    def is_dead_at_the_claim(self) -> bool:
        if self.is_lost:
            self.fails(LOST)
            self.is_lost = False
        limit = self.deferrals
        is_unknown = self.reason is UNREGISTERED and limit is not None
        return self.is_over() or (is_unknown and self.unregistered >= max(limit, 1))

    def fails(self, reason: FailureReason) -> None:
        self.reason = reason
        key = str(int(reason))
        self.counts[key] = self.counts.get(key, 0) + 1

    def is_over(self) -> bool:
        if not self.attempts:
            return False
        counts = {"attempts": self.attempts, "counts": self.counts}
        return self.policy.reached(self.reason, **counts) is not None

    def begins_anew(self) -> None:
        self.attempts, self.counts, self.unregistered = 0, {}, 0


def some_reasons(chance: random.Random) -> dict[str, dict[str, int | None]]:
    names = chance.sample(["TRANSPORT_UNAVAILABLE", "VALIDATION_FAILURE", "WORKER_LOST"], 3)
    return {name: {"max_attempts": chance.choice(LIMITS)} for name in names[: chance.randrange(3)]}


def report(event: str, message: Claimed, model: Model) -> tuple[dict, type | None]:
    """Return what is reported of an attempt, and what becomes of it."""
    handler = model.policy.handler
    failed = {"outage": OUTAGE, "bug": BUG, "invalid": INVALID}.get(event)
    if failed is not None:
        model.fails(failed)
        failure = Failure(message.id, "no", failed, delay=0, token=message.token, policy=handler)
        return {"failures": [failure]}, Poisoned if model.is_over() else Scheduled
    if event == "defer":
        model.attempts -= 1
        model.unregistered += 1
        model.reason = UNREGISTERED
        about = {"deferred": True, "delay": 0, "token": message.token}
        return {"failures": [Failure(message.id, "?", UNREGISTERED, **about)]}, Scheduled
    if event == "stage" and model.stages < 8:
        model.begins_anew()
        flag = 8 << model.stages
        model.stages += 1
        return {"completions": [Completion(message.id, flag, message.token)]}, Staged
    model.attempts -= 1
    return {"releases": [Release(message.id, 0, message.token)]}, None


@pytest.mark.slow
@pytest.mark.parametrize("stream", [None, "s"])
@pytest.mark.parametrize("seed", range(60))
def test_a_message_dies_exactly_when_the_model_says_so(clock, policy, seed, stream):
    chance = random.Random(seed)
    queue = {"max_attempts": chance.choice(LIMITS), "reason_policies": some_reasons(chance)}
    deferrals = chance.choice([None, 0, 1, 3])
    policy(**queue, unregistered_attempts=deferrals)
    own = chance.choice([UNSET, UNSET, *LIMITS])
    handler = Policy(
        max_attempts=own, reasons=read_reasons(chance.choice([{}, some_reasons(chance)]))
    )
    general = Policy(
        max_attempts=queue["max_attempts"], reasons=read_reasons(as_json(queue["reason_policies"]))
    )
    limit = queue["max_attempts"] if deferrals is None else deferrals
    model = Model(PolicyInForce(general, handler), limit)
    id = send("mail", stream=stream).pk
    request = ClaimRequest(limit=5, lease=60, policies={"mail": handler})

    for _ in range(40):
        is_dead = model.is_dead_at_the_claim()
        batch = process_batch(worker="w", claim=request)
        assert (batch.dead, batch.ids) == (([id], []) if is_dead else ([], [id])), model
        if is_dead:
            break
        [message] = batch
        model.attempts += 1
        assert message.attempt == model.attempts, model
        event = chance.choices(EVENTS, WEIGHTS)[0]
        if event == "lost":
            clock.advance(61)
            model.is_lost = True
            continue
        what, outcome = report("release" if event == "retry" else event, message, model)
        found = process_batch(worker="w", **what)
        assert outcome is None or type(found.outcomes[id]) is outcome, (event, model)
        if outcome is Poisoned:
            break
        if event == "retry" and operations.retry_now([id]).retried:
            model.begins_anew()
        row = Message.objects.get()
        assert (row.attempts, row.reason_counts or {}) == (model.attempts, model.counts), model
        assert (row.unregistered_count or 0) == model.unregistered
    else:
        return
    assert PoisonRecord.objects.get().message_id == id
    assert not Message.objects.exists()
