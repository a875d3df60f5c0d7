"""run_worker --reload: a change of the code replaces the worker and costs no message an attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from deadletter import send
from deadletter.models import PoisonRecord
from deadletter.worker import reloader
from tests.patience import PATIENCE, wait_until
from tests.processes import Worker, Workers, database_url, worker_processes

from .rows import leases, rows

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

PROCESSES = pytest.mark.parametrize("processes", [1, 2])
#: Tests about files and processes, with messages that are only there to be run.
ONCE = pytest.mark.sqlite_only(reason="the database makes no difference to what is watched")

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_settings")
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""

#: As few apps as possible: every test imports them several times.
SETTINGS = """
from tests.settings import *

INSTALLED_APPS = ["deadletter", "shop"]
MIDDLEWARE = []
ROOT_URLCONF = "shop.urls"
"""

HANDLERS = """
import os
from deadletter import handler
from tests.sample.journal import note, pass_gate

@handler("shop.work")
def work(message):
    note("start", message, version=VERSION)
    if "gate" in message.payload:
        pass_gate(message.payload["gate"])
    if "exit" in message.payload:
        os._exit(message.payload["exit"])
    note("finish", message, version=VERSION)
"""


class Project:
    """A site in a directory of its own, whose code a test changes."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.write("manage.py", MANAGE)
        self.write("shop_settings.py", SETTINGS)
        self.write("shop/__init__.py", "")
        self.write("shop/urls.py", "urlpatterns = []")
        self.write("shop/models.py", "")
        self.write_handlers(1)

    def write(self, name: str, text: str) -> None:
        path = self.workers.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_handlers(self, version: int, *, more: str = "") -> None:
        self.write("shop/handlers.py", HANDLERS.replace("VERSION", str(version)) + more)

    def environment(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "shop_settings",
            "PYTHONPATH": str(settings.BASE_DIR),
            # Python takes a file for unchanged that has the same size and second.
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *arguments: Any) -> Worker:
        return self.workers.start("--reload", "--poll", 0.1, *arguments, **self.environment())

    def run(self, **payload: Any) -> dict[str, Any]:
        """Send a message; return how it was finished, when its row is deleted."""
        id = send("shop.work", payload).pk
        [finish] = self.workers.wait_for("finish", id=id)
        wait_until(lambda: id not in rows(), why=lambda: self.workers.report("not completed"))
        return finish


@pytest.fixture
def project(transactional_db: None, tmp_path: Path) -> Iterator[Project]:
    with worker_processes(tmp_path, database_url(), tmp_path / "site") as workers:
        yield Project(workers)


def descendants(pid: int) -> list[int]:
    """Return the processes below this one."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(below for child in children for below in descendants(child))]


def is_alive(pid: int) -> bool:
    """Return False also for a process that has ended and that its new parent has yet to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@PROCESSES
def test_the_next_message_is_handled_by_the_new_code(project: Project, processes: int):
    worker = project.start("--processes", processes)
    first = project.run()
    before = descendants(worker.pid)

    project.write_handlers(2)
    [change] = worker.wait_for("code_changed")
    worker.wait_for("worker_started", count=2 * processes)
    second = project.run()

    assert (first["version"], second["version"]) == (1, 2)
    assert change["path"] == str(project.workers.root / "shop" / "handlers.py")
    assert [pid for pid in before if is_alive(pid)] == []
    events = [line["event"] for line in worker.lines()]
    last_stop = len(events) - events[::-1].index("worker_stopped")
    assert events[last_stop:].count("worker_started") == processes
    assert rows() == {}
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@PROCESSES
def test_a_running_handler_finishes_before_the_next_worker_starts(project: Project, processes: int):
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--processes", processes, "--grace", PATIENCE)
    project.workers.wait_for("start", id=id)

    project.write_handlers(2)
    worker.wait_for("worker_stopping")
    assert leases() == [id]
    assert len(worker.lines("worker_started")) == processes
    project.workers.open("end")
    worker.wait_for("worker_started", count=2 * processes)

    [finish] = project.workers.journal("finish")
    assert (finish["version"], finish["attempt"]) == (1, 1)
    assert len(project.workers.journal("start")) == 1
    assert rows() == {}


@PROCESSES
def test_a_handler_that_outlives_the_grace_is_run_again_without_a_counted_attempt(
    project: Project, processes: int
):
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--processes", processes, "--grace", 0.2)
    project.workers.wait_for("start", id=id)

    project.write_handlers(2)
    project.workers.wait_for("start", id=id, version=2)
    assert rows() == {id: 1}
    project.workers.open("end")
    [finish] = project.workers.wait_for("finish", id=id)
    wait_until(lambda: not rows(), why=worker.text)

    starts = project.workers.journal("start", id=id)
    assert [(line["version"], line["attempt"]) for line in starts] == [(1, 1), (2, 1)]
    assert finish["version"] == 2
    assert not PoisonRecord.objects.exists()


@ONCE
def test_the_grace_is_short_unless_it_is_given(project: Project):
    short = project.start().wait_ready()
    given = project.start("--grace", 40).wait_ready()

    project.write_handlers(2)

    assert [line["how"] for line in short.wait_for("worker_stopping")] == ["within 5 s"]
    assert [line["how"] for line in given.wait_for("worker_stopping")] == ["within 40 s"]


