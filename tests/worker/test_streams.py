"""Streams in a worker: in order inside, side by side with others, a failure stops its own run."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from deadletter import Outgoing, send, send_many
from deadletter.models import Message
from deadletter.worker import exchange
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until

from .rows import rows

pytestmark = pytest.mark.django_db(transaction=True)

STREAMS = [f"s{n}" for n in range(6)]


@pytest.mark.process
def test_streams_run_in_order_inside_and_side_by_side_between(workers: Workers):
    turns = [stream for _ in range(15) for stream in STREAMS]
    send_many([Outgoing("sample.work", {"sleep": 0.01}, stream=stream) for stream in turns])

    started = [workers.start("--concurrency", 3, "--poll", 0.1) for _ in range(2)]
    wait_until(lambda: not rows(), why=started[0].text)

    assert [worker.stop() for worker in started] == [0, 0]
    intervals = defaultdict(list)
    starts = {}
    for line in workers.journal():
        if line["what"] == "start":
            starts[line["id"]] = line["at"]
        else:
            intervals[line["stream"]].append((starts[line["id"]], line["at"], line["id"]))
    for stream in STREAMS:
        ran = sorted(intervals[stream])
        assert [id for _, _, id in ran] == sorted(id for _, _, id in ran)
        assert len(ran) == 15
        # Never two of one stream at a time, in whatever process.
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ran))
    flat = sorted(entry for ran in intervals.values() for entry in ran)
    overlapping = sum(after[0] < before[1] for before, after in itertools.pairwise(flat))
    assert overlapping > 20


def test_the_first_failure_gives_the_rest_of_the_run_back_in_its_own_transaction(
    run, handles, monkeypatch
):
    seen = []
    reported = []
    real = exchange.process_batch

    def record(**given):
        if given["failures"]:
            reported.append(([f.id for f in given["failures"]], [r.id for r in given["releases"]]))
        return real(**given)

    monkeypatch.setattr(exchange, "process_batch", record)

    def work(message: Any) -> None:
        seen.append(message.id)
        if message.id == ids[1]:
            raise RuntimeError("no")

    handles("job", work)
    ids = [send("job", stream="s").pk for _ in range(5)]
    bystanders = [send("job", stream="other").pk, send("job").pk]

    process = run()

    assert reported == [([ids[1]], ids[2:])]
    assert rows() == {ids[1]: 1, **dict.fromkeys(ids[2:], 0)}
    assert sorted(seen) == sorted([*ids[:2], *bystanders])
    assert (process.pump.tally.completed, process.pump.tally.released) == (3, 3)


def test_a_stream_may_mix_plain_and_async_handlers(run, handles, policy):
    policy(cooldown=timedelta(0))
    seen = []

    def plain(message: Any) -> None:
        seen.append(message.id)

    async def asynchronous(message: Any) -> None:
        await asyncio.sleep(0.01)
        seen.append(message.id)
        if message.payload == "fail" and message.attempt == 1:
            raise RuntimeError("no")

    handles("plain", plain)
    handles("async", asynchronous)
    kinds = ["plain", "async", "async", "plain", "async", "plain"]
    ids = [send(kind, "fail" if n == 4 else None, stream="s").pk for n, kind in enumerate(kinds)]
    alone = [send("async", stream="t").pk for _ in range(3)]

    process = run()

    in_stream = [id for id in seen if id in ids]
    assert in_stream == [*ids[:5], *ids[4:]]
    assert [id for id in seen if id in alone] == alone
    assert rows() == {}
    assert (process.pump.tally.completed, process.pump.tally.failed) == (9, 1)


@pytest.mark.slow
def test_async_handlers_run_side_by_side_up_to_the_concurrency(run, handles):
    running = 0
    most = 0

    async def work(message: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    handles("job", work)
    send_many([Outgoing("job") for _ in range(20)])

    process = run(concurrency=5)

    assert most == 5
    assert process.pump.tally.completed == 20


@pytest.mark.slow
@pytest.mark.parametrize("policy_name", ["strict", "release"])
def test_a_run_behind_a_handler_that_hangs_is_given_back_with_its_timeout(
    running, handles, policy, policy_name
):
    policy(stream_policy=policy_name)
    gate = threading.Event()
    seen = []

    def work(message: Any) -> None:
        seen.append(message.id)
        if message.id == ids[0]:
            gate.wait(PATIENCE)

    handles("job", work, timeout=timedelta(seconds=0.3))
    ids = [send("job", stream="s").pk for _ in range(3)]

    with running(concurrency=1, poll=0.05):
        wait_until(lambda: Message.objects.filter(pk=ids[0], attempts=1, lease_token=None).exists())
        if policy_name == "release":
            wait_until(lambda: len(rows()) == 1)
        expected = ids[:1] if policy_name == "strict" else ids
        start = time.monotonic()
        wait_until(lambda: time.monotonic() > start + 0.3)
        gate.set()

    assert seen == expected
    left = {ids[0]: 1, ids[1]: 0, ids[2]: 0} if policy_name == "strict" else {ids[0]: 1}
    assert rows() == left
