"""
What lies in dead queues is found by index: groups, alerts, retries and the way to an old id.

20,000 poison records and 20,000 messages in a dead queue, in fifty groups each, beside 20,000 that
are due.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from deadletter import operations
from deadletter.alert_rules import AlertPolicy
from deadletter.alerts.context import COUNTED, AlertContext
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, Queue
from deadletter.sql.planner import by_index
from deadletter.testing import frozen_clock

from .conftest import (
    NOW,
    POISON,
    SERIES,
    Seen,
    adapted,
    assert_bounded,
    fill,
    forget_statistics,
    run,
    watched,
)

pytestmark = pytest.mark.slow

N = 20_000
#: On SQLite steps, ten for a row.
ROWS_OF_A_PAGE = 10 * N // 50 + 3_000

BURIED = """
    INSERT INTO deadletter_message (queue_id, name, kind, payload, priority, status, attempts,
           fence, available_at, history, poison_count, created_at, source_id, death, fingerprint,
           died_at)
    SELECT %(queue)s, 'm', 'message', 'null', 0, 1, 0, 0, %(now)s, '[]', 1, %(now)s, 2000000000 + n,
           %(death)s, 'g' || (n %% 50), %(now)s
      FROM {series}
"""


@pytest.fixture(scope="module", params=["analysed", "never analysed"])
def buried(request, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Committed, once: what a rolled back test leaves behind is read by every probe after it."""
    series = SERIES[connection.vendor]
    false = "false" if connection.vendor == "postgresql" else "0"
    with django_db_blocker.unblock():
        forget_statistics()
        empty()
        queue = Queue.objects.create(name="dead")
        Queue.objects.create(name="q", dead_queue=queue)
        given = {"n": N, "now": adapted(NOW), "queue": queue.pk, "death": '{"queue": "q"}'}
        with transaction.atomic():
            fill(Queue.objects.create(name="backlog"), at=NOW - timedelta(days=1), n=N)
            with connection.cursor() as cursor:
                cursor.execute(POISON.format(series=series, false=false), given)
                cursor.execute(BURIED.format(series=series), given)
        if request.param == "analysed":
            run("ANALYZE")
        yield
        empty()
        Queue.objects.filter(name__in=["q", "backlog"]).delete()
        Queue.objects.filter(name="dead").delete()
        forget_statistics()


def empty() -> None:
    if connection.vendor == "postgresql":
        run("TRUNCATE deadletter_message, deadletter_poison RESTART IDENTITY")
    else:
        run("DELETE FROM deadletter_message")
        run("DELETE FROM deadletter_poison")
        run("DELETE FROM sqlite_sequence WHERE name LIKE 'deadletter_%'")


@pytest.fixture
def dead(buried: None, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Seen]]:
    with frozen_clock(NOW) as clock:
        clock.advance(60)
        with watched(monkeypatch) as found:
            yield found


@pytest.mark.slow
def test_groups_are_probes_however_much_lies_in_dead_queues(dead):
    with by_index(connection.alias):
        found = operations.list_groups(limit=10)

    assert len(found) == 10
    assert sum(group.count for group in found) == 10 * N // 50
    # A page counts what its groups have, up to a limit; that there are others costs probes.
    assert_bounded(dead, "read_groups", rows=ROWS_OF_A_PAGE)
    assert "deadletter_dead_group" in dead["read_groups"].indexes


def test_alerts_read_the_newest_of_a_dead_queue(dead):
    context = AlertContext(
        using=connection.alias, now=NOW, policy=AlertPolicy(rules=(), channels=())
    )
    with by_index(connection.alias):
        assert context.moved("q", after=NOW - timedelta(hours=1)).count == COUNTED + 1
        assert context.moved("q", after=NOW).count == 0
        assert context.moved("backlog").count == 0

    # On SQLite a row costs thirty steps, not ten: it reads the death.
    each = 3 if connection.vendor == "sqlite" else 1
    assert_bounded(dead, "read_moved", rows=each * COUNTED + 1_000)
    assert "deadletter_dead_time" in dead["read_moved"].indexes


def test_a_retry_reads_what_it_moves(dead):
    ids = list(Message.objects.filter(source_id__isnull=False).values_list("pk", flat=True)[:100])

    assert len(operations.retry_dead(ids).retried) == 100

    assert_bounded(dead, "retry_dead", "delete", rows=3_000)


def test_a_death_beside_many_reads_only_itself(dead):
    queue = Queue.objects.get(name="q")
    fill(queue, at=NOW, n=100)
    batch = claim(["q"], limit=100)

    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])

    assert_bounded(dead, "read_for_quarantine", "move_to_dead_queue", "delete", rows=4_000)


def test_an_old_id_leads_to_where_the_message_is(dead):
    with connection.cursor() as cursor:
        rows = Message.objects.filter(queue_id__in=[1, 2, 3], source_id=2_000_000_001, origin=None)
        text, params = rows.query.sql_with_params()
        prefix = "EXPLAIN " if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN "
        cursor.execute(prefix + text, params)
        plan = str(cursor.fetchall())

    assert operations.find_moved(2_000_000_001) is not None
    assert "deadletter_message_moved" in plan


def test_an_import_finds_what_was_imported_and_lies_in_a_dead_queue(dead):
    def imported() -> list[int]:
        rows = [{"message_id": n, "name": "m", "payload": None} for n in range(1, 101)]
        return operations.import_messages(rows, origin="x", queue="q").imported

    assert len(imported()) == 100
    batch = claim(["q"], limit=100)
    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])

    assert imported() == []
    assert_bounded(dead, "import_messages", "read_imported", rows=5_000)
    indexes = {"deadletter_dead_origin", "deadletter_poison_dead_origin"}
    assert indexes <= set(dead["read_imported"].indexes)
