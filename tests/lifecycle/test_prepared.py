"""A repeated statement is planned once for each connection; a lost plan does no harm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection, transaction

from deadletter import send
from deadletter.lifecycle import claim, complete
from deadletter.models import Count, Message
from deadletter.sql import prepared_statements, statements

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite keeps its statements by itself"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def fresh():
    """A connection that has prepared nothing yet."""
    connection.close()
    yield
    connection.close()


def prepared_names(what: str = "claim") -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM pg_prepared_statements WHERE name LIKE %s", [f"deadletter_{what}_%"]
        )
        return [name for (name,) in cursor.fetchall()]


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def sent() -> int:
    """The messages counted as sent: in one row a minute, and a minute may end during a test."""
    return sum(Count.objects.values_list("sent", flat=True))


def take_one() -> int:
    batch = claim(worker="w")
    complete(batch.token, batch.ids)
    return len(batch)


def test_a_claim_is_prepared_once_for_each_connection():
    send("job")
    send("job")

    assert take_one() + take_one() == 2
    assert len(prepared_names()) == 1


@pytest.mark.parametrize(
    "event", ["DEALLOCATE ALL", "DISCARD ALL"], ids=["forgotten", "another session"]
)
def test_a_plan_that_is_gone_is_replaced_by_the_text(event):
    send("job")
    assert take_one() == 1
    run(event)
    send("job")

    assert take_one() == 1

    assert prepared_names() == []  # not tried again on this connection: a pooler may be behind it


def test_a_session_that_knows_the_statement_already_is_no_obstacle():
    send("job")
    assert take_one() == 1
    prepared_statements._used.clear()  # as after a pooler has handed us a session of somebody else
    send("job")

    assert take_one() == 1
    assert len(prepared_names()) == 1


def elsewhere(execute, sql, params, many, context):
    """Look up what is prepared in a session in which nothing is, as behind a pooler."""
    return execute(
        sql.replace("pg_prepared_statements", "(SELECT '' AS name) AS nothing"),
        params,
        many,
        context,
    )


def refused(call: Callable[[], object]) -> str | None:
    """Return the SQLSTATE with which the database refused a call."""
    try:
        call()
    except DatabaseError as error:
        return error.__cause__.sqlstate
    return None


def test_a_claim_whose_name_is_taken_in_the_next_session_uses_the_text():
    send("job")
    assert take_one() == 1
    prepared_statements._used.clear()
    send("job")

    with connection.execute_wrapper(elsewhere):
        state = refused(take_one)

    assert state is None
    assert Message.objects.count() == 0


def test_a_sender_whose_name_is_taken_in_the_next_session_uses_the_text():
    for _ in range(5):
        send("job")
    prepared_statements._used.clear()

    with connection.execute_wrapper(elsewhere):
        states = [refused(lambda: send("job")) for _ in range(6)]

    assert states == [None] * 6
    assert Message.objects.count() == 11
    assert sent() == 11


def test_inside_a_transaction_begun_in_sql_a_sender_uses_the_text():
    run("BEGIN")
    for _ in range(7):
        send("job")
    assert prepared_names("insert") == []
    run("ROLLBACK")

    assert Message.objects.count() == 0


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

    assert prepared_names() == []


def test_sending_is_prepared_for_who_sends_often():
    for _ in range(4):
        send("job", {"n": 1})
    assert prepared_names("insert") == []

    ids = [send("job", {"n": n}, stream="s", priority=2).id for n in range(3)]

    assert len(prepared_names("insert")) == 1
    stored = Message.objects.filter(id__in=ids).order_by("id")
    assert [(row.payload, row.stream, row.priority) for row in stored] == [
        ({"n": n}, "s", 2) for n in range(3)
    ]
    assert sent() == 7


@pytest.mark.parametrize("event", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_sender_whose_plan_is_gone_sends_all_the_same(event):
    for _ in range(5):
        send("job")
    run(event)

    assert send("job").id
    assert send("job").id

    assert Message.objects.count() == 7
    assert sent() == 7
    assert prepared_names("insert") == []


def test_inside_a_transaction_a_sender_uses_the_text():
    with transaction.atomic():
        for _ in range(7):
            send("job")

    assert prepared_names("insert") == []
    assert Message.objects.count() == 7


def test_bindings_by_the_server_leave_the_text_alone(monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    send("job")

    assert take_one() == 1
    assert prepared_names() == []


@pytest.mark.parametrize("name", sorted(statements("postgresql")))
def test_the_types_of_every_statement_are_clear_to_a_server_that_binds(name):
    for text in statements("postgresql")[name]:
        # Some statements are given the columns of a model before they run.
        whole = text.replace("{columns}", "1 AS one")
        run(prepared_statements.prepared_statement(name, whole).prepare)
