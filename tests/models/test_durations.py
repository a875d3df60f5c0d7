"""A duration is seconds, a timedelta or text wherever it is given; nowhere is it negative."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction

from deadletter import Retry, handler, lifecycle, operations, send
from deadletter.backoff import BreakerPolicy
from deadletter.conf import get_settings, problems
from deadletter.models import Message, Queue
from deadletter.worker.registry import registry

HALF_AN_HOUR = timedelta(minutes=30)
FIELDS = (
    "backoff_base",
    "backoff_cap",
    "cooldown",
    "lease_timeout",
    "expire_timeout",
    "poison_retention",
)


@pytest.mark.parametrize("given", [1800, "1800", "30m", "0.5h", "00:30:00", HALF_AN_HOUR])
@pytest.mark.parametrize("field", FIELDS)
def test_a_queue_takes_every_form(db, field, given):
    Queue.objects.create(name="mail", **{"expire_timeout": 3600, field: given})

    assert getattr(Queue.objects.get(name="mail"), field) == HALF_AN_HOUR


@pytest.mark.parametrize(
    "given", [-30, "-30", "-30s", "-1:00:00", "1 -02:00:00", "-PT5M", timedelta(-1), "soon", ""]
)
@pytest.mark.parametrize("field", FIELDS)
def test_a_queue_takes_nothing_negative(db, field, given):
    with pytest.raises(ValidationError) as error:
        Queue.objects.create(name="mail", **{field: given})

    assert "expected a duration" in str(error.value)
    assert field.replace("_", " ") in str(error.value)
    with pytest.raises(ValidationError):
        Queue.objects.filter(name="default").update(**{field: given})


def test_an_update_of_many_queues_is_checked_as_a_save_is(db):
    with pytest.raises(ValidationError), transaction.atomic():
        Queue.objects.update(backoff_base=timedelta(seconds=-30))
    Queue.objects.update(backoff_base="1m30s")

    assert Queue.objects.get(name="default").backoff_base == timedelta(seconds=90)


def test_messages_and_leases_take_text(clock):
    message = send("mail", delay="1h30m", expires_in="2d")

    assert message.available_at == clock.now + timedelta(minutes=90)
    assert message.expires_at == clock.now + timedelta(days=2)
    send("mail")
    batch = lifecycle.claim(lease="5m")
    assert Message.objects.get(pk=batch.ids[0]).available_at == clock.now + timedelta(minutes=5)
    with pytest.raises(ValueError, match="lease: expected a duration"):
        lifecycle.claim(lease="-5m")
    assert Retry("later", after="30s").after == timedelta(seconds=30)


def test_handlers_take_text():
    try:

        @handler("durations.text", timeout="1m30s", backoff_base="5s", backoff_cap="1h")
        def handle(message): ...

        found = registry.get("durations.text")
        assert found is not None
        assert found.timeout == timedelta(seconds=90)
        assert (found.backoff_base, found.backoff_cap) == (timedelta(seconds=5), timedelta(hours=1))
    finally:
        registry.remove("durations.text")
    with pytest.raises(ValueError, match="timeout: expected a duration"):
        handler("durations.text", timeout="-1s")(lambda message: None)


def test_settings_take_text(settings):
    settings.DEADLETTER = {
        "HANDLER_TIMEOUT": "10m",
        "UNREGISTERED_BASE": "2s",
        "COUNTS_KEPT": "400d",
        "BREAKER": {"failures": 3, "window": "1m", "cooldown": "30s"},
        "ALERTS": {"rules": {"oldest_age": {"after": "5m"}}, "channels": {}, "digest": "1h"},
        "QUEUES": {"mail": {"backoff_base": "30s"}},
    }

    found = get_settings()

    assert found.handler_timeout == timedelta(minutes=10)
    assert found.unregistered_base == timedelta(seconds=2)
    assert found.breaker == BreakerPolicy(failures=3, window=60, cooldown=30)
    assert found.alerts is not None
    assert (found.alerts.digest, found.alerts.rules[0].after) == (
        timedelta(hours=1),
        timedelta(minutes=5),
    )


@pytest.mark.parametrize(
    "given",
    [
        {"HANDLER_TIMEOUT": "-10m"},
        {"UNREGISTERED_CAP": "-1:00:00"},
        {"COUNTS_KEPT": "-1"},
        {"INSTANCES_KEPT": "-1 00:00:00"},
        {"BREAKER": {"window": "-1m"}},
        {"ALERTS": {"rules": {"oldest_age": {"after": "-5m"}}, "channels": {}}},
    ],
    ids=str,
)
def test_settings_take_nothing_negative(settings, given):
    settings.DEADLETTER = given

    [problem] = problems()

    assert "expected a duration" in problem.text


def test_operators_take_text(clock):
    assert operations.purge("30d").done == 0
    operations.set_queue("default", cooldown="90s")
    assert Queue.objects.get(name="default").cooldown == timedelta(seconds=90)
    with pytest.raises(ValueError, match="older_than: expected a duration"):
        operations.purge("-30d")
