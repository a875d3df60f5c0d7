"""An idle worker is woken by one notification, after the commit, in a separate transaction."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import notify
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite has no NOTIFY"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(autouse=True)
def _long_since_the_last(monkeypatch):
    """What other tests sent a moment ago does not make this one be silent."""
    monkeypatch.setattr(notify, "_last", {})


def notified(captured: CaptureQueriesContext) -> int:
    return sum("NOTIFY" in query["sql"] for query in captured.captured_queries)


def test_nobody_is_notified_inside_the_senders_transaction():
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        send("mail")
        send_many([Outgoing("mail"), Outgoing("mail")])
        inside = notified(captured)

    assert inside == 0
    assert notified(captured) == 1


def test_nobody_is_notified_of_what_was_rolled_back():
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        send("mail")
        transaction.set_rollback(True)

    assert notified(captured) == 0


def test_a_notification_reaches_a_listener_that_then_finds_the_message():
    from django.db import connections

    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute(f"LISTEN {notify.CHANNEL}")
        message = send("mail")
        heard = list(other.connection.notifies(timeout=PATIENCE, stop_after=1))
        with other.cursor() as cursor:
            cursor.execute("SELECT id FROM deadletter_message")
            found = cursor.fetchall()
    finally:
        other.close()

    assert [notice.channel for notice in heard] == [notify.CHANNEL]
    assert found == [(message.id,)]
