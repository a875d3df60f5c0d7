"""One entry an attempt that failed: when, worker, reason, error, traceback."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from deadletter import FailureReason, send
from deadletter.lifecycle import Failure, claim, fail, release
from deadletter.models import Message, PoisonRecord

LOST = "worker w1 did not report before its lease ran out"


def fail_once(id: int, worker: str = "w1", **failure) -> None:
    batch = claim(worker=worker)
    fail(batch.token, [Failure(id, **failure)])


def history() -> list[dict]:
    return Message.objects.get().history


def test_a_failed_attempt_is_written_down(clock):
    message = send("mail")

    fail_once(message.id, error="boom", reason=FailureReason.TIMEOUT_EXCEEDED, traceback="Trace",
              exception="TimeoutError", frame="shop:bill")  # fmt: skip

    (entry,) = history()
    at = datetime.fromisoformat(entry.pop("at"))
    assert at == clock.now
    assert entry == {
        "worker": "w1",
        "attempt": 1,
        "reason": FailureReason.TIMEOUT_EXCEEDED,
        "error": "boom",
        "traceback": "Trace",
        "exception": "TimeoutError",
        "frame": "shop:bill",
    }


def test_attempts_are_written_down_in_order(clock, policy):
    policy(max_attempts=None)
    message = send("mail")

    for n in range(1, 4):
        fail_once(message.id, worker=f"w{n}", error=f"e{n}", delay=0)

    assert [(entry["attempt"], entry["worker"], entry["error"]) for entry in history()] == [
        (1, "w1", "e1"),
        (2, "w2", "e2"),
        (3, "w3", "e3"),
    ]


@pytest.mark.parametrize("stream", [None, "a"])
def test_a_lease_that_ran_out_is_written_down_by_the_next_claim(clock, stream):
    send("mail", stream=stream)
    claim(worker="w1", lease=60)
    end = clock.now + timedelta(seconds=60)
    clock.advance(100)

    claim(worker="w2")

    row = Message.objects.get()
    (entry,) = row.history
    assert datetime.fromisoformat(entry.pop("at")) == end
    assert entry == {
        "worker": "w1",
        "attempt": 1,
        "reason": FailureReason.WORKER_LOST,
        "error": LOST,
    }
    assert (row.error, row.failure_reason) == (LOST, FailureReason.WORKER_LOST)


def test_the_last_lease_that_ran_out_is_in_the_history_of_the_record(clock, policy):
    policy(max_attempts=2)
    message = send("mail")
    fail_once(message.id, error="boom", delay=0)
    claim(worker="w1", lease=60)
    clock.advance(60)

    claim()

    record = PoisonRecord.objects.get()
    assert [entry["error"] for entry in record.history] == ["boom", LOST]
    assert record.last_failure_reason == FailureReason.WORKER_LOST


def test_a_release_leaves_no_entry(clock):
    message = send("mail")
    batch = claim()

    release(batch.token, [message.id])

    assert history() == []


def test_an_unregistered_name_leaves_no_entry(clock):  # U13
    message = send("mail")

    fail_once(message.id, error="no handler", reason=FailureReason.UNREGISTERED, deferred=True)

    assert history() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fail", "lease"])
def test_the_last_25_attempts_are_remembered(clock, policy, how):
    policy(max_attempts=None)
    message = send("mail")

    for n in range(1, 31):
        if how == "fail":
            fail_once(message.id, error=f"e{n}", delay=0)
        else:
            claim(lease=60)
            clock.advance(60)
    claim()

    entries = history()
    assert [entry["attempt"] for entry in entries] == list(range(6, 31))
    assert Message.objects.get().attempts == 31
