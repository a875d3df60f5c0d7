"""Django's own tasks in the database, as deadletter and two packages keep them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from ..system import Payload, System
from .deadletter import Deadletter


class DjangoTasks(System):
    """The interface of the framework."""

    def open(self) -> None:
        import django

        django.setup()
        from django.db import connection

        from . import django_work

        connection.ensure_connection()
        self.tasks: dict[str, Any] = {
            "nothing": django_work.nothing,
            "pickup": django_work.pickup,
        }

    def send_one(self, name: str, payload: Payload) -> None:
        self.tasks[name].enqueue(payload)

    def get_result(self, id: str) -> object:
        return self.tasks["nothing"].get_result(id).return_value


class DeadletterTasks(DjangoTasks, Deadletter):
    """The same worker and the same tables as for messages; results are not kept."""

    name = "deadletter-tasks"
    title = "deadletter's tasks"
    settings = "`manage.py run_worker`, no options; RESULTS_KEPT is never"
    schema = "deadletter"
    results_kept = "never"

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        self.tasks[name].enqueue_many([(payload,) for payload in payloads])

    def environment(self) -> dict[str, str]:
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.task_settings"}
        return super().environment() | settings | {"BENCH_RESULTS_KEPT": self.results_kept}


class DeadletterResults(DeadletterTasks):
    """The same with results. They make no difference before a task has ended."""

    name = "deadletter-results"
    title = "deadletter's tasks with results"
    settings = "`manage.py run_worker`, no options; results are kept for 7 days"
    measures = ("drain-1", "drain-2", "get-result")
    rates = Deadletter.rates | {"get-result": 800}
    results_kept = "7d"
    ids_sql = "SELECT message_id FROM deadletter_task_result"


class PeerOfDjango(DjangoTasks):
    """What the two packages have in common."""

    app = ""
    measures = (*System.measures, "get-result")

    def missing(self) -> str | None:
        if importlib.util.find_spec(self.app) is None:
            return f"{self.name} is not installed; it may need a newer Python"
        return None

    def environment(self) -> dict[str, str]:
        settings = "benchmarks.peers.django_settings"
        return {"DJANGO_SETTINGS_MODULE": settings, "BENCH_BACKEND": self.app}

    def setup(self) -> None:
        self.open()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)


class DjangoTasksDB(PeerOfDjango):
    name = "django-tasks-db"
    title = "django-tasks-db"
    settings = "`db_worker --interval 0.05`, persistent connections"
    app = "django_tasks_db"
    rates = {"send-one": 900, "send-many": 1_200, "drain": 220, "get-result": 1_500}
    left_sql = (
        "SELECT count(*) FROM django_tasks_database_dbtaskresult "
        "WHERE status IN ('READY', 'RUNNING')"
    )
    ids_sql = "SELECT id FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'"
    packages = ("django-tasks-db", "django")

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        from django.db import transaction

        # It has no bulk form: one transaction is what helps.
        with transaction.atomic():
            for payload in payloads:
                self.tasks[name].enqueue(payload)

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        options = ["--interval", "0.05", "--no-startup-delay", "--verbosity", "0"]
        return [[sys.executable, "manage.py", "db_worker", *options] for _ in range(processes)]


class DjangoOx(PeerOfDjango):
    name = "django-ox"
    title = "django-ox"
    settings = "`ox_worker --concurrency 8 --interval 0.05`, persistent connections"
    app = "django_ox"
    rates = {"send-one": 900, "send-many": 8_000, "drain": 500, "get-result": 1_500}
    left_sql = "SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')"
    ids_sql = "SELECT id FROM django_ox_oxtask WHERE status = 'SUCCESSFUL'"
    packages = ("django-ox", "django")

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        from django_ox.bulk import enqueue_many

        enqueue_many(self.tasks[name], [((payload,), {}) for payload in payloads])

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        options = ["--concurrency", "8", "--interval", "0.05", "--processes", str(processes)]
        return [[sys.executable, "manage.py", "ox_worker", *options]]
