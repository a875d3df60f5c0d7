"""The delivery of one notice to one channel. A failure is raised, and the queue tries again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..alert_rules import Channel
from ..conf import get_settings
from . import mail, pagerduty, slack, teams, webhook
from .current_counts import with_current_counts
from .deadline import DeliveryFailed as DeliveryFailed

#: Attempts and delays of a notice: 10 s, 20 s, 40 s … to an hour; about half a day in all.
ATTEMPTS, BASE, CAP = 20, 5, 3600
#: Seconds an attempt may take.
TIMEOUT = 120


def deliver(payload: dict[str, Any]) -> None:
    """
    Deliver the notice of one message.

    Raises: DeliveryFailed; the message is retried. Also when the channel is not in the settings:
    during a deployment some workers know a new channel and others do not.
    """
    channel = _channel(str(payload["channel"]))
    using = payload.get("using")
    notice = with_current_counts(payload["notice"], using=using)
    deliveries: dict[str, Callable[[Channel, dict[str, Any]], None]] = {
        "email": mail.deliver,
        "webhook": webhook.deliver,
        "slack": slack.deliver,
        "teams": teams.deliver,
        "pagerduty": partial(pagerduty.deliver, using=using),
    }
    try:
        deliveries[channel.kind](channel, notice)
    except DeliveryFailed:
        raise
    except Exception as error:  # noqa: BLE001 - reported to the queue, which tries again
        # The class only: the text may quote an address that contains a secret.
        raise DeliveryFailed(channel.name, mail.reason(error)) from None


def _channel(name: str) -> Channel:
    policy = get_settings().alerts
    channel = policy.channel(name) if policy is not None else None
    if channel is None:
        raise DeliveryFailed(
            name,
            'is not in DEADLETTER["ALERTS"]["channels"] of this worker; restart it, or remove'
            " this message",
        )
    return channel