@ONCE
@pytest.mark.parametrize("name", ["shop/handlers.py", "shop/models.py", "shop_settings.py"])
def test_a_syntax_error_is_shown_and_its_repair_starts_the_next_worker(project: Project, name: str):
    worker = project.start()
    project.run()
    path = project.workers.root / name
    sound = path.read_text()

    path.write_text(sound + "\ndef (")
    worker.wait_for("worker_ended", reason="exit code 1")
    shown = worker.text()
    path.write_text(sound)
    worker.wait_for("worker_started", count=2)

    assert "SyntaxError: invalid syntax" in shown
    assert worker.lines("watcher_import_failed")[0]["error"].startswith("SyntaxError: invalid")
    assert project.run()["version"] == 1
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@ONCE
def test_an_error_is_repaired_in_any_file_of_its_traceback(project: Project):
    worker = project.start().wait_ready()
    project.write("shop/prices.py", "1 / 0")
    project.write_handlers(2, more="from shop import prices")
    worker.wait_for("worker_ended", reason="exit code 1")

    project.write_handlers(3)

    worker.wait_for("worker_started", count=2)
    assert project.run()["version"] == 3


@ONCE
def test_code_that_is_broken_from_the_beginning_is_waited_for(project: Project):
    project.write_handlers(1, more="def (")
    worker = project.start()
    worker.wait_for("worker_ended", reason="exit code 1")
    watching = descendants(worker.pid)

    project.write_handlers(2)

    assert project.run()["version"] == 2
    assert len(watching) == 1
    assert not is_alive(watching[0])


@ONCE
def test_a_stop_while_the_code_is_broken_ends_the_reloader(project: Project):
    project.write_handlers(1, more="def (")
    worker = project.start()
    worker.wait_for("worker_ended")
    watching = descendants(worker.pid)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0, worker.text()
    assert [pid for pid in watching if is_alive(pid)] == []


@ONCE
def test_a_change_while_the_code_is_imported_is_not_missed(project: Project):
    """The worker would have the old code, and the watcher the time of the new file."""
    wait = "\nfrom tests.sample.journal import write\nwrite('import')\npass_gate('import')"
    project.write_handlers(1, more=wait)
    project.start()
    project.workers.wait_for("import")

    project.write_handlers(2, more=wait)
    project.workers.open("import")

    assert project.run()["version"] == 2


@ONCE
def test_tasks_of_an_app_that_had_none_are_found(project: Project):
    worker = project.start().wait_ready()

    project.write("shop/tasks/__init__.py", "")

    [change] = worker.wait_for("code_changed")
    assert change["path"].endswith("shop/tasks/__init__.py")


@ONCE
def test_tasks_that_cannot_be_imported_are_watched_though_the_worker_runs_without_them(
    project: Project,
):
    project.write("shop/prices.py", "1 / 0")
    project.write("shop/tasks.py", "from shop import prices")
    worker = project.start().wait_ready()
    assert (
        worker.lines("watcher_import_failed")[0]["error"] == "ZeroDivisionError: division by zero"
    )

    project.write("shop/prices.py", "")

    [change] = worker.wait_for("code_changed")
    assert change["path"].endswith("shop/prices.py")
    worker.wait_for("worker_started", count=2)
    assert len(worker.lines("watcher_import_failed")) == 1


@ONCE
def test_handlers_of_an_app_that_had_none_are_found(project: Project):
    handlers = (project.workers.root / "shop/handlers.py").read_text()
    (project.workers.root / "shop/handlers.py").unlink()
    worker = project.start().wait_ready()

    project.write("shop/handlers.py", handlers)

    worker.wait_for("worker_started", count=2)
    assert project.run()["version"] == 1


@ONCE
def test_a_changed_template_replaces_the_worker_that_has_it_in_memory(project: Project):
    project.write("shop/templates/shop/mail.txt", "Dear")
    worker = project.start().wait_ready()

    project.write("shop/templates/shop/mail.txt", "Hello")

    [change] = worker.wait_for("code_changed")
    assert change["path"].endswith("shop/templates/shop/mail.txt")
    worker.wait_for("worker_started", count=2)


@PROCESSES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_every_process_and_lets_handlers_finish(
    project: Project, processes: int, number: signal.Signals
):
    """Ctrl-C, and the stop of a process manager, reach every process of the group."""
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--processes", processes, "--grace", PATIENCE)
    project.workers.wait_for("start", id=id)
    started = [worker.pid, *descendants(worker.pid)]

    worker.signal_group(number)
    worker.wait_for("worker_stopping", how=f"within {PATIENCE:g} s", count=processes)
    # By the reloader, and by the supervisor: the worker has both signals, its own and theirs.
    worker.wait_for("stopping", hurry="", count=processes)
    project.workers.open("end")
    code = worker.wait()

    assert code == 0, worker.text()
    assert len(started) == (3 if processes == 1 else 5)
    assert [pid for pid in started if is_alive(pid)] == []
    assert len(project.workers.journal("finish", id=id, attempt=1)) == 1
    assert worker.lines("worker_stopping", how="at once") == []
    assert worker.lines("watcher_died") == []
    assert rows() == {}
    assert "Traceback" not in worker.text()


