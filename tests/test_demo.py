"""`manage.py demo`, as a visitor meets it: started, looked at, interrupted."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest
from django.conf import settings

from tests.patience import PATIENCE, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.sqlite_only(reason="the demonstration brings its own SQLite database"),
]


class Demo:
    def __init__(
        self, port: int, database: Path, *, program: Sequence[str] = ("manage.py",)
    ) -> None:
        self.port = port
        self.database = database
        self.log = database.with_name(f"demo-{time.monotonic_ns()}.log")
        self.output = ""
        #: The kind of its broker, if it has one.
        self.broker = ""
        environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
        self.process = subprocess.Popen(
            [sys.executable, "-u", *program, "demo", "--port", str(port), "--log", self.log],
            cwd=settings.BASE_DIR,
            env={**environment, "DATABASE_URL": f"sqlite:///{database}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, pattern: str) -> str:
        """Read on until a line matches; return its first group."""
        for line in self.process.stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(f"the demo ended without saying {pattern!r}:\n{self.output}")

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        self.output += rest
        return self.process.returncode

    def close(self) -> None:
        if not self.process.stdout.closed:
            self.stop(signal.SIGTERM)
        print(self.output)  # shown by pytest when the test failed

    def count(self, table: str) -> int:
        with closing(sqlite3.connect(self.database)) as database:
            return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def demo(free_port: int, tmp_path: Path) -> Iterator[Demo]:
    with closing(Demo(free_port, tmp_path / "demo.sqlite3")) as running:
        yield running


def test_a_visitor_signs_in_sees_poison_and_leaves_nothing_behind(demo: Demo):
    pids = [int(demo.wait_for(rf"{name} is process (\d+)")) for name in ("worker", "site")]
    password = demo.wait_for(r"Password +(\S+)")
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    site = f"http://127.0.0.1:{demo.port}"

    home = read(browser, site)
    style = read(browser, f"{site}/static/admin/css/base.css")
    page = sign_in(browser, site, "admin", password)
    wait_until(lambda: demo.count("deadletter_poison") > 0)

    def groups() -> str | None:
        """Return the page of groups; a worker adds what died to its group about a second later."""
        page = read(browser, f"{site}/admin/deadletter/poisonrecord/")
        return page if "demo.refuse" in page else None

    poison = wait_until(groups)
    exit_code = demo.stop(signal.SIGINT)

    assert home.index('href="/admin/deadletter/"') < home.index("<li>")  # the dashboard first
    assert 'href="/admin/deadletter/poisonrecord/"' in home
    assert 'href="/admin/deadletter/instance/"' in home
    assert "body" in style
    assert "Log out" in page
    assert "demo.refuse" in poison
    assert exit_code == 0, demo.output
    assert "Traceback" not in demo.output
    # What is said once a message stays out of the way of the password.
    assert "poisoned message demo.refuse" in demo.log.read_text()
    assert "demo.refuse" not in demo.output
    assert len(demo.output.splitlines()) < 20
    assert [pid for pid in pids if alive(pid)] == []


def test_it_can_be_run_again_and_ends_on_sigterm(demo: Demo):
    first = demo.wait_for(r"Password +(\S+)")
    demo.stop(signal.SIGTERM)

    with closing(Demo(demo.port, demo.database)) as again:
        second = again.wait_for(r"Password +(\S+)")
        exit_code = again.stop(signal.SIGTERM)

    assert demo.process.returncode == exit_code == 0, demo.output + again.output
    assert first != second
    assert demo.count("auth_user") == 1
    assert "Traceback" not in demo.output + again.output


def test_a_taken_port_is_said_before_anything_is_done(free_port: int, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()

        refused = Demo(free_port, tmp_path / "demo.sqlite3")
        output, _ = refused.process.communicate(timeout=PATIENCE)

    assert refused.process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{free_port}" in output
    assert "Traceback" not in output
    assert "preparing" not in output


def read(browser: OpenerDirector, url: str, fields: dict[str, str] | None = None) -> str:
    body = urlencode(fields).encode() if fields else None
    with browser.open(url, body, timeout=PATIENCE) as answer:
        return answer.read().decode()


def sign_in(browser: OpenerDirector, site: str, username: str, password: str) -> str:
    form = read(browser, f"{site}/admin/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)[1]
    fields = {"username": username, "password": password, "csrfmiddlewaretoken": token}
    return read(browser, f"{site}/admin/login/", fields | {"next": "/admin/"})


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
