"""Named sets of rows: one definition each, whatever page, command or alert asks."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from deadletter.models import Instance, Message, PoisonRecord, Result, WorkerProcess, primary_alias

pytestmark = pytest.mark.django_db

NOW = timezone.now()


def worker(name: str, *, ago: int, queues: list[str]) -> WorkerProcess:
    return WorkerProcess.objects.create(
        name=name,
        host="h",
        pid=1,
        version="1",
        queues=queues,
        concurrency=1,
        started_at=NOW,
        seen_at=NOW - timedelta(seconds=ago),
    )


def test_a_worker_is_alive_for_thirty_seconds_after_it_was_seen():
    seen = [worker("a", ago=0, queues=[]), worker("b", ago=30, queues=[])]
    lost = worker("c", ago=31, queues=[])

    assert list(WorkerProcess.objects.alive(NOW).order_by("name")) == seen
    assert [found.is_alive(NOW) for found in [*seen, lost]] == [True, True, False]


def test_the_served_queues_are_those_of_the_rows_and_patterns_count():
    worker("a", ago=0, queues=["mail.*"])
    worker("b", ago=60, queues=["slow"])

    served = WorkerProcess.objects.alive(NOW).served()

    assert "mail.eu" in served
    assert "slow" not in served


ATTEMPTS = ("history", "workers", "progress")


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        (Message.objects.without_bodies, {*ATTEMPTS, "payload", "headers", "error", "death"}),
        (PoisonRecord.objects.without_bodies, {*ATTEMPTS, "payload", "headers", "death"}),
        (Result.objects.without_bodies, {*ATTEMPTS, "payload", "headers", "value"}),
        (
            PoisonRecord.objects.short_columns,
            {*ATTEMPTS, "payload", "headers", "death", "last_error", "verdict"},
        ),
        (Instance.objects.without_bodies, {"input", "state", "output", "inbox", "history"}),
        (
            Instance.objects.short_columns,
            {"input", "state", "output", "inbox", "history", "error", "pending"},
        ),
    ],
)
def test_bodies_are_left_out(rows, left_out):
    assert rows().query.deferred_loading == (left_out, True)


def test_the_death_of_a_message_in_a_dead_queue_can_be_kept():
    rows = Message.objects.without_bodies(keep_death=True)

    assert rows.query.deferred_loading == ({*ATTEMPTS, "payload", "headers", "error"}, True)


def test_the_primary_is_what_is_given_or_what_messages_are_written_to():
    assert primary_alias("second") == "second"
    assert primary_alias() == primary_alias(None) == "default"
