"""The settings of a relay: the broker that the harness has started, with counted confirms."""

from __future__ import annotations

import os

from .settings import *  # noqa: F403

_kind = os.environ["BENCH_BROKER"]

DEADLETTER = {
    "BROKERS": {
        "default": {
            "url": os.environ["BENCH_BROKER_URL"],
            "transport": f"benchmarks.transports.{'Redis' if _kind == 'redis' else 'RabbitMQ'}",
        }
    }
}
