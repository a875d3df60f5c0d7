"""
A worker on a platform without fork, signal masks and /proc, as Windows is.

The names that Windows lacks are taken away before anything of deadletter is imported, in a process
of its own. Not simulated: Windows' event loop, its consoles and its files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from deadletter import FailureReason, send
from deadletter.models import Message
from deadletter.worker.process import RECYCLE
from tests.patience import PATIENCE
from tests.processes import database_url
from tests.sample.journal import DIRECTORY

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

#: Runs `manage.py` with its arguments where these names are missing.
WINDOWS = """
import asyncio, builtins, multiprocessing, os, random, signal, subprocess, sys, threading

for module, names in {
    os: "fork forkpty register_at_fork wait wait3 wait4 WNOHANG waitid getuid geteuid getgid"
        " getpgid setsid killpg sysconf uname nice",
    signal: "SIGALRM SIGCHLD SIGHUP SIGQUIT SIGKILL SIGUSR1 SIGUSR2 SIGPIPE SIGCONT SIGSTOP alarm"
        " setitimer getitimer ITIMER_REAL sigwait sigpending pthread_sigmask pthread_kill pause"
        " SIG_BLOCK SIG_UNBLOCK SIG_SETMASK",
}.items():
    for name in names.split():
        delattr(module, name)

missing = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog"}

class NotOnWindows:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ImportError(f"No module named {name!r}")

sys.meta_path.insert(0, NotOnWindows())
for name in missing:
    sys.modules.pop(name, None)

real_open = builtins.open

def without_proc(file, *arguments, **more):
    if str(file).startswith("/proc/"):
        raise FileNotFoundError(file)
    return real_open(file, *arguments, **more)

builtins.open = without_proc

from django.core.management import execute_from_command_line

execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def manage(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WINDOWS, *arguments],
        cwd=settings.BASE_DIR,
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            DIRECTORY: str(directory),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_single_process_runs_where_nothing_can_be_forked(tmp_path: Path) -> None:
    send("sample.work", {})
    send("sample.async", {})

    done = manage(tmp_path, "run_worker", "--drain", "--metrics-port", "0")

    assert done.returncode == 0, done.stderr
    assert "2 completed, 0 failed" in done.stderr
    assert not Message.objects.exists()


def test_a_process_that_cannot_replace_itself_asks_its_service_manager_to(tmp_path: Path) -> None:
    stuck = send("sample.hang", {})

    done = manage(tmp_path, "run_worker", "--drain-limit", "0")

    assert done.returncode == RECYCLE, done.stderr
    assert Message.objects.get(pk=stuck.pk).failure_reason == FailureReason.TIMEOUT_EXCEEDED


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--processes", "2"],
            (
                "CommandError: --processes 2: this platform cannot fork processes. Start "
                "run_worker several times instead, each with --processes 1 (the default).\n"
            ),
        ),
        (
            ["--max-memory", "500"],
            (
                "CommandError: --max-memory: this platform does not tell how much memory a process "
                "uses. Start run_worker without it; --max-messages also replaces a process now and "
                "then.\n"
            ),
        ),
        (
            ["--reload"],
            (
                "CommandError: --reload: this platform has no signal by which a worker stops in "
                "good order. Start run_worker without it, and again after a change.\n"
            ),
        ),
    ],
)
def test_what_the_platform_cannot_do_is_refused_in_a_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    waiting = send("sample.work", {})

    done = manage(tmp_path, "run_worker", "--drain", *arguments)

    assert (done.returncode, done.stderr) == (1, sentence)
    assert Message.objects.get() == waiting


def test_the_command_line_runs_where_nothing_can_be_forked(tmp_path: Path) -> None:
    done = manage(tmp_path, "deadletter", "queues", "--format", "json")

    assert done.returncode == 0, done.stderr
    assert '"default"' in done.stdout
