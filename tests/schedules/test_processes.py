"""Schedules fired by processes: killed at every point, several at once, the database away."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from deadletter import clock, crash_points
from deadletter.models import Message, Queue, Schedule, ScheduleRun
from tests.patience import wait_until
from tests.processes import Worker, database_url, worker_processes
from tests.worker.site import Site

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

HOUR = timedelta(hours=1)
SCHEDULES = 60
#: Moments of each schedule that are due when the workers start.
MOMENTS = 4
POINTS = sorted(point for point in crash_points.POINTS if point.startswith("schedule."))

Moment = tuple[str, datetime]


@pytest.fixture(autouse=True)
def noon() -> None:
    """The workers have the clock of the database."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    with worker_processes(tmp_path, database_url()) as workers:

        def run(**environment: str) -> Worker:
            about = {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", **environment}
            # They fire into a queue that none of them serves, so that every message is left.
            return workers.start("--queues", "other", "--poll", "0.1", **about)

        yield run


def create_due() -> set[Moment]:
    """Create schedules with moments that nobody has fired; return these moments."""
    for name in ("default", "other"):
        Queue.objects.get_or_create(name=name)
    now = clock.now("default").replace(microsecond=0)
    first = now - (MOMENTS - 1) * HOUR - timedelta(minutes=5)
    rows = [
        Schedule(
            name=f"s{n}",
            target="report",
            interval=HOUR,
            missed="all",
            overlap="allow",
            created_at=first,
            start=first,
            next_at=first,
            due_at=first,
        )
        for n in range(SCHEDULES)
    ]
    Schedule.objects.bulk_create(rows)
    return {(row.name, first + n * HOUR) for row in rows for n in range(MOMENTS)}


def fired() -> Counter[Moment]:
    """Count the messages of each moment."""
    found = Message.objects.filter(name="report").values_list("headers", flat=True)
    return Counter(
        (headers["schedule"], datetime.fromisoformat(headers["schedule-moment"]))
        for headers in found
    )


def is_nothing_due() -> bool:
    return not Schedule.objects.due(clock.now("default")).exists()


def assert_each_once(expected: set[Moment]) -> None:
    assert fired() == Counter(expected)
    rows = ScheduleRun.objects.filter(outcome="sent").select_related("schedule")
    assert {(row.schedule.name, row.moment) for row in rows} == expected
    ids = Message.objects.filter(name="report").values_list("pk", flat=True)
    assert sorted(rows.values_list("message_id", flat=True)) == sorted(ids)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("point", POINTS)
def test_each_moment_is_fired_once_however_many_die_at_a_point(start, point, workers):
    expected = create_due()
    # All but the last one die there: at the first piece, or in the middle of it.
    nth = 20 if point in ("schedule.sent", "schedule.recorded") else 1
    dying = [
        start(DEADLETTER_CRASH_AT=f"{point}:{nth}", DEADLETTER_CRASHES="1")
        for _ in range(workers - 1)
    ]
    wait_until(lambda: any(worker.process.poll() is not None for worker in dying))
    survivor = start()

    wait_until(is_nothing_due, why=survivor.text)

    assert [w.process.poll() for w in dying].count(-signal.SIGKILL) == 1
    assert_each_once(expected)


@pytest.mark.slow
def test_five_workers_of_which_four_are_killed_while_they_fire(start):
    expected = create_due()
    workers = [start() for _ in range(5)]
    wait_until(lambda: ScheduleRun.objects.exists(), why=workers[0].text)
    for worker in workers[:4]:
        worker.signal(signal.SIGKILL)

    wait_until(is_nothing_due, why=workers[4].text)

    assert_each_once(expected)


def test_a_worker_fires_schedules_of_queues_that_it_does_not_serve(start):
    expected = create_due()
    worker = start().wait_ready()

    wait_until(is_nothing_due, why=worker.text)
    assert worker.stop() == 0

    assert_each_once(expected)
    assert worker.lines("housekeeping_failed") == []


@pytest.mark.slow
@pytest.mark.postgresql_only(reason="SQLite has no server that could go away")
def test_the_database_is_away_over_three_firings(site: Site):
    site.execute("""
        INSERT INTO deadletter_schedule (name, kind, target, queue, cron, interval, time_zone,
               jitter, overlap, missed, grace, paused, declaration, created_at, next_at, due_at,
               run_count, last_outcome, last_error)
        SELECT missed, 'message', 'report', 'nobody', '', interval '2 s', 'UTC', interval '0',
               'allow', missed, interval '1 s', false, '', date_trunc('second', now()),
               date_trunc('second', now()), date_trunc('second', now()), 0, '', ''
          FROM (VALUES ('once'), ('skip'), ('all')) policies (missed)
    """)
    site.execute("""
        INSERT INTO deadletter_queue (name, backoff_base, backoff_cap, jitter, lease_timeout,
               on_poison, stream_policy, paused)
        VALUES ('nobody', interval '1 s', interval '1 s', 0, interval '60 s', 'quarantine',
                'strict', false)
    """)
    worker = site.workers.start("--queues", "default", "--poll", "0.1")
    wait_until(lambda: runs(site, "all"), why=worker.text)

    site.server.stop()
    begun = monotonic()
    # Five moments: one of them is fired late, so at least three are missed.
    wait_until(lambda: monotonic() - begun > 11)
    site.server.start()
    back = datetime.now(UTC)
    wait_until(lambda: max(at for at, *_ in runs(site, "all")) > back + timedelta(seconds=4))
    assert worker.stop() == 0

    for policy in ("once", "skip", "all"):
        found = runs(site, policy)
        moments = [at for at, *_ in found]
        # The runs and the missed moments that they stand for follow each other without a gap.
        assert moments == sorted(set(moments))
        for (at, _, count), (following, *_) in pairwise(found):
            assert following == at + timedelta(seconds=2 * count)
        sent = [at for at, outcome, _ in found if outcome == "sent"]
        assert len(sent) == len(messages(site, policy))
        assert set(messages(site, policy)) == set(sent)
        missed = sum(count for _, outcome, count in found if outcome == "missed")
        assert (missed >= 3) == (policy != "all"), found


def runs(site: Site, name: str) -> list[tuple[Any, ...]]:
    return site.query(f"""
        SELECT r.moment, r.outcome, r.count FROM deadletter_schedule_run r
          JOIN deadletter_schedule s ON s.id = r.schedule_id
         WHERE s.name = '{name}' ORDER BY r.moment
    """)


def messages(site: Site, name: str) -> list[datetime]:
    rows = site.query(f"""
        SELECT headers::json ->> 'schedule-moment' FROM deadletter_message
         WHERE headers::json ->> 'schedule' = '{name}'
    """)
    return [datetime.fromisoformat(text) for (text,) in rows]
