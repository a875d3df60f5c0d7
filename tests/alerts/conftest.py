"""Rules for one test, a decision at the turned clock, and what was told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deadletter import alerts
from deadletter.alerts.notice import NAME
from deadletter.models import Alert, Message

SECRET = "a secret of the tests, long enough"


@pytest.fixture
def rules(settings: Any) -> Callable[..., None]:
    """Switch alerts on: `rules(new_group=True, digest=60)`; one mail channel unless told."""

    def switch_on(*, channels: Any = None, **given: Any) -> None:
        options = {"interval", "digest", "recover_after", "remind", "base_url", "errors"}
        settings.DEADLETTER = {
            **settings.DEADLETTER,
            "ALERTS": {
                "rules": {key: value for key, value in given.items() if key not in options},
                "channels": {"ops": {"type": "email", "to": ["ops@example.org"]}}
                if channels is None
                else channels,
                **{key: value for key, value in given.items() if key in options},
            },
        }

    return switch_on


@pytest.fixture
def decide(clock: Any) -> Callable[..., alerts.Decision]:
    """Turn the clock and decide."""

    def at_once(seconds: float = 15) -> alerts.Decision:
        clock.advance(seconds)
        decision = alerts.decide()
        assert decision is not None
        return decision

    return at_once


def notices() -> list[dict[str, Any]]:
    """Return the notices that were sent, the oldest first, whichever channel they go to."""
    found = {}
    for message in Message.objects.filter(name=NAME).order_by("id"):
        found[message.payload["notice"]["id"]] = message.payload["notice"]
    return list(found.values())


def told() -> list[list[tuple[str, str]]]:
    """Return event and key of each alert, notice by notice."""
    return [[(a["event"], a["key"]) for a in notice["alerts"]] for notice in notices()]


def open_alerts() -> list[str]:
    return sorted(Alert.objects.filter(closed_at=None).values_list("key", flat=True))