@ONCE
def test_ctrl_c_while_the_worker_imports_its_code_ends_it_without_a_traceback(project: Project):
    wait = "\nfrom deadletter.worker import watcher\nfrom tests.sample.journal import write\n"
    wait += "if not watcher.is_active:\n    write('import')\n    pass_gate('never')"
    project.write_handlers(1, more=wait)
    worker = project.start()
    project.workers.wait_for("import")
    started = descendants(worker.pid)

    worker.signal_group(signal.SIGINT)

    assert worker.wait() == 0, worker.text()
    assert "Traceback" not in worker.text()
    assert [pid for pid in started if is_alive(pid)] == []


@PROCESSES
def test_a_second_signal_ends_every_process_at_once(project: Project, processes: int):
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--processes", processes, "--grace", PATIENCE)
    project.workers.wait_for("start", id=id)
    started = descendants(worker.pid)

    worker.signal(signal.SIGTERM)
    worker.wait_for("worker_stopping", how=f"within {PATIENCE:g} s", count=processes)
    worker.signal(signal.SIGTERM)
    code = worker.wait()

    assert code == 0, worker.text()
    assert [pid for pid in started if is_alive(pid)] == []
    assert rows() == {id: 0}
    assert leases() == []


@PROCESSES
def test_the_processes_of_a_killed_reloader_stop_by_themselves(project: Project, processes: int):
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--processes", processes, "--grace", 0.2)
    project.workers.wait_for("start", id=id)
    started = descendants(worker.pid)

    worker.signal(signal.SIGKILL)

    wait_until(lambda: not any(is_alive(pid) for pid in started), why=worker.text)
    assert rows() == {id: 0}
    assert leases() == []
    assert worker.wait() == -signal.SIGKILL


def test_a_worker_that_has_drained_ends_the_reloader(project: Project):
    id = send("shop.work", {}).pk

    worker = project.start("--drain")

    assert worker.wait() == 0, worker.text()
    assert len(project.workers.journal("finish", id=id)) == 1
    assert rows() == {}


def test_a_worker_that_dies_is_started_again_after_a_change(project: Project):
    id = send("shop.work", {"exit": 7}).pk
    worker = project.start("--lease", 1)
    worker.wait_for("worker_ended", reason="exit code 7")
    assert rows() == {id: 1}

    project.write_handlers(2)

    worker.wait_for("worker_ended", reason="exit code 7", count=2)
    starts = project.workers.journal("start", id=id)
    assert [(line["version"], line["attempt"]) for line in starts] == [(1, 1), (2, 2)]


def test_without_its_watcher_the_worker_stops_and_the_exit_code_tells(project: Project):
    id = send("shop.work", {"gate": "end"}).pk
    worker = project.start("--grace", PATIENCE)
    [start] = project.workers.wait_for("start", id=id)
    [watcher] = [pid for pid in descendants(worker.pid) if pid != start["pid"]]

    os.kill(watcher, signal.SIGKILL)
    worker.wait_for("watcher_died", reason="signal SIGKILL")
    worker.wait_for("worker_stopping")
    project.workers.open("end")

    assert worker.wait() == 1
    assert len(project.workers.journal("finish", id=id, attempt=1)) == 1
    assert rows() == {}


@ONCE
def test_a_worker_is_started_only_after_the_end_of_the_last_one():
    parent = reloader.Reloader(grace=0.0)
    parent._command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(parent._command, stdin=subprocess.PIPE) as last:
        parent._worker = last

        parent._start()
        assert parent._worker is last
        last.kill()
        last.wait()
        parent._reap()
        parent._start()

        assert parent._worker is not None
        assert parent._worker is not last
        parent._worker.kill()
        parent._worker.wait()


@ONCE
def test_a_worker_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reloader, "PATIENCE", 0.0)
    parent = reloader.Reloader(grace=0.0)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); input()"
    worker = subprocess.Popen(
        [sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        parent._worker = worker

        parent._kill_late()
        assert worker.poll() is None
        parent._stop()
        parent._kill_late()

        assert worker.wait(PATIENCE) == -signal.SIGKILL


@ONCE
def test_the_command_may_be_a_module(project: Project, tmp_path: Path):
    id = send("shop.work", {}).pk
    command = [sys.executable, "-m", "django", "run_worker", "--reload", "--drain"]

    done = subprocess.run(
        command,
        cwd=project.workers.root,
        env={
            **os.environ,
            **project.environment(),
            "DATABASE_URL": database_url(),
            "SAMPLE_DIRECTORY": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "cannot be imported" not in done.stderr
    assert len(project.workers.journal("finish", id=id)) == 1


@ONCE
def test_a_process_of_a_worker_that_reloads_cannot_reload(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(reloader.VARIABLE, "1")

    with pytest.raises(CommandError, match="started by a worker that runs with --reload"):
        call_command("run_worker", "--reload")
