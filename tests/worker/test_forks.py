"""A handler may fork: its copy of the process never goes on as a second worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from django.conf import settings

from deadletter import Outgoing, send, send_many
from tests.processes import Workers, wait_until
from tests.sample.models import Effect

from .rows import rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: How the copy leaves, and the exit code that its parent sees.
LEAVES = [("exit", 7), ("raise", 1), ("return", 0)]


def _ran_once(workers: Workers, ids: list[int], code: int) -> None:
    """Every handler started once, its copy ended by itself, and no copy started anything."""
    starts = workers.journal("start")
    copies = {line["pid"] for line in workers.journal("copy")}
    assert Counter(line["id"] for line in starts) == Counter(ids)
    assert not copies & {line["pid"] for line in starts}
    ended = {line["id"]: line["code"] for line in workers.journal("copied")}
    assert ended == dict.fromkeys(ids, code)


@pytest.mark.parametrize(("how", "code"), [*LEAVES, ("multiprocessing", 7)])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_copy_that_leaves_a_handler_ends_and_no_message_runs_twice(
    workers: Workers, how: str, code: int, processes: int
):
    ids = send_many([Outgoing("sample.fork", {"how": how}) for _ in range(20)])

    worker = workers.drain("--processes", processes, "--concurrency", 2)

    _ran_once(workers, ids, code)
    assert rows() == {}
    assert not worker.lines("message_failed")
    assert not worker.lines("worker_died")
    assert len(worker.lines("worker_stopped")) == processes


@pytest.mark.parametrize(("how", "code"), LEAVES)
def test_a_copy_does_not_end_the_transaction_of_an_atomic_handler(
    workers: Workers, how: str, code: int
):
    ids = send_many([Outgoing("sample.fork_atomic", {"how": how}) for _ in range(5)])

    worker = workers.drain("--concurrency", 1)

    _ran_once(workers, ids, code)
    assert rows() == {}
    assert Counter(Effect.objects.values_list("message", flat=True)) == dict.fromkeys(ids, 2)
    assert not worker.lines("message_failed")


@pytest.mark.parametrize(("how", "code"), [*LEAVES, ("await", 0)])
def test_a_copy_that_leaves_an_async_handler_takes_no_step_of_the_others(
    workers: Workers, how: str, code: int
):
    ids = send_many([Outgoing("sample.fork_async", {"how": how}) for _ in range(10)])

    worker = workers.drain("--concurrency", 4)

    _ran_once(workers, ids, code)
    assert rows() == {}
    assert not workers.journal("copy went on")
    copies = {line["pid"]: line["id"] for line in workers.journal("copy")}
    finished = [line for line in workers.journal("finish") if line["pid"] in copies]
    assert all(line["id"] == copies[line["pid"]] for line in finished)
    assert not worker.lines("message_failed")


def test_what_a_copy_raised_is_said(workers: Workers):
    send_many([Outgoing("sample.fork", {"how": "raise"})])

    worker = workers.drain()

    wait_until(lambda: "RuntimeError: in the copy" in worker.text())


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_that_a_handler_starts_end_when_it_ends_them(workers: Workers, processes: int):
    """A copy has the signal handlers of the worker, and is none."""
    orders = [
        {"how": how, "method": method}
        for method in ("fork", "spawn")
        for how in ("pool", "executor", "terminate", "preexec")
    ]
    ids = send_many([Outgoing("sample.processes", order) for order in orders])

    # One at a time: a copy that one handler makes also has the pipes of the others, so that a
    # handler that reads from its own program would wait for the copy to end.
    worker = workers.drain("--processes", processes, "--concurrency", 1)

    assert Counter(line["id"] for line in workers.journal("finish")) == Counter(ids)
    assert {line["code"] for line in workers.journal("ended")} == {-signal.SIGTERM}
    assert rows() == {}
    assert not worker.lines("message_failed")
    assert not worker.lines("worker_stopping")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_copy_that_outlives_the_worker_keeps_nothing_from_the_next_one(
    workers: Workers, processes: int, number: signal.Signals
):
    pytest.importorskip("prometheus_client")
    arguments = ["--processes", processes, "--grace", 5, "--poll", 0.1, "--metrics-port"]
    first = workers.start(*arguments, 0)
    [line] = first.wait_for("metrics_listening")
    id = send("sample.daemon").pk
    workers.wait_for("copy", id=id)
    wait_until(lambda: rows() == {}, why=first.text)
    own = [line["pid"] for line in first.lines("worker_started")]
    first.signal(number)
    first.wait()
    # Those of a killed supervisor go by themselves.
    wait_until(lambda: not any(map(is_running, own)), why=first.text)

    second = workers.start(*arguments, line["port"]).wait_ready()

    workers.wait_for("finish", id=send("sample.work").pk)
    workers.open("copy")
    assert second.stop() == 0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


EARLY = """
import os, signal, threading
from deadletter.worker.shutdown import Shutdown

Shutdown()

def fork():
    for _ in range(100):
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            signal.pause()
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

# As handlers do: not in the main thread.
thread = threading.Thread(target=fork, daemon=True)
thread.start()
thread.join(60)
"""


def test_a_signal_that_reaches_a_copy_in_its_first_moment_is_not_lost():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EARLY],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
    )

    assert done.stderr == ""
    assert Counter(done.stdout.split()) == {str(-signal.SIGTERM): 100}
