"""--processes N: dead processes are replaced, their messages charged; and all of them stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from deadletter import FailureReason, Outgoing, clock, logs, send, send_many
from deadletter.lifecycle import ClaimRequest, claim, process_batch, sweep
from deadletter.models import Message, PoisonRecord, Queue, WorkerDeath, WorkerProcess
from deadletter.worker import supervisor
from deadletter.worker.crash_ledger import CrashLedger, LedgerEntry, SlotState
from deadletter.worker.orphans import free
from deadletter.worker.supervisor import ChildProcess, Supervisor
from tests.patience import PATIENCE
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

from .rows import leases, rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_message_that_kills_its_process_every_time_is_quarantined_and_500_others_run_once(
    workers: Workers,
):
    Queue.objects.filter(name="default").update(max_attempts=3)
    others = send_many([Outgoing("sample.effect", {}) for _ in range(250)])
    bad = send("sample.crash", {"how": "kill"}).pk
    others += send_many([Outgoing("sample.effect", {}) for _ in range(250)])

    worker = workers.start("--processes", 2, "--concurrency", 4, "--poll", 0.1)
    wait_until(lambda: not rows(), why=worker.text)

    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts, poison.max_attempts) == (bad, 3, 3)
    assert poison.reason == FailureReason.POISON_MESSAGE
    assert poison.last_failure_reason == FailureReason.WORKER_LOST
    assert [entry["reason"] for entry in poison.history] == [FailureReason.WORKER_LOST] * 3
    assert len(workers.journal("start", id=bad)) == 3
    assert len(worker.lines("worker_died")) == 3
    assert sorted(Effect.objects.values_list("message", flat=True)) == others
    assert worker.stop() == 0


def test_what_a_child_claimed_in_the_moment_it_died_is_freed_as_well():
    ids = [send("job").pk for _ in range(3)]
    token = "00112233445566ff"
    batch = process_batch(worker="dead", claim=ClaimRequest(token=token))
    assert batch.token == token
    ledger = CrashLedger()
    ledger.announce(token)
    ledger.hold(ids[0], token)

    free("dead", ledger.entries(), "signal SIGKILL", claiming=ledger.announced, using="default")

    assert rows() == dict.fromkeys(ids, 0)
    assert leases() == []


def test_what_was_claimed_anew_under_a_running_handler_is_freed_as_well(clock):
    id = send("job").pk
    old = process_batch(worker="dead", claim=ClaimRequest(lease=1))
    clock.advance(2)
    new = process_batch(worker="dead", claim=ClaimRequest())
    assert old.ids == new.ids == [id]
    ledger = CrashLedger()
    ledger.announce(new.token)
    ledger.mark(ledger.hold(id, old.token), SlotState.RUNNING)

    free("dead", ledger.entries(), "signal SIGKILL", claiming=ledger.announced, using="default")

    assert leases() == []


def test_a_handlers_own_limit_counts_for_crashes_as_well(workers: Workers):
    Queue.objects.filter(name="default").update(max_attempts=2)
    id = send("sample.crash_often", {}).pk

    worker = workers.start("--processes", 2, "--poll", 0.1)
    wait_until(lambda: not rows(), why=worker.text)

    [poison] = PoisonRecord.objects.all()
    assert (poison.message_id, poison.attempts, poison.max_attempts) == (id, 4, 4)
    assert worker.stop() == 0


def test_a_process_that_keeps_dying_is_restarted_later_each_time(workers: Workers):
    Queue.objects.filter(name="default").update(max_attempts=4)
    send("sample.crash", {"how": "exit"})

    worker = workers.start("--processes", 2, "--concurrency", 1, "--poll", 0.1)
    deaths = worker.wait_for("worker_died", count=4)

    pauses: dict[str, list[str]] = {}
    for death in deaths:
        pauses.setdefault(death["worker"], []).append(death["next"])
        assert death["reason"] == "exit code 3"
        assert death["peak"] > 1
        assert "peak memory" in death["text"]
    series = ["restarting in 0.0 s", "restarting in 0.1 s", "restarting in 0.2 s"]
    for seen in pauses.values():
        assert seen[:3] == series[: len(seen[:3])]
    assert worker.stop() == 0


def test_a_killed_process_leaves_what_it_died_of_and_what_it_held(workers: Workers):
    """As an out-of-memory kill: only the supervisor can tell what happened."""
    Queue.objects.filter(name="default").update(max_attempts=1)
    ids = [send("sample.work", {"gate": "end"}).pk for _ in range(2)]
    waiting = [send("sample.work", {"gate": "end"}, delay=0).pk for _ in range(3)]
    worker = workers.start("--processes", 2, "--concurrency", 2, "--poll", 0.1)
    workers.wait_for("start", count=4)
    started = {line["id"]: line["pid"] for line in workers.journal("start")}
    victim = started[ids[0]]
    ran = sorted(id for id, pid in started.items() if pid == victim)

    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: PoisonRecord.objects.count() == len(ran), why=worker.text)
    workers.open("end")

    [death] = WorkerDeath.objects.all()
    assert (death.pid, death.signal, death.exit_code) == (victim, 9, None)
    assert death.successor == death.name
    assert death.peak_memory > 2**20
    assert [held["id"] for held in death.held if held["running"]] == ran
    assert {held["name"] for held in death.held} == {"sample.work"}
    for poison in PoisonRecord.objects.all():
        assert (
            f"died of signal SIGKILL while its handler ran (process {victim}" in poison.last_error
        )
        assert "peak memory" in poison.last_error
        for other in ran:
            assert (f"#{other}" in poison.last_error) == (other != poison.message_id)
    wait_until(lambda: not rows(), why=worker.text)
    assert worker.stop() == 0
    assert {poison.message_id for poison in PoisonRecord.objects.all()} == set(ran)
    assert set(ran) < {*ids, *waiting}


def test_a_process_that_exits_by_itself_leaves_its_exit_code(workers: Workers):
    Queue.objects.filter(name="default").update(max_attempts=1)
    id = send("sample.crash", {"how": "exit"}).pk

    worker = workers.start("--processes", 2, "--poll", 0.1)
    wait_until(lambda: PoisonRecord.objects.filter(message_id=id).exists(), why=worker.text)

    [death] = WorkerDeath.objects.all()
    assert (death.signal, death.exit_code) == (None, 3)
    assert "died of exit code 3" in PoisonRecord.objects.get().last_error
    assert worker.stop() == 0


def test_deaths_are_forgotten_after_a_month(db):
    now = clock.now("default")
    for days in (1, 29, 31, 400):
        WorkerDeath.objects.create(
            name="w", host="h", pid=1, died_at=now - timedelta(days=days), held=[]
        )

    sweep()

    assert [(now - death.died_at).days for death in WorkerDeath.objects.all()] == [29, 1]


def test_children_of_a_killed_supervisor_stop_by_themselves(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--processes", 2, "--grace", 20)
    workers.wait_for("start", id=id)
    children = worker.children()
    assert len(children) == 2

    worker.signal(signal.SIGKILL)
    worker.process.wait()
    workers.open("end")

    wait_until(lambda: not any(map(alive, children)), why=worker.text)
    assert len(workers.journal("finish", id=id)) == 1
    assert rows() == {}
    assert not WorkerProcess.objects.exists()


def test_one_ctrl_c_stops_all_processes_cleanly(workers: Workers):
    id = send("sample.work", {"gate": "end"}).pk
    worker = workers.start("--processes", 2, "--grace", 20)
    workers.wait_for("start", id=id)
    children = worker.children()

    worker.signal_group(signal.SIGINT)
    worker.wait_for("worker_stopping", count=2)
    workers.open("end")

    assert worker.wait() == 0, worker.text()
    assert not any(map(alive, children))
    assert len(workers.journal("finish", id=id)) == 1
    assert rows() == {}
    assert "Traceback" not in worker.text()
    assert "KeyboardInterrupt" not in worker.text()


def test_a_second_ctrl_c_stops_all_processes_at_once(workers: Workers):
    ids = [send("sample.work", {"gate": "end"}).pk for _ in range(2)]
    worker = workers.start("--processes", 2, "--concurrency", 1, "--grace", 60)
    workers.wait_for("start", count=2)

    worker.signal_group(signal.SIGINT)
    worker.wait_for("worker_stopping", count=2, how="within 60 s")
    worker.signal_group(signal.SIGINT)

    assert worker.wait(PATIENCE) == 0, worker.text()
    assert rows() == dict.fromkeys(ids, 0)
    assert leases() == []
    assert "Traceback" not in worker.text()


def test_sigterm_to_every_process_at_once_still_lets_handlers_finish(workers: Workers):
    """As systemd does: a child receives its own signal and the one of its supervisor."""
    ids = [send("sample.work", {"gate": "end"}).pk for _ in range(2)]
    worker = workers.start("--processes", 2, "--concurrency", 1, "--grace", 20)
    workers.wait_for("start", count=2)

    worker.signal_group(signal.SIGTERM)
    worker.wait_for("stopping")
    for name in {line["worker"] for line in worker.lines("worker_started")}:
        worker.wait_for("worker_stopping", worker=name)
    workers.open("end")

    assert worker.wait() == 0, worker.text()
    assert {line["id"] for line in workers.journal("finish")} == set(ids)
    assert rows() == {}
    assert not worker.lines("worker_stopping", how="at once")


def test_a_stop_while_children_are_starting_ends_them(workers: Workers):
    for delay in (0.0, 0.02, 0.05):
        worker = workers.start("--processes", 4)
        wait_until(lambda worker=worker: worker.children() or worker.process.poll() is not None)
        time.sleep(delay)  # not to let it happen: to meet it at another moment
        worker.signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0, worker.text()
        assert "Traceback" not in worker.text()


def test_all_processes_drain_and_the_supervisor_ends(workers: Workers):
    send_many([Outgoing("sample.effect", {}) for _ in range(100)])

    worker = workers.drain("--processes", 3)

    assert Effect.objects.count() == 100
    assert rows() == {}
    assert len(worker.lines("worker_stopped")) == 3


def test_a_process_that_had_its_share_of_messages_is_replaced(workers: Workers):
    send_many([Outgoing("sample.work", {}) for _ in range(40)])

    worker = workers.start("--processes", 2, "--max-messages", 5, "--concurrency", 2)
    wait_until(lambda: not rows(), why=worker.text)

    assert worker.stop() == 0
    assert len(worker.lines("worker_started")) >= 8
    assert not worker.lines("worker_died")
    per_process: dict[int, int] = {}
    for line in workers.journal("finish"):
        per_process[line["pid"]] = per_process.get(line["pid"], 0) + 1
    assert sum(per_process.values()) == 40
    assert max(per_process.values()) <= 5


def test_a_dead_childs_messages_are_settled_by_how_far_they_got():
    for _ in range(5):
        send("job")
    batch = claim(worker="dead")
    waiting, running, done, failed, gone = batch.ids
    stages = [
        SlotState.WAITING,
        SlotState.RUNNING,
        SlotState.DONE,
        SlotState.FAILED,
        SlotState.RUNNING,
    ]
    entries = [
        LedgerEntry(id, batch.token, stage) for id, stage in zip(batch.ids, stages, strict=True)
    ]
    Message.objects.filter(pk=gone).delete()

    free("dead", entries, "signal SIGKILL", using="default")

    assert rows() == {waiting: 0, running: 1, failed: 1}
    reasons = dict(Message.objects.values_list("pk", "failure_reason"))
    assert reasons[running] == FailureReason.WORKER_LOST
    assert reasons[failed] == FailureReason.HANDLER_EXCEPTION
    assert not Message.objects.filter(pk=done).exists()
    assert leases() == []


def test_a_supervisor_that_was_suspended_goes_on(workers: Workers):
    worker = workers.start("--processes", 2, "--poll", 0.1)
    worker.wait_for("worker_started", count=2)

    for _ in range(2):
        worker.signal(signal.SIGSTOP)
        time.sleep(1.2 * supervisor.ROUND)  # longer than it waits for a signal
        worker.signal(signal.SIGCONT)
        id = send("sample.work").pk
        workers.wait_for("finish", id=id)

    assert not worker.lines("stopping")
    assert worker.stop() == 0


def test_a_fork_the_system_refuses_is_tried_again(monkeypatch, caplog):
    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(supervisor.os, "fork", refuse)
    boss = Supervisor(["w/1"], lambda name, ledger: 0, using="default", grace=1)
    child: ChildProcess = boss._children[0]

    boss._start_missing()

    assert child.pid == 0
    assert child.start_at > child.started
    assert "cannot be started" in caplog.text


def test_what_a_crashing_child_said_and_raised_is_not_lost(tmp_path, monkeypatch):
    log = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(logs.logger, "handlers", [log])

    def bug(name: str, ledger: object) -> int:
        print("said before", end="")
        raise RuntimeError("a bug of ours")

    boss = Supervisor(["w/1"], bug, using="default", grace=1)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        boss._fork(boss._children[0])
        _, status = os.waitpid(boss._children[0].pid, 0)
        monkeypatch.undo()
        said = (tmp_path / "out").read_text()
    log.close()

    assert os.waitstatus_to_exitcode(status) == 1
    assert "RuntimeError: a bug of ours" in (tmp_path / "log").read_text()
    assert said == "said before"
