"""
Everything fails at once, for two hundred causes, beside ten thousand groups, while workers die.

No settle waits for the row of a group, and the groups say what the handlers and the histories say.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from deadletter import Outgoing, send_many
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup, GroupChange, GroupHour, Message, PoisonRecord, Queue
from deadletter.status import FailureReason
from tests.patience import wait_until
from tests.processes import Workers, database_url, worker_processes

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

CAUSES = 200
GROUPS = 10_000
#: Each fails twice, so that there are more failures than deaths.
ATTEMPTS = 2
KILLS = 3
LOCK_WAITS = """
SELECT query FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND wait_event IN ('relation', 'tuple', 'transactionid', 'advisory')
   AND query ILIKE '%%deadletter_group%%' AND pid <> pg_backend_pid()
"""


@contextmanager
def lock_waits() -> Iterator[list[str]]:
    """Look all the time for statements on groups that wait for a lock."""
    found: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        with psycopg.connect(database_url(), autocommit=True) as server:
            while not is_over.wait(0.002):
                found.extend(row[0] for row in server.execute(LOCK_WAITS.replace("%%", "%")))

    looking = threading.Thread(target=look)
    if connection.vendor == "postgresql":
        looking.start()
    try:
        yield found
    finally:
        is_over.set()
        if looking.ident is not None:
            looking.join()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with worker_processes(tmp_path, database_url()) as started:
        yield started


def store_groups(number: int) -> None:
    now = timezone.now()
    FailureGroup.objects.bulk_create(
        FailureGroup(
            fingerprint=f"old{n:013x}",
            name="sample.old",
            failures=1,
            first_failed_at=now,
            last_failed_at=now,
            state_at=now,
        )
        for n in range(number)
    )


def failures_in_histories() -> Counter[tuple[str, str]]:
    """Count the failed attempts that the records know, by exception or else by reason."""
    found: Counter[tuple[str, str]] = Counter()
    for name, history in PoisonRecord.objects.values_list("name", "history"):
        for entry in history:
            reason = FailureReason(entry["reason"]).name
            found[name, entry.get("exception") or reason] += 1
    return found


def test_the_groups_count_a_mass_failure_exactly_and_nobody_waits_for_them(
    workers: Workers,
) -> None:
    messages = int(os.environ.get("MASS_MESSAGES", "2000"))
    processes = 8 if connection.vendor == "postgresql" else 2
    Queue.objects.update_or_create(
        name="default", defaults={"max_attempts": ATTEMPTS, "backoff_base": 0}
    )
    store_groups(GROUPS)
    send_many(Outgoing("sample.cause", {"cause": n % CAUSES}) for n in range(messages))

    with lock_waits() as waits:
        worker = workers.start("--processes", processes, "--poll", 0.05)
        for nth in range(1, KILLS + 1):
            enough = nth * messages // (KILLS + 1)
            wait_until(lambda enough=enough: PoisonRecord.objects.count() >= enough)
            os.kill(worker.children()[0], signal.SIGKILL)
        wait_until(lambda: not Message.objects.filter(name="sample.cause").exists())
        wait_until(lambda: not GroupChange.objects.exists())
        assert worker.stop() == 0
    fold_all_groups()

    assert waits == []
    assert PoisonRecord.objects.count() == messages
    groups = {
        (group.name, group.exception): group
        for group in FailureGroup.objects.filter(name="sample.cause")
    }
    # What the records say, attempt by attempt …
    assert {key: group.failures for key, group in groups.items() if group.failures} == dict(
        failures_in_histories()
    )
    assert sum(group.deaths for group in groups.values()) == messages
    # … and what the handlers wrote down: of an attempt that raised and whose process was killed
    # before it could report, only that it failed is known, or not even that.
    raised = Counter(f"sample.Cause{line['cause']}" for line in workers.journal("raise"))
    failures = {cause: group.failures for (_, cause), group in groups.items()}
    unreported = failures.pop("HANDLER_EXCEPTION", 0)
    lost = failures.pop("WORKER_LOST", 0)
    assert set(failures) == set(raised)
    assert all(failures[cause] <= times for cause, times in raised.items())
    assert unreported <= raised.total() - sum(failures.values()) <= unreported + lost
    hours = GroupHour.objects.filter(fingerprint__in=[g.fingerprint for g in groups.values()])
    assert sum(hours.values_list("failures", flat=True)) == sum(
        group.failures for group in groups.values()
    )
    assert FailureGroup.objects.filter(name="sample.old", failures=1).count() == GROUPS
