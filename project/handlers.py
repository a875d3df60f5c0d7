"""Sample handlers: one for each way a message can end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deadletter import Permanent, Retry, handler

from . import orders

__all__ = [
    "orders"
]  # workers import modules named `handlers`; the flow of an order is in another one

if TYPE_CHECKING:
    from deadletter.lifecycle import Claimed

logger = logging.getLogger("deadletter.demo")


@handler("demo.greet")
def greet(message: Claimed) -> None:
    """Succeeds."""
    logger.info("Hello, %s", message.payload["name"])


@handler("demo.flaky")
def flaky(message: Claimed) -> None:
    """Fails twice, then succeeds."""
    if message.attempt < 3:
        raise ConnectionError(f"the mail server hung up on attempt {message.attempt}")
    logger.info("Mail sent at attempt %s", message.attempt)


@handler("demo.busy")
def busy(message: Claimed) -> None:
    """Asks for a delay of three seconds at its first attempt, then succeeds."""
    if message.attempt == 1:
        raise Retry("the other side asked for a retry in three seconds", after=3)


@handler("demo.always_fails")
def always_fails(message: Claimed) -> None:
    """Fails as often as its queue allows, then becomes poison."""
    raise RuntimeError("this handler has a bug")


@handler("demo.refuse")
def refuse(message: Claimed) -> None:
    """Becomes poison at once: another attempt could not succeed."""
    raise Permanent(f"there is no customer {message.payload['customer']}")


@handler("demo.ship")
def ship(message: Claimed) -> None:
    """Does one step of an order; the steps are a stream, so they run in order."""
    if message.payload.get("address") == "":
        raise ValueError("the order has no address")
    logger.info("Order %s: %s", message.stream, message.payload["step"])
