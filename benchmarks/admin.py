"""
How long does the server take for each page of the admin when the tables are full?

    python -m benchmarks.admin [--poison 1000000] [--messages 1000000]

Fills a private PostgreSQL with generated rows and prints the median of five for each page: the
whole request through Django's handler, templates included, the network not. Asks for 300 ms. Beside
it the time of the processors, which others at work do not lengthen: Python's, and that of the one
process of the server that answers it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.private_postgres import SETTINGS, private_postgres

#: Milliseconds a page may take.
GOAL = 300
REPEATS = 5

#: Five causes are frequent, 9,900 are rare; the oldest fifth has a cause of its own, so that
#: "the newest of this cause" are far from the newest of all. One in 50 halts a stream.
POISON = """
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, key, priority, status, attempts,
        max_attempts, fence, reason, verdict, last_failure_reason, last_error, history, fingerprint,
        exception, frame, halts, poison_count, instance, original_created_at, poisoned_at,
        poisoned_by)
SELECT 10000000 + n, q, name, CASE WHEN n %% 97 = 0 THEN 'activity' ELSE 'message' END,
       '{"order": ' || n || ', "text": "' || repeat('x', 400) || '"}', NULL,
       CASE WHEN n %% 5 = 0 THEN 'order-' || n / 50 END, NULL, 0, 32769, 5, 5, 0,
       CASE WHEN n %% 5000 = 0 THEN 11 ELSE 7 END, 'gave up after 5 of 5 attempts', 2,
       cause || ': ' || md5(n::text) || ' happened to customer ' || n,
       '[{"at": "2026-01-01T00:00:00+00:00", "attempt": 1, "error": "e", "reason": 2}]'::jsonb,
       substr(md5(name || cause), 1, 16), cause, 'shop.orders:ship', n %% 50 = 0, 1,
       CASE WHEN n %% 10 = 0 THEN 'instance-' || n / 100 END,
       now() - (%(rows)s - n) * interval '2 seconds' - interval '1 minute',
       now() - (%(rows)s - n) * interval '2 seconds', 'worker'
  FROM (SELECT n, 'queue-' || n %% 8 AS q,
               'message.' || CASE WHEN n %% 10 < 9 THEN n %% 5 ELSE 5 + n / 10 %% 30 END AS name,
               CASE WHEN n < %(rows)s / 5 THEN 'shop.Old'
                    WHEN n %% 10 < 9 THEN 'shop.Frequent' || n %% 5
                    ELSE 'shop.Rare' || n / 10 %% 9900 END AS cause
          FROM generate_series(1, %(rows)s) AS n) AS made
"""
MESSAGES = """
INSERT INTO deadletter_message (queue_id, name, payload, stream, available_at, status, attempts)
SELECT q.id, 'message.' || n %% 40, '{"n": 1}', CASE WHEN n %% 5 = 0 THEN 'order-' || n / 50 END,
       CASE WHEN n %% 7 = 0 THEN NULL ELSE now() + (n %% 1000 - 500) * interval '1 minute' END,
       CASE WHEN n %% 3 = 0 THEN 32769 ELSE 1 END, n %% 4
  FROM generate_series(1, %(rows)s) AS n
  JOIN deadletter_queue q ON q.name = 'queue-' || n %% 8
"""
#: The hours of sixty days, in two releases, and ten values of a tag for each group.
HOURS = """
INSERT INTO deadletter_group_hour (fingerprint, at, release, failures, deaths)
SELECT fingerprint, date_trunc('hour', now()) - n * interval '1 day', '2.' || (n % 2), n + 1, n
  FROM deadletter_group, generate_series(1, 60) AS n
"""
TAGS = """
INSERT INTO deadletter_group_tag (fingerprint, key, value, failures, last_at)
SELECT fingerprint, 'customer.id', (id % 1000 + n)::text, n, now()
  FROM deadletter_group, generate_series(1, 10) AS n
"""
MESSAGE_TAGS = """
INSERT INTO deadletter_message_tag (message_id, key, value, at)
SELECT message_id, 'customer.id', (message_id % 1000)::text, poisoned_at FROM deadletter_poison
"""
#: 150 names that are always busy and fail for two reasons: as many minutes and hours as the sweep
#: keeps, and days for almost five years. These are a million rows.
COUNTS = """
INSERT INTO deadletter_count (span, at, queue, name, kind, reason, writer, sent, completed, failed,
                              deferred, poisoned, retried, removed, seconds, longest)
