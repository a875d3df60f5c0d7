"""Several workers on one database: each message once, names learnt late, breakers shared."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from deadletter import Outgoing, clock, operations, send, send_many
from deadletter.models import Breaker, Message, PoisonRecord, Queue, WorkerProcess
from tests.processes import Line, Worker, Workers, wait_until
from tests.sample.models import Effect

from .rows import attempts, rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def test_two_workers_execute_each_message_once(workers: Workers):
    count = 5000 if connection.vendor == "postgresql" else 1000
    started = [workers.start("--concurrency", 4, "--poll", 0.1) for _ in range(2)]
    for worker in started:
        worker.wait_ready()
    # One that had to start first might find nothing left to do.
    ids = send_many([Outgoing("sample.work", {"sleep": 0.002}) for _ in range(count)])

    wait_until(lambda: not Message.objects.exists(), why=started[0].text)

    assert [worker.stop() for worker in started] == [0, 0]
    assert Counter(line["id"] for line in workers.journal("finish")) == Counter(ids)
    # SQLite gives its one write lock to the process that asks most.
    if connection.vendor == "postgresql":
        assert len({line["pid"] for line in workers.journal("finish")}) == 2
    for worker in started:
        assert "database is locked" not in worker.text()
        assert {line["level"] for line in worker.lines()} == {"INFO"}


@pytest.mark.sqlite_only(reason="one file, several writers")
def test_two_workers_whose_handlers_write_to_one_file_do_not_fail(workers: Workers):
    ids = send_many([Outgoing("sample.effect", {}) for _ in range(300)])

    started = [workers.start("--concurrency", 3, "--poll", 0.1) for _ in range(2)]
    wait_until(lambda: not Message.objects.exists(), why=started[0].text)

    assert [worker.stop() for worker in started] == [0, 0]
    assert sorted(Effect.objects.values_list("message", flat=True)) == ids
    for worker in started:
        assert "database is locked" not in worker.text()


def test_a_rolling_deployment_ends_in_success_without_poison(workers: Workers):
    Queue.objects.filter(name="default").update(max_attempts=200)
    settings = {"UNREGISTERED": "0.02"}  # old ones claim as well: 64 times this at the longest
    ids = send_many([Outgoing("sample.new", {}) for _ in range(10)])
    old = [workers.start("--poll", 0.05, **settings) for _ in range(3)]
    # Whichever of them gets the messages.
    wait_until(
        lambda: sum(len(worker.lines("message_unregistered")) for worker in old) >= 2,
        why=old[0].text,
    )

    # The first is upgraded, the other two follow later.
    assert old[0].stop() == 0
    new = [workers.start("--poll", 0.05, SAMPLE_KNOWS_NEW="1", **settings)]
    workers.wait_for("finish")
    for worker in old[1:]:
        assert worker.stop() == 0
        new.append(workers.start("--poll", 0.05, SAMPLE_KNOWS_NEW="1", **settings))
    wait_until(lambda: not rows(), why=new[0].text)

    assert sorted(line["id"] for line in workers.journal("finish")) == ids
    assert not PoisonRecord.objects.exists()
    assert [worker.wait_ready().stop() for worker in new] == [0, 0, 0]


def test_a_name_nobody_knows_waits_longer_each_time_and_says_so(workers: Workers):
    Queue.objects.filter(name="default").update(unregistered_attempts=3)
    id = send("sample.unknown", {}).pk

    worker = workers.start("--poll", 0.05, UNREGISTERED="0.1")
    wait_until(lambda: not rows(), why=worker.text)

    lines = worker.lines("message_unregistered", message_id=id)
    assert [(line["attempt"], line["remaining"]) for line in lines] == [(1, 2), (2, 1), (3, 0)]
    assert [line["delay"] for line in lines] == pytest.approx([0.1, 0.2, 0.4])
    assert {line["level"] for line in lines} == {"WARNING"}
    assert "will poison in 2 more attempts" in lines[0]["text"]
    [poison] = PoisonRecord.objects.all()
    assert poison.message_id == id
    assert worker.stop() == 0


def test_an_open_breaker_holds_its_name_in_every_process_and_lets_others_flow(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(0), max_attempts=1000)
    first = workers.start("--concurrency", 1, "--poll", 0.05, "--name", "first")
    ids = [send("sample.broken", {}).pk for _ in range(6)]
    first.wait_for("breaker_opened", name="sample.broken")
    wait_until(lambda: Breaker.objects.filter(name="sample.broken").exists())
    second = workers.start("--concurrency", 1, "--poll", 0.05, "--name", "second").wait_ready()
    other = send("sample.work", {}).pk
    workers.wait_for("finish", id=other)

    # What was at hand has failed once at most; since then only probes have been tried.
    breaker = Breaker.objects.get()
    assert breaker.failures >= 3
    assert "the other side is down" in breaker.error
    # Between two probes its time is over, and it is not listed; the next one holds it again.
    held = wait_until(lambda: operations.stats().breakers, why=first.text)
    assert held.keys() == {"sample.broken"}
    assert held["sample.broken"] >= breaker.until
    wait_until(lambda: len(opened(first, second)) >= 3, why=first.text)
    # The first worker to open it logs that; the worker with the probes logs that they fail.
    assert ["still" in line["text"] for line in opened(first, second)[:3]] == [False, True, True]
    starts = workers.journal("start", name="sample.broken")
    probes = len(opened(first, second))
    assert len(starts) <= len(ids) + probes
    assert max(rows().values()) <= 1 + probes

    workers.open("repaired")
    wait_until(lambda: not rows(), why=first.text)

    assert sorted(line["id"] for line in workers.journal("finish", name="sample.broken")) == ids
    wait_until(lambda: not Breaker.objects.exists(), why=first.text)
    assert [first.stop(), second.stop()] == [0, 0]
    assert first.lines("breaker_closed") or second.lines("breaker_closed")
    assert not PoisonRecord.objects.exists()


def opened(*fleet: Worker) -> list[Line]:
    return [line for worker in fleet for line in worker.lines("breaker_opened")]


def test_a_name_that_a_person_holds_waits_in_every_worker_and_over_a_restart(workers: Workers):
    first = workers.start("--poll", 0.05, "--name", "first").wait_ready()
    operations.hold_breaker("sample.work", by="ann", why="the provider asked")
    first.wait_for("name_held", name="sample.work")
    held = [send("sample.work", {}).pk for _ in range(3)]
    aside = Message.objects.filter(lease_token=None, available_at__gt=F("created_at"))
    wait_until(lambda: aside.filter(pk__in=held).count() == 3, why=first.text)
    assert first.stop() == 0

    second = workers.start("--poll", 0.05, "--name", "second").wait_ready()
    other = send("sample.orm", {}).pk
    held.append(send("sample.work", {}).pk)
    wait_until(lambda: other not in rows(), why=second.text)
    wait_until(lambda: aside.filter(pk=held[-1]).exists(), why=second.text)

    assert set(rows()) == set(held)
    assert workers.journal("start", name="sample.work") == []
    assert [attempts(id) for id in held] == [0, 0, 0, 0]
    operations.reset_breaker("sample.work", by="ann")
    wait_until(lambda: not rows(), why=second.text)
    assert sorted(line["id"] for line in workers.journal("finish", name="sample.work")) == held
    assert len(second.lines("name_released")) == 1
    assert second.stop() == 0


def test_a_held_message_is_not_charged(workers: Workers):
    Queue.objects.filter(name="default").update(cooldown=timedelta(0), max_attempts=1000)
    send_many([Outgoing("sample.broken", {}) for _ in range(3)])
    worker = workers.start("--concurrency", 1, "--poll", 0.05)
    worker.wait_for("breaker_opened")

    held = send("sample.broken", {}).pk
    put_back = Message.objects.filter(
        pk=held, lease_token=None, available_at__gt=F("created_at") + timedelta(seconds=0.1)
    )
    wait_until(put_back.exists, why=worker.text)

    assert attempts(held) == 0
    assert not workers.journal("start", id=held)
    assert worker.stop() == 0


def test_beyond_its_limit_a_message_waits_for_the_upgraded_worker(workers: Workers):  # D27
    Queue.objects.filter(name="default").update(unregistered_attempts=1)
    upgraded = {"SAMPLE_KNOWS_NEW": "1", "UNREGISTERED": "0.02"}
    new = workers.start("--queues", "def*", "--name", "new", "--poll", 0.05, **upgraded)
    row = WorkerProcess.objects.filter(name="new")
    wait_until(row.exists, why=new.text)
    new.signal(signal.SIGKILL)
    new.wait()
    old = workers.start("--poll", 0.05, UNREGISTERED="0.02")

    def is_put_off_often() -> bool:
        # The heart of the killed process goes on: only what it wrote of itself counts.
        row.update(seen_at=clock.now("default"))
        return len(old.lines("message_unregistered")) >= 4

    id = send("sample.new", {}).pk
    wait_until(is_put_off_often, why=old.text)
    assert not PoisonRecord.objects.exists()
    assert rows() == {id: 0}
    again = workers.start("--queues", "def*", "--name", "new", "--poll", 0.05, **upgraded)
    workers.wait_for("finish", id=id)

    wait_until(lambda: not rows(), why=again.text)
    assert not PoisonRecord.objects.exists()
    assert [again.stop(), old.stop()] == [0, 0]
