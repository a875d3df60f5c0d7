"""Times are shown to the second and with their zone, and never as "0 minutes"."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone, translation

from deadletter.times import ago, ahead, lasting, moment

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


def test_a_time_has_seconds_and_the_zone_of_the_reader():
    with timezone.override(ZoneInfo("Europe/Berlin")):
        assert moment(NOW).endswith("14:03:05 CET")


def test_times_are_told_in_german():
    with translation.override("de"):
        assert ago(NOW - timedelta(seconds=12), NOW) == "vor 12 Sekunden"
        assert ahead(NOW + timedelta(seconds=1), NOW) == "in 1 Sekunde"
        assert lasting(NOW, NOW) == "0 Sekunden"
        assert ago(NOW, NOW) == "gerade eben"