SELECT span, at, 'queue-' || n %% 8, 'message.' || n, 'message', reason, '',
       CASE reason WHEN -1 THEN n ELSE 0 END, CASE reason WHEN -1 THEN n ELSE 0 END,
       CASE reason WHEN -1 THEN 0 ELSE n %% 7 END, 0, CASE reason WHEN -1 THEN n %% 3 ELSE 0 END,
       0, 0, n / 10.0, 1.0
  FROM (SELECT 60 AS span, date_trunc('minute', now()) - n * interval '1 minute' AS at
          FROM generate_series(0, %(minutes)s) AS n
        UNION ALL
        SELECT 3600, date_trunc('hour', now()) - n * interval '1 hour'
          FROM generate_series(%(minutes)s / 60 + 1, 15 * 24) AS n
        UNION ALL
        SELECT 86400, date_trunc('day', now()) - n * interval '1 day'
          FROM generate_series(16, 1710) AS n) AS spans,
       generate_series(1, 150) AS n, (VALUES (-1), (2), (4)) AS reasons(reason)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poison", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--explain", action="store_true", help="print the slowest statements")
    options = parser.parse_args()
    SETTINGS.update({"shared_buffers": "1GB", "max_wal_size": "8GB"})
    with private_postgres() as url:
        os.environ.update(
            DATABASE_URL=url, DJANGO_SETTINGS_MODULE="project.settings", LOG_LEVEL="ERROR"
        )
        import django

        django.setup()
        prepare(options)
        slow = [name for name, page in pages() if measure(name, page, options.explain) > GOAL]
    print(f"over {GOAL} ms: {', '.join(slow) or 'none'}")
    sys.exit(bool(slow))


