"""Another isolation level than read committed is refused at the start, wherever it comes from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from deadletter import send
from tests.processes import Workers, database_url

from .rows import rows

pytestmark = pytest.mark.postgresql_only(reason="SQLite knows one level of isolation")

#: As psycopg numbers them.
LEVELS = {"repeatable read": 3, "serializable": 4}


@pytest.fixture
def level_of_the_database(transactional_db: None) -> Iterator:
    """Give the database itself another default, for every session that begins from now on."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])

    def change(level: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO '{level}'")

    yield change
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET default_transaction_isolation")


def refused(workers: Workers, level: str) -> None:
    message = send("sample.work")

    worker = workers.start("--drain")

    assert worker.wait() == 1
    assert f"runs transactions at '{level}'" in worker.text()
    assert "deadletter.E008" in worker.text()
    assert "Traceback" not in worker.text()
    assert rows() == {message.id: 0}
    assert workers.journal() == []


@pytest.mark.process
@pytest.mark.parametrize("level", LEVELS)
def test_a_worker_refuses_a_level_that_the_database_has_by_itself(
    workers, level_of_the_database, level
):
    level_of_the_database(level)

    refused(workers, level)


@pytest.mark.process
@pytest.mark.parametrize("level", LEVELS)
def test_a_worker_refuses_a_level_that_the_settings_ask_for(workers, level):
    workers.url = f"{database_url()}&isolation_level={LEVELS[level]}"

    refused(workers, level)


@pytest.mark.process
def test_a_level_of_the_settings_wins_over_that_of_the_database(workers, level_of_the_database):
    """What Django asks for in OPTIONS is given with every BEGIN."""
    level_of_the_database("serializable")
    send("sample.work")

    workers.url = f"{database_url()}&isolation_level=2"

    assert workers.drain().lines("text") == []
    assert rows() == {}
