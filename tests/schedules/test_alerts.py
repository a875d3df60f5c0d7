"""Alerts: a schedule that cannot fire, and schedules that no worker fires."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import operations
from deadletter.alerts import decide
from deadletter.models import Alert, Queue, Schedule

from .conftest import NOON

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def rules(settings) -> None:
    settings.DEADLETTER = {
        **settings.DEADLETTER,
        "ALERTS": {
            "rules": {"schedule_failed": True, "schedule_overdue": {"after": "5m"}},
            "channels": {},
            "recover_after": 60,
        },
    }


def test_a_schedule_that_cannot_fire_is_one_alert_until_it_fires(make, fire_at, clock):
    Queue.objects.create(name="gone")
    make(queue="gone")
    Queue.objects.filter(name="gone").delete()
    fire_at(NOON + HOUR)

    assert decide().raised == ["schedule_failed:hourly"]
    assert "there is no queue 'gone'" in Alert.objects.get().error

    operations.set_schedule("hourly", queue="default")
    clock.advance(61)
    assert decide().recovered == ["schedule_failed:hourly"]


def test_schedules_that_no_worker_fires_are_one_alert(make, fire_at, clock):
    make("a")
    make("b")
    clock.set(NOON + HOUR + timedelta(minutes=5))
    assert decide().raised == []
    clock.advance(1)

    assert decide().raised == ["schedule_overdue:"]
    alert = Alert.objects.get()
    assert (alert.count, alert.since) == (2, NOON + HOUR)

    fire_at(clock.now)
    clock.advance(61)
    assert decide().recovered == ["schedule_overdue:"]


def test_a_paused_schedule_is_neither_late_nor_failing(make, fire_at, clock):
    Queue.objects.create(name="gone")
    make(queue="gone")
    Queue.objects.filter(name="gone").delete()
    fire_at(NOON + HOUR)
    operations.pause_schedule("hourly")
    clock.advance(3_600)

    assert Schedule.objects.failing().exists()
    assert decide().raised == []
