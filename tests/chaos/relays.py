"""Relays in a hurry: their times are a twelfth, so that lanes change hands while a run lasts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

#: Seconds of the lease of a lane, and of the confirms of a batch.
LANE_LEASE = 5.0
TIMEOUT = 2.0


def hurry(environment: Mapping[str, str]) -> None:
    """Shorten the times of the relays of this process, if it has a broker of the run."""
    if "CHAOS_BROKERS" not in environment:
        return
    from deadletter.models import outbox
    from deadletter.worker import relay

    lease = float(environment.get("CHAOS_LANE_LEASE", LANE_LEASE))
    relay.LEASE = outbox.RELAY_ALIVE = timedelta(seconds=lease)
    relay.MARGIN = relay.AWAY = lease / 2
    relay.SHARING = lease / 10
    relay.FIRST_DELAY, relay.LONGEST_DELAY = 0.1, 1.0


def broker_options(**transport: Any) -> dict[str, dict[str, Any]]:
    """Return the setting BROKERS: small batches, and refusals that are soon over."""
    common = {"batch": 20, "timeout": TIMEOUT, "max_attempts": 3}
    return {"default": {**common, "backoff_base": 0.2, "backoff_cap": 0.5, **transport}}
