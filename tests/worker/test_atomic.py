"""atomic=True: the handler's work and the completion of its message happen together, or not."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from django.db import transaction

from deadletter import send
from deadletter.lifecycle import claim
from deadletter.models import Message
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

from .rows import attempts, rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.process
def test_killed_between_handler_and_commit_neither_happened_and_the_retry_does_both_once(
    workers: Workers,
):
    id = send("sample.effect", {}).pk
    killed = workers.start("--lease", 1.5, SAMPLE_DIES_BEFORE_COMMIT="1")
    workers.wait_for("completed", id=id)
    assert killed.wait() == -signal.SIGKILL

    # Everything was written, nothing committed.
    assert Effect.objects.count() == 0
    assert attempts(id) == 1

    worker = workers.start("--lease", 1.5, "--poll", 0.1)
    wait_until(lambda: not rows(), why=worker.text)
    assert list(Effect.objects.values_list("message", flat=True)) == [id]
    assert worker.stop() == 0


@pytest.mark.process
def test_killed_inside_the_handler_nothing_happened(workers: Workers):
    id = send("sample.effect", {"gate": "end"}).pk
    worker = workers.start("--processes", 2)
    [start] = workers.wait_for("start", id=id)

    os.kill(start["pid"], signal.SIGKILL)
    workers.wait_for("start", id=id, attempt=2)
    assert Effect.objects.count() == 0
    workers.open("end")
    wait_until(lambda: not rows(), why=worker.text)

    assert list(Effect.objects.values_list("message", flat=True)) == [id]
    assert worker.stop() == 0


@pytest.mark.process
@pytest.mark.postgresql_only(reason="SQLite has one writer: nobody can claim during the handler")
def test_the_work_of_a_handler_that_lost_its_lease_is_rolled_back(workers: Workers):
    id = send("sample.effect", {"gate": "end", "note": "x"}).pk
    sleeper = workers.start("--lease", 1, "--poll", 0.1)
    workers.wait_for("start", id=id, attempt=1)
    sleeper.suspend()
    other = workers.start("--lease", 30, "--poll", 0.1)
    workers.wait_for("start", id=id, attempt=2)
    workers.open("end")
    wait_until(lambda: not rows(), why=other.text)

    sleeper.signal(signal.SIGCONT)
    sleeper.wait_for("lease_lost", message_id=id)

    assert sleeper.stop() == 0
    assert other.stop() == 0
    assert Effect.objects.count() == 1
    assert len(workers.journal("start", id=id)) == 2


def test_an_overtaken_handler_leaves_nothing_and_its_thread_goes_on(run, handles, clock):
    stolen = threading.Event()

    def overtaken(message):
        Effect.objects.create(message=message.id)
        if message.attempt == 1:
            # Its lease is over, and another worker claims it.
            clock.advance(61)
            Message.objects.filter(pk=message.id).update(lease_token="0" * 16)
            stolen.set()

    handles("job", overtaken, atomic=True)
    id = send("job").pk

    process = run(concurrency=1)

    assert stolen.is_set()
    tally = process.pump.tally
    assert (tally.completed, tally.lost) == (1, 1)
    assert list(Effect.objects.values_list("message", flat=True)) == [id]


def test_an_atomic_handler_that_fails_leaves_its_work_undone(run, handles):
    def fail(message):
        Effect.objects.create(message=message.id)
        raise RuntimeError("no")

    handles("job", fail, atomic=True)
    id = send("job").pk

    process = run()

    assert process.pump.tally.failed == 1
    assert Effect.objects.count() == 0
    assert rows() == {id: 1}
    assert claim().messages == []


@pytest.mark.parametrize("raised", [RuntimeError("the hook"), SystemExit(3)])
def test_a_hook_that_fails_after_the_commit_is_no_failure_of_the_message(
    run, handles, caplog, raised
):
    def hooked(message):
        def hook() -> None:
            raise raised

        Effect.objects.create(message=message.id)
        transaction.on_commit(hook)

    handles("hooked", hooked, atomic=True)
    id = send("hooked").pk

    process = run()

    assert rows() == {}
    assert list(Effect.objects.values_list("message", flat=True)) == [id]
    tally = process.pump.tally
    assert (tally.completed, tally.failed, tally.lost) == (1, 0, 0)
    [record] = [record for record in caplog.records if record.event == "commit_hook_failed"]
    assert record.fields["message_id"] == id
    assert "is completed" in record.getMessage()
    assert type(raised).__name__ in record.getMessage()
    assert not [record for record in caplog.records if record.event == "message_failed"]
    assert not [record for record in caplog.records if record.event == "lease_lost"]
