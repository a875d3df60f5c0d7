"""A relay reads what it publishes: not the backlog, the held messages or those of other brokers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from deadletter.lifecycle.outbox import LANES
from deadletter.lifecycle.outbox_batches import (
    BatchOutcome,
    read_batch,
    read_refused,
    settle_batch,
)
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import OutboxMessage
from deadletter.operations import list_brokers
from deadletter.outbox.brokers import Broker
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason
from deadletter.testing import frozen_clock

from .conftest import MANY, NOW, SERIES, adapted, assert_bounded, run

pytestmark = pytest.mark.slow

ROWS = """
    INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, created_at, held, attempts,
           retry_at, poison_count)
    SELECT %(broker)s, n %% 16, 't', %(key)s || (n %% 5000), '{{}}', %(now)s, %(held)s, 0,
           %(retry_at)s, 0
      FROM {series}
"""
EVERY = list(range(LANES))
DEFAULT = Broker(name="default", transport="-", options={})


@pytest.fixture(scope="module", autouse=True)
def stored(crowd: None, django_db_blocker: Any) -> Iterator[None]:
    """Another broker's backlog, held messages, refused ones for later, and a backlog."""
    text = ROWS.format(series=SERIES[connection.vendor])
    later = NOW + timedelta(hours=1)
    with django_db_blocker.unblock():
        for broker, key, held, retry_at in (
            ("away", "a", False, None),
            ("default", "held", True, None),
            ("default", "refused", True, later),
            ("default", "ready", False, None),
        ):
            values = {"broker": broker, "key": key, "held": held, "retry_at": retry_at}
            values |= {"now": NOW, "n": MANY}
            with connection.cursor() as cursor:
                cursor.execute(text, {name: adapted(value) for name, value in values.items()})
        yield
        is_sqlite = connection.vendor == "sqlite"
        run("DELETE FROM deadletter_outbox" if is_sqlite else "TRUNCATE deadletter_outbox")


@pytest.fixture(autouse=True)
def time() -> Iterator[None]:
    with frozen_clock(NOW):
        yield


@pytest.mark.parametrize("lanes", [EVERY, [3]], ids=["all", "one"])
def test_a_batch_reads_only_its_messages(seen, lanes):
    share = 512 // len(lanes)

    rows = in_transaction(lambda tx: read_batch(tx, "default", lanes, share=share))

    assert len(rows) == 512
    assert {row.lane for row in rows} == set(lanes)
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert_bounded(seen, "read_lanes", rows=3_000)


def test_refused_messages_for_later_are_not_read(seen):
    rows = in_transaction(lambda tx: read_refused(tx, "default", EVERY, share=32))

    assert rows == []
    assert_bounded(seen, "read_refused", rows=3_000)


def test_a_settled_batch_reads_only_its_messages(seen):
    def work(tx: Any) -> None:
        rows = read_batch(tx, "default", [3], share=100)
        never = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "never", is_permanent=True)
        for_now = BrokerRefusal(FailureReason.TRANSPORT_UNAVAILABLE, "for now")
        again = rows[50]._replace(is_due_again=True)
        outcome = BatchOutcome(
            published=[*rows[:50], again],
            refused=[(rows[60], never), (rows[61], for_now)],
            held=rows[70:80],
        )
        settle_batch(tx, DEFAULT, outcome, lanes=EVERY, by="w")

    in_transaction(work)

    statements = ("delete_published", "put_off_key", "hold", "free_key", "quarantine_outbox")
    assert_bounded(seen, *statements, rows=3_000)


def test_refused_messages_of_the_same_time_are_read_in_their_order(seen):
    with frozen_clock(NOW + timedelta(hours=2)):
        rows = in_transaction(lambda tx: read_refused(tx, "default", EVERY, share=32))

    assert len(rows) == 512
    assert [row.id for row in rows] == sorted(row.id for row in rows)


def test_the_oldest_message_of_a_broker_is_found_at_once(seen, settings):
    settings.DEADLETTER = {"BROKERS": {"default": {"url": "redis://h"}}}

    (broker,) = [found for found in list_brokers() if found.name == "default"]

    assert broker.oldest_at == NOW
    assert_bounded(seen, "read_oldest_of_lanes", rows=3_000)
    assert OutboxMessage.objects.filter(broker="away").order_by()[:1].exists()
