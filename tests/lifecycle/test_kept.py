"""The claim is planned once for each connection, and a plan that is gone costs nobody anything."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from deadletter import send
from deadletter.lifecycle import claim, complete
from deadletter.sql import kept, statements

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite keeps its statements by itself"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def fresh():
    """A connection that has prepared nothing yet."""
    connection.close()
    yield
    connection.close()


def prepared() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM pg_prepared_statements WHERE name LIKE 'deadletter_claim_%'"
        )
        return [name for (name,) in cursor.fetchall()]


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def take_one() -> int:
    batch = claim(worker="w")
    complete(batch.token, batch.ids)
    return len(batch)


def test_a_claim_is_prepared_once_for_each_connection():
    send("job")
    send("job")

    assert take_one() + take_one() == 2
    assert len(prepared()) == 1


@pytest.mark.parametrize(
    "event", ["DEALLOCATE ALL", "DISCARD ALL"], ids=["forgotten", "another session"]
)
def test_a_plan_that_is_gone_is_replaced_by_the_text(event):
    send("job")
    assert take_one() == 1
    run(event)
    send("job")

    assert take_one() == 1

    assert prepared() == []  # not tried again on this connection: a pooler may be behind it


def test_a_session_that_knows_the_statement_already_is_no_obstacle():
    send("job")
    assert take_one() == 1
    kept._prepared.clear()  # as after a pooler has handed us a session of somebody else
    send("job")

    assert take_one() == 1
    assert len(prepared()) == 1


def test_a_table_that_is_altered_under_the_plan_does_not_stop_the_claim():
    send("job")
    assert take_one() == 1
    run("ALTER TABLE deadletter_message ALTER COLUMN worker TYPE varchar(201)")
    try:
        send("job")
        assert take_one() == 1
    finally:
        run("ALTER TABLE deadletter_message ALTER COLUMN worker TYPE varchar(200)")


def test_inside_somebody_elses_transaction_nothing_is_prepared():
    send("job")

    with transaction.atomic():
        claim(worker="w")

    assert prepared() == []


def test_bindings_by_the_server_leave_the_text_alone(monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    send("job")

    assert take_one() == 1
    assert prepared() == []


@pytest.mark.parametrize("name", sorted(statements("postgresql")))
def test_the_types_of_every_statement_are_clear_to_a_server_that_binds(name):
    for text in statements("postgresql")[name]:
        run(kept.kept(name, text).prepare)
