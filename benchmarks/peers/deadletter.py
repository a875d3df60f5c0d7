"""deadletter: the real `manage.py run_worker` with default settings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..system import Payload, System

#: Due or leased. The bound on available_at lets the claim index skip what waits for tomorrow.
LEFT = """
SELECT count(*) FROM deadletter_message
 WHERE queue_id = (SELECT id FROM deadletter_queue WHERE name = 'default') AND priority = 0
   AND available_at < now() + interval '1 hour'
   AND (lease_token IS NOT NULL OR available_at <= now())
"""


class Deadletter(System):
    name = "deadletter"
    title = "deadletter"
    settings = "`manage.py run_worker`, no options"
    rates = {"send-one": 1_000, "send-many": 30_000, "drain": 15_000}
    chunk = 10_000
    measures = (*System.measures, "beside")
    left_sql = LEFT
    packages = ("django", "psycopg")

    def setup(self) -> None:
        self.open()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def open(self) -> None:
        import django

        django.setup()
        from django.db import connection

        from deadletter import Outgoing, send, send_many

        connection.ensure_connection()
        self.send, self.send_all, self.outgoing = send, send_many, Outgoing

    def send_one(self, name: str, payload: Payload) -> None:
        self.send(f"bench.{name}", payload)

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        self.send_all([self.outgoing(f"bench.{name}", payload) for payload in payloads])

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        options = ["--drain"] if drain else []
        if processes > 1:
            options += ["--processes", str(processes)]
        return [[sys.executable, "manage.py", "run_worker", *options]]

    def environment(self) -> dict[str, str]:
        return {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "LOG_LEVEL": "WARNING"}


class DjangoCreate(Deadletter):
    """What a bare `Model.objects.create` of the same row costs: the measure for `send`."""

    name = "django-create"
    title = "Django's Model.objects.create"
    settings = "the same row, no checks, no notification; bulk_create for many"
    schema = "deadletter"
    measures = ("send-one", "send-many")
    rates = {"send-one": 1_000, "send-many": 15_000, "drain": 0}

    def open(self) -> None:
        super().open()
        from django.db.models.functions import Now

        from deadletter.models import Message, Queue

        self.model, self.now = Message, Now()
        self.queue = Queue.objects.get(name="default")

    def send_one(self, name: str, payload: Payload) -> None:
        self.model.objects.create(
            queue=self.queue, name=f"bench.{name}", payload=payload, available_at=self.now
        )

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        self.model.objects.bulk_create(
            self.model(
                queue=self.queue, name=f"bench.{name}", payload=payload, available_at=self.now
            )
            for payload in payloads
        )


class OnSQLite(Deadletter):
    name = "deadletter-sqlite"
    title = "deadletter on SQLite"
    settings = "`manage.py run_worker`, no options; WAL, synchronous=FULL"
    store = "sqlite"
    rates = {"send-one": 500, "send-many": 10_000, "drain": 3_000}
    packages = ("django",)
    left_sql = "SELECT count(*) FROM deadletter_message"
