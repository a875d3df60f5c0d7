"""A time that no clock says, in every time column of every table: everything stays alive."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, models
from django.test import Client

from deadletter import alerts, clock, lifecycle, operations, send, start, testing
from deadletter.metrics.depths import read_depths
from deadletter.metrics.totals import MonotonicTotals
from deadletter.models import Act, AlertState, Message, PoisonRecord
from tests.admin.every_page import every_page, hostile_rows
from tests.alerts.conftest import rules  # noqa: F401 - a fixture

from .test_times import DAMAGES, damage

pytestmark = pytest.mark.slow

COLUMNS = [
    (model._meta.db_table, field.column)
    for model in apps.get_app_config("deadletter").get_models()
    for field in model._meta.get_fields()
    if isinstance(field, models.DateTimeField)
]
EVERY_RULE = {
    "new_group": True,
    "poison_rate": {"above": 1, "within": 60},
    "poison_depth": {"above": 0},
    "oldest_age": {"after": 1},
    "halted_stream": True,
    "worker_lost": True,
    "breaker_opened": True,
    "unserved_queue": True,
    "stuck_instance": True,
}


def put(text: str) -> None:
    with connection.cursor() as cursor:
        # Counters of two minutes cannot have the same time.
        cursor.execute(
            "DELETE FROM deadletter_count WHERE at < (SELECT MAX(at) FROM deadletter_count)"
        )
        for table, column in COLUMNS:
            cursor.execute(f'UPDATE {table} SET "{column}" = %s', [text])


def problems(works: dict[str, Callable[[], Any]]) -> dict[str, str]:
    found = {}
    for name, work in works.items():
        try:
            work()
        except SystemExit:  # a health that is bad
            continue
        except Exception as error:  # noqa: BLE001 - all of them are told together
            found[name] = repr(error)[:300]
    return found


def command(*arguments: object) -> None:
    for format in ("json", "table"):
        options = [*map(str, arguments), "--format", format]
        call_command("deadletter", *options, stdout=StringIO(), stderr=StringIO())


@pytest.fixture
def pages(db: None, rules: Any) -> list[str]:  # noqa: F811
    rules(**EVERY_RULE)
    rows = hostile_rows(clock.now("default"))
    send("mail", stream="s")
    send("mail", stream="s", key="k", expires_in=60)
    start("order", instance="order-1")
    alerts.decide()
    operations.start_job(Act.RETRY, operations.PoisonFilter().fixed("default"), total=1, by="ada")
    lists = [f"message/?state={state}" for state in ("pending", "failed", "blocked", "active")]
    lists += [f"instance/?status={status}" for status in ("running", "stuck", "failed")]
    return [*every_page(rows), *(f"/admin/deadletter/{page}" for page in lists)]


@DAMAGES
def test_pages_live(admin_client: Client, pages: list[str], place: int) -> None:
    put(damage(place))

    def look(page: str) -> Callable[[], Any]:
        return lambda: admin_client.get(page)

    assert problems({page: look(page) for page in pages}) == {}


@DAMAGES
def test_commands_metrics_and_alerts_live(pages: list[str], place: int) -> None:
    record = PoisonRecord.objects.exclude(stream=None).get()
    message = Message.objects.exclude(stream=None).first()
    moved = Message.objects.get(queue__name="dead")
    again = PoisonRecord.objects.get(queue="dead")
    put(damage(place))

    assert (
        problems(
            {
                "list": lambda: command("list"),
                "list failed": lambda: command("list", "--state", "failed"),
                "list pending": lambda: command("list", "--state", "pending"),
                "show": lambda: command("show", record.pk),
                "show message": lambda: command("show", "--message", message.pk),
                "show dead": lambda: command("show", "--message", moved.pk, again.message_id),
                "stats": lambda: command("stats"),
                "queues": lambda: command("queues"),
                "instances": lambda: command("instances"),
                "instance": lambda: command("instance", "show", "order-1"),
                "alerts": lambda: command("alerts"),
                "health": lambda: command("health"),
                "limits": lambda: operations.health(
                    max_age=1, max_wait=1, max_poison=1, window=60, min_workers=1
                ),
                "groups": operations.list_groups,
                "totals": lambda: MonotonicTotals().read("default"),
                "depths": lambda: read_depths("default"),
                "alerts decided": alerts.decide,
                "alerts when due": alerts.decide_when_due,
                "alerts again": alerts.decide,
            }
        )
        == {}
    )
    assert AlertState.objects.count() == 1


@DAMAGES
def test_the_worker_lives(pages: list[str], handles: Any, place: int) -> None:
    handles("mail", lambda message: None)
    put(damage(place))
    record = PoisonRecord.objects.exclude(stream=None).get()
    moved = Message.objects.get(queue__name="dead")
    again = PoisonRecord.objects.get(queue="dead")
    good = send("mail", 3)

    assert (
        problems(
            {
                "sweep": lifecycle.sweep,
                "retry": lambda: operations.retry_poison([record.pk, again.pk]),
                "retry dead": lambda: operations.retry_dead(moved.pk),
                "drain": testing.drain,
                "sweep again": lifecycle.sweep,
                "drain again": testing.drain,
            }
        )
        == {}
    )
    assert not Message.objects.filter(pk=good.pk).exists()
