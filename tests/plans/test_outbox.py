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
from deadletter.lifecycle.pauses import (
    hold_paused,
    read_paused_keys,
    read_paused_topics,
    resume_held,
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
           retry_at, poison_count, paused)
    SELECT %(broker)s, n %% 16, %(topic)s, %(key)s || (n %% 5000), '{{}}', %(now)s, %(held)s, 0,
           %(retry_at)s, 0, %(paused)s
      FROM {series}
"""
EVERY = list(range(LANES))
DEFAULT = Broker(name="default", transport="-", options={})


@pytest.fixture(scope="module", autouse=True)
def stored(crowd: None, django_db_blocker: Any) -> Iterator[None]:
    """Another broker's backlog, held and paused messages, refused ones, and a backlog."""
    text = ROWS.format(series=SERIES[connection.vendor])
    later = NOW + timedelta(hours=1)
    with django_db_blocker.unblock():
        for broker, key, held, retry_at, paused in (
            ("away", "a", False, None, False),
            ("default", "held", True, None, False),
            ("default", "refused", True, later, False),
            ("default", "paused", True, None, True),
            ("default", "refused", True, NOW, True),
            ("default", "ready", False, None, False),
        ):
            values = {"broker": broker, "key": key, "held": held, "retry_at": retry_at}
            values |= {"now": NOW, "n": MANY, "paused": paused, "topic": "p" if paused else "t"}
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


def test_the_first_paused_message_of_a_key_is_found_at_once(seen):
    keys = [(n % 16, f"paused{n}") for n in range(1, 200)] + [(3, "ready3")]

    found = in_transaction(lambda tx: read_paused_keys(tx, "default", keys))

    assert len(found) == 199
    assert_bounded(seen, "read_paused_keys", rows=3_000)


@pytest.mark.postgresql_only(reason="SQLite reads the index of paused messages")
def test_the_topics_with_paused_messages_are_found_by_a_probe_each(seen):
    found = in_transaction(lambda tx: read_paused_topics(tx, "default", EVERY))

    assert sorted(found) == [(lane, "p") for lane in EVERY]
    assert_bounded(seen, "read_paused_topics", rows=3_000)


def test_a_piece_of_resumed_messages_reads_only_itself_and_its_keys(seen):
    def work(tx: Any) -> None:
        topics = [(lane, "p") for lane in EVERY]
        assert resume_held(tx, "default", topics, share=2).n == 32
        rows = read_batch(tx, "default", EVERY, share=2)
        hold_paused(tx, [row.id for row in rows])

    in_transaction(work)

    free = "free_key" if connection.vendor == "sqlite" else "free_keys"
    assert_bounded(seen, "resume_held", "hold_paused", free, rows=3_000)


def test_the_oldest_message_of_a_broker_is_found_at_once(seen, settings):
    settings.DEADLETTER = {"BROKERS": {"default": {"url": "redis://h"}}}

    (broker,) = [found for found in list_brokers() if found.name == "default"]

    assert broker.oldest_at == NOW
    assert_bounded(seen, "read_oldest_of_lanes", rows=3_000)
    assert OutboxMessage.objects.filter(broker="away").order_by()[:1].exists()
