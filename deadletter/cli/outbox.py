"""manage.py deadletter outbox: the brokers, what waits for them, and who publishes it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Any

from .. import clock
from ..operations import BrokerReport, list_brokers
from ..operations.brokers import COUNTED
from .args import add_common, alias
from .output import Screen
from .text import ago

HELP = "list the brokers of the outbox: available or not, what waits, relays, the last confirm"


def add(parser: argparse.ArgumentParser) -> None:
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using = alias(options)
    now = clock.now(using)
    found = list_brokers(using=using)
    if screen.as_json:
        screen.json([asdict(broker) for broker in found])
    elif found:
        _table(screen, found, now)
    else:
        screen.say("no broker: DEADLETTER['BROKERS'] is empty, and nothing waits")
    return 0 if found else 1


def _table(screen: Screen, brokers: list[BrokerReport], now: datetime) -> None:
    screen.table(
        ["broker", "is", "waiting", "held", "oldest", "relays", "lanes", "last confirm", "error"],
        [
            [
                broker.name,
                _state(broker, now),
                _number(broker.waiting),
                _number(broker.held),
                "-" if broker.oldest_at is None else ago(broker.oldest_at, now),
                broker.relays,
                broker.lanes,
                "-" if broker.confirmed_at is None else ago(broker.confirmed_at, now),
                broker.error or "-",
            ]
            for broker in brokers
        ],
    )


def _state(broker: BrokerReport, now: datetime) -> str:
    if not broker.is_configured:
        return "not in settings"
    if broker.unavailable_since is not None:
        return f"unavailable since {ago(broker.unavailable_since, now)}"
    return "available" if broker.relays else "not published"


def _number(n: int) -> str:
    return f"more than {COUNTED:,}" if n > COUNTED else f"{n:,}"
