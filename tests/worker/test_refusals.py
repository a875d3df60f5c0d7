"""A database that answers and refuses is not away: the worker says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, connections

from deadletter import send
from deadletter.models import Message, WorkerProcess
from deadletter.worker.outages import is_outage
from tests.processes import Workers, database_url, wait_until

from .site import Site

#: Seconds; every wait ends at its event.
PATIENCE = 120.0


@pytest.fixture
def empty(workers: Workers, tmp_path: Path) -> Iterator[Workers]:
    """Workers on a database without migrations."""
    if connection.vendor == "sqlite":
        workers.url = f"sqlite:///{tmp_path / 'empty.sqlite3'}"
        yield workers
        return
    workers.url = urlunsplit(urlsplit(database_url())._replace(path="/empty"))
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE empty")
        yield workers
        cursor.execute("DROP DATABASE empty WITH (FORCE)")


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_without_tables_names_the_command_and_exits(empty: Workers, processes: int):
    worker = empty.start("--processes", processes)

    assert worker.wait(PATIENCE) == 1
    assert "run manage.py migrate --database default" in worker.text()
    assert worker.lines("database_away") == []
    assert "Traceback" not in worker.text()


@pytest.mark.process
def test_a_worker_whose_tables_wait_for_migrations_names_these(empty: Workers):
    environment = {**os.environ, "DATABASE_URL": empty.url}
    environment["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "deadletter", "0005", "--verbosity", "0"],
        cwd=settings.BASE_DIR,
        env=environment,
        check=True,
    )

    worker = empty.start()

    assert worker.wait(PATIENCE) == 1
    assert "lacks migrations of deadletter: 0006_" in worker.text()


@pytest.mark.process
def test_a_worker_without_a_column_names_the_command_and_exits(workers: Workers):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_worker RENAME COLUMN host TO ghost")
    try:
        worker = workers.start()
        code = worker.wait(PATIENCE)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE deadletter_worker RENAME COLUMN ghost TO host")

    assert code == 1
    assert "run manage.py migrate --database default" in worker.text()


@pytest.mark.process
@pytest.mark.postgresql_only(reason="SQLite has no server that could go away")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_finds_no_tables_after_an_outage_exits_too(site: Site, processes: int):
    site.execute("DROP DATABASE IF EXISTS empty")
    site.execute("CREATE DATABASE empty")
    site.workers.url = site.server.url.replace("/postgres?", "/empty?")
    assert site.workers.url != site.server.url
    site.server.stop()
    worker = site.workers.start("--poll", 0.1, "--processes", processes)
    worker.wait_for("database_away")

    site.server.start()

    assert worker.wait(PATIENCE) == 1
    assert "run manage.py migrate --database default" in worker.text()
    assert "Traceback" not in worker.text()


@pytest.mark.process
def test_a_process_that_is_replaced_while_a_table_is_away_does_not_end_the_others(
    workers: Workers,
):
    worker = workers.start("--poll", 0.1, "--processes", 2)
    wait_until(lambda: WorkerProcess.objects.count() == 2, patience=PATIENCE, why=worker.text)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_breaker RENAME TO elsewhere")
    try:
        os.kill(worker.children()[0], signal.SIGKILL)
        worker.wait_for("worker_refused")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deadletter_breaker")

    workers.wait_for("finish", id=send("sample.work").id)
    assert worker.stop() == 0


@pytest.mark.process
@pytest.mark.postgresql_only(reason="SQLite has no rights")
def test_a_worker_without_rights_says_so_and_exits(site: Site):
    site.execute("CREATE ROLE guest LOGIN")
    site.workers.url = site.server.url.replace("//postgres@", "//guest@")
    assert site.workers.url != site.server.url

    worker = site.workers.start()

    assert worker.wait(PATIENCE) == 1
    assert "user 'guest' of database 'default' lacks rights" in worker.text()


@pytest.mark.process
def test_a_table_that_goes_away_later_is_named_and_the_worker_goes_on_when_it_is_back(
    workers: Workers,
):
    worker = workers.start("--poll", 0.1, "--concurrency", 1)
    workers.wait_for("finish", id=send("sample.work").id)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE deadletter_message RENAME TO elsewhere")
    try:
        (line, *_) = worker.wait_for("database_refuses")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO deadletter_message")

    workers.wait_for("finish", id=send("sample.work").id)
    assert line["level"] == "ERROR"
    assert "run manage.py migrate --database default" in line["text"]
    assert worker.stop() == 0
    assert Message.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize(("processes", "limit"), [(1, 200), (2, 198), (10, 197)])
def test_a_name_that_does_not_fit_its_column_is_refused_with_the_limit(processes, limit):
    with pytest.raises(CommandError, match=rf"--name: expected at most {limit} printable"):
        call_command("run_worker", "--name", "n" * (limit + 1), "--processes", processes, "--drain")


@pytest.mark.process
def test_a_name_as_long_as_its_column_works(workers: Workers):
    message = send("sample.work")

    worker = workers.start("--name", "n" * 198, "--processes", 2)

    workers.wait_for("finish", id=message.id)
    wait_until(lambda: WorkerProcess.objects.count() == 2, patience=PATIENCE, why=worker.text)
    assert {len(name) for name in WorkerProcess.objects.values_list("name", flat=True)} == {200}
    assert worker.stop() == 0


@pytest.mark.process
@pytest.mark.django_db(databases=["default", "second"], transaction=True)
def test_a_worker_without_a_database_works_where_the_router_sends_messages(workers, settings):
    settings.DATABASE_ROUTERS = ["tests.sample.routers.ToSecond"]
    message = send("sample.work")
    assert message._state.db == "second"

    worker = workers.drain(
        ROUTER="tests.sample.routers.ToSecond",
        SECOND_DATABASE=connections["second"].settings_dict["NAME"],
    )

    assert [line["id"] for line in workers.journal("finish")] == [message.id]
    assert Message.objects.using("second").count() == 0
    assert worker.lines("database_refuses") == []


@pytest.mark.parametrize(
    ("state", "outage"),
    [
        ("08006", True),  # connection failure
        ("40001", True),  # serialization failure
        ("40P01", True),  # deadlock
        ("53300", True),  # too many connections
        ("55P03", True),  # lock not available
        ("57014", True),  # statement timeout
        ("57P01", True),  # admin shutdown
        ("57P03", True),  # starting up
        ("25006", True),  # read-only
        ("42P01", False),  # undefined table
        ("42703", False),  # undefined column
        ("42501", False),  # no rights
        ("22003", False),  # number out of range
        ("23505", False),  # unique violation
    ],
)
def test_what_the_server_says_tells_an_outage_from_a_refusal(state: str, outage: bool):
    assert is_outage(psycopg.errors.lookup(state)("as the server says")) is outage