def prepare(options: argparse.Namespace) -> None:
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    from deadletter.lifecycle.group_adoption import adopt_all_groups
    from deadletter.lifecycle.sweeps import _MINUTES_KEPT
    from deadletter.models import Queue

    settings.ALLOWED_HOSTS = ["testserver"]
    call_command("migrate", verbosity=0)
    for number in range(8):
        Queue.objects.create(name=f"queue-{number}", stream_policy="halt")
    start = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(POISON, {"rows": options.poison})
        cursor.execute(MESSAGES, {"rows": options.messages})
        cursor.execute(COUNTS, {"minutes": _MINUTES_KEPT // timedelta(minutes=1)})
        cursor.execute("VACUUM ANALYZE deadletter_poison")
        adopt_all_groups()
        cursor.execute(HOURS)
        cursor.execute(TAGS)
        cursor.execute(MESSAGE_TAGS)
        for table in ("group", "group_hour", "group_tag", "message_tag"):
            cursor.execute(f"VACUUM ANALYZE deadletter_{table}")
        cursor.execute("SELECT COUNT(*) FROM deadletter_group")
        (groups,) = cursor.fetchone()
        cursor.execute("VACUUM ANALYZE deadletter_count")
        cursor.execute("VACUUM ANALYZE deadletter_message")
        cursor.execute("SELECT COUNT(*) FROM deadletter_count")
        (counts,) = cursor.fetchone()
    print(
        f"{options.poison:,} poison records in {groups:,} groups, {options.messages:,} messages "
        f"and {counts:,} counters "
        f"in {time.monotonic() - start:.0f} s; server time, median of {REPEATS}:"
    )


def pages() -> list[tuple[str, str]]:
    """Name every page, with the filters that could hurt."""
    from django.urls import reverse
    from django.utils.http import urlencode

    from deadletter.models import Message, PoisonRecord, Queue

    def at(page: str, *args: object, **query: Any) -> str:
        found = reverse(f"admin:deadletter_{page}", args=args)
        return f"{found}?{urlencode(query)}" if query else found

    newest = PoisonRecord.objects.latest("pk")
    halting = PoisonRecord.objects.filter(halts=True, stream__isnull=False).latest("pk")
    rare = PoisonRecord.objects.filter(exception="shop.Rare7").latest("pk")
    old = PoisonRecord.objects.filter(exception="shop.Old").latest("pk")
    middle = PoisonRecord.objects.order_by("pk")[500:501].get()
    place = f"{middle.poisoned_at.isoformat()}_{middle.pk}"
    ids = Message.objects.order_by("-pk").values_list("pk", flat=True)[:50]
    last_messages = ",".join(str(id) for id in ids)
    records, bulk = "poisonrecord_records", "poisonrecord_bulk"
    dashboard = reverse("admin:app_list", args=["deadletter"])
    return [
        ("dashboard", dashboard),
        ("dashboard of the last day", f"{dashboard}?window=day"),
        ("dashboard of the last week", f"{dashboard}?window=week"),
        ("counters", at("count_changelist")),
        (
            "counters of a queue of the last week",
            at("count_changelist", time="week", queue="queue-1"),
        ),
        ("counters of the last week", at("count_changelist", time="week")),
        ("counters of all times", at("count_changelist", time="ever")),
        ("groups", at("poisonrecord_changelist")),
        ("groups, last page", at("poisonrecord_changelist", p=9)),
        ("groups that need a person", at("poisonrecord_changelist", state="open")),
        ("groups by release", at("poisonrecord_changelist", release="2.0")),
        ("groups by text, none", at("poisonrecord_changelist", text="no such text")),
        ("groups by tag", at("poisonrecord_changelist", tag="customer.id=41")),
        ("a frequent group", at("poisonrecord_group", newest.fingerprint)),
        ("a rare group", at("poisonrecord_group", rare.fingerprint)),
        ("a group that ended long ago", at("poisonrecord_group", old.fingerprint)),
        ("a tag", at("poisonrecord_tag", key="customer.id", value="41")),
        ("records by tag", at(records, tag="customer.id=41")),
        ("confirm a mute", at("poisonrecord_group_mute", group=newest.fingerprint)),
        ("matrix by name", at("poisonrecord_matrix")),
        ("matrix by exception", at("poisonrecord_matrix", by="exception")),
        ("records", at(records)),
        ("records, last page", at(records, older=place)),
        ("records of a frequent group", at(records, fingerprint=newest.fingerprint)),
        ("records of a rare group", at(records, fingerprint=rare.fingerprint)),
        ("records of a group that ended long ago", at(records, fingerprint=old.fingerprint)),
        ("records by queue and name", at(records, queue="queue-1", name="message.2")),
        ("records by queue and name, none", at(records, queue="queue-1", name="none")),
        ("records by kind", at(records, kind="activity")),
        ("records by a rare reason", at(records, reason="operator")),
        ("records by text, none", at(records, text="no such text")),
        ("records by text in a queue", at(records, queue="queue-1", text="customer 9")),
        ("records by stream", at(records, stream=halting.stream)),
        ("records by instance", at(records, instance="instance-500")),
        ("records since an hour", at(records, since="2020-01-01", queue="queue-3")),
        ("a search that finds nothing", at(records, q="nothing of the kind")),
        ("a search by id", at(records, q=newest.message_id)),
        ("a record", at("poisonrecord_change", newest.pk)),
        ("a record that halts", at("poisonrecord_change", halting.pk)),
        ("confirm a retry", at("poisonrecord_retry", halting.pk)),
        ("edit", at("poisonrecord_edit", newest.pk)),
        ("confirm a retry of all", at(bulk, "retry")),
        ("confirm a retry of a group", at(bulk, "retry", fingerprint=newest.fingerprint)),
        ("confirm a retry of a few", at(bulk, "retry", fingerprint=old.fingerprint, first=5)),
        ("confirm a removal by text", at(bulk, "remove", text="customer 12345")),
        ("confirm a removal by reason", at(bulk, "remove", reason="operator", queue="queue-0")),
        ("jobs", at("poisonrecord_jobs")),
        ("messages", at("message_changelist")),
        *(
            (f"messages that are {state}", at("message_changelist", state=state))
            for state in ("pending", "scheduled", "failed", "active", "blocked")
        ),
        ("messages that are active in a queue", at("message_changelist", state="active", queue=1)),
        ("messages by attempts, none", at("message_changelist", attempts="10-")),
        ("messages, last page", at("message_changelist", p=200)),
        ("messages by stream", at("message_changelist", q=halting.stream)),
        ("confirm a removal of messages", at("message_act", "remove", ids=last_messages)),
        ("streams", at("streams")),
        ("audit trail", at("auditentry_changelist")),
        ("workers", at("workerprocess_changelist")),
        ("a message", at("message_change", Message.objects.latest("pk").pk)),
        ("queues", at("queue_changelist")),
        ("a queue", at("queue_change", Queue.objects.get(name="queue-1").pk)),
        ("circuit breakers", at("breaker_changelist")),
    ]


def measure(name: str, page: str, explain: bool) -> float:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    user = User.objects.filter(username="bench").first()
    browser = Client()
    browser.force_login(user or User.objects.create_superuser("bench"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    times, python, database = [], [], processor_time(backend)
    for _ in range(REPEATS):
        start, worked = time.perf_counter(), time.process_time()
        answer = browser.get(page)
        times.append((time.perf_counter() - start) * 1000)
        python.append((time.process_time() - worked) * 1000)
        assert answer.status_code in (200, 302), (name, answer.status_code)
    median = statistics.median(times)
    database = (processor_time(backend) - database) * 1000 / REPEATS
    print(
        f"  {median:6.0f} ms  {name} "
        f"(Python {statistics.median(python):.0f}, database {database:.0f})"
    )
    if explain and median > GOAL / 2:
        with CaptureQueriesContext(connection) as queries:
            browser.get(page)
        for query in sorted(queries, key=lambda q: -float(q["time"]))[:2]:
            print(
                f"            {query['time']} s of {len(queries)} statements: {query['sql'][:600]}"
            )
    return median


def processor_time(pid: int) -> float:
    """Seconds a process has worked, in steps of a hundredth; Linux tells."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
