"""Times are shown to the second and with their zone, and never as "0 minutes"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone, translation

from deadletter import operations
from deadletter.admin.history import show_duration
from deadletter.models import Alert, AuditEntry, WorkerProcess
from deadletter.times import ago, ahead, lasting, moment

from .conftest import url

NOW = datetime(2026, 11, 17, 13, 3, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (0, "just now"),
        (0.9, "just now"),
        (1, "1 second ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (3 * 3600 + 300, "3 hours, 5 minutes ago"),
    ],
)
def test_how_long_ago(seconds, text):
    assert ago(NOW - timedelta(seconds=seconds), NOW).replace("\xa0", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-60, "now"), (0, "now"), (1, "in 1 second"), (42, "in 42 seconds"), (120, "in 2 minutes")],
)
def test_how_far_ahead(seconds, text):
    assert ahead(NOW + timedelta(seconds=seconds), NOW).replace("\xa0", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "under 1 ms"),
        (0.0061, "0.0061 s"),
        (99.7, "99.7 s"),
        (99.99, "100 s"),
        (720, "12 min"),
    ],
)
def test_how_long_an_attempt_took(seconds, text):
    assert show_duration(seconds) == text


def test_a_time_has_seconds_and_the_zone_of_the_reader():
    with timezone.override(ZoneInfo("Europe/Berlin")):
        assert moment(NOW).endswith("14:03:05 CET")


def test_times_are_told_in_german():
    with translation.override("de"):
        assert ago(NOW - timedelta(seconds=12), NOW) == "vor 12 Sekunden"
        assert ahead(NOW + timedelta(seconds=1), NOW) == "in 1 Sekunde"
        assert lasting(NOW, NOW) == "0 Sekunden"
        assert ago(NOW, NOW) == "gerade eben"


@pytest.mark.parametrize("page", ["list", "one"])
def test_the_trail_the_alerts_and_the_workers_tell_times_with_seconds_and_zone(
    admin_client, clock, page
):
    clock.set(datetime(2026, 11, 17, 3, 3, 5, tzinfo=UTC))
    operations.pause("default", by="ada")
    alert = Alert.objects.create(
        key="poison_depth:", rule="poison_depth", since=clock.now, opened_at=clock.now, count=5056,
        last_at=clock.now,
    )  # fmt: skip
    worker = WorkerProcess.objects.create(
        name="w1", host="here", pid=1, version="1", queues=["default"], concurrency=8,
        started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip
    for row in (AuditEntry.objects.get(), alert, worker):
        name = row._meta.model_name
        address = url(name) if page == "list" else url(name, "change", row.pk)
        html = admin_client.get(address).content.decode()
        assert "a.m." not in html, name
        if page == "one" or name != "workerprocess":
            assert "Nov. 17, 2026, 03:03:05 UTC" in html, name
        if name == "alert":
            assert "5,056" in html
