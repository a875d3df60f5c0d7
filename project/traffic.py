"""The messages and instances that the demonstration sends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from django.db import transaction

from deadletter import Outgoing, OutgoingEvent, publish, publish_many, send, send_many, start

from . import tasks

NAMES = ["Ada", "Barbara", "Edsger", "Frances", "Grace", "Katherine", "Tony"]
#: How the payment provider reacts to each order; the last ones wait for approval (orders.py).
CARDS = ["garbled", "good", "flaky", "good", "expired", "flaky", "good", "good"]
REPORTS = ["sales", "stock", "returns"]
STEPS = ["reserve", "pack", "label", "hand over"]
#: What the shop tells other systems, if there is a broker (`make demo BROKER=rabbitmq`).
TOPICS = ["demo.order", "demo.customer"]


def send_opening() -> None:
    """Send one message of each kind, so that every page has content within a minute."""
    send_many([Outgoing("demo.greet", {"name": name}) for name in NAMES])
    for number in range(3):
        send("demo.flaky", {"to": f"customer-{number}"}, queue="mail")
    send("demo.busy", {"to": "partner"}, queue="mail")
    send("demo.always_fails", {"report": "monthly"}, queue="mail")
    send("demo.refuse", {"customer": 404})
    send("demo.always_fails", {"invoice": 7}, queue="payments")
    tasks.welcome.enqueue(user_id=7, name="Ada")
    tasks.build_report.enqueue("sales", pages=40)
    tasks.charge.enqueue(order=1004, card_number="4111 1111 1111 1111")
    tasks.welcome.using(delay="1h").enqueue(user_id=8)
    send("demo.nobody_handles_this", {"sent_by": "an older release"})
    for seconds in (15, 30, 45):
        send("demo.greet", {"name": f"you, {seconds} seconds later"}, delay=seconds)
    for number, card in enumerate(CARDS):
        start_order(f"{new_order()}-{number}", card=card)
    send_order("order-1001")
    send_order("order-1002")
    # Its first step fails until it is poison; the other steps wait behind it.
    send_order("order-1003", address="")


def send_order(stream: str, *, address: str = "1 Main Street") -> None:
    steps = [{"step": step} for step in STEPS]
    steps[0]["address"] = address
    send_many([Outgoing("demo.ship", step, stream=stream) for step in steps], queue="orders")


def publish_opening() -> None:
    """Publish the beginning of two orders; their events arrive in order."""
    for number in (1001, 1002):
        publish_many(
            OutgoingEvent("demo.order", {"order": number, "now": now}, key=f"order-{number}")
            for now in ("placed", "paid", "shipped")
        )
    # With RabbitMQ no queue is bound for it: it is refused, and becomes poison.
    publish("partner.order", {"order": 1001}, key="order-1001")


def publish_something() -> None:
    """Store an order and tell other systems: both, or neither."""
    number = random.randint(2000, 9999)  # noqa: S311 - a sample
    with transaction.atomic():
        send_order(f"order-{number}")
        publish(random.choice(TOPICS), {"order": number, "now": "placed"}, key=f"order-{number}")  # noqa: S311


def new_order() -> str:
    """Return an id that no other order of this year has: `send_something` runs every 3 seconds."""
    return time.strftime("shop-%m%d-%H%M%S")


def start_order(instance: str, *, card: str) -> None:
    """Start an order as an instance, which the admin lists under Instances."""
    about = {"customer": random.choice(NAMES), "total": random.randint(5, 200), "provider": card}  # noqa: S311
    start("demo.order", instance=instance, input=about, queue="orders")


def send_something() -> None:
    """Send one random message: most succeed, some fail."""
    kinds: list[Callable[[], object]] = [
        lambda: send("demo.greet", {"name": random.choice(NAMES)}),  # noqa: S311 - a sample
        lambda: send("demo.flaky", {"to": "customer"}, queue="mail"),
        lambda: send_order(f"order-{random.randint(2000, 9999)}"),  # noqa: S311
        lambda: send("demo.always_fails", {"report": "daily"}, queue="mail"),
        lambda: tasks.welcome.enqueue(user_id=random.randint(1, 999), name=random.choice(NAMES)),  # noqa: S311
        lambda: tasks.build_report.enqueue(random.choice(REPORTS), pages=random.randint(5, 60)),  # noqa: S311
        lambda: start_order(new_order(), card=random.choice(CARDS)),  # noqa: S311
    ]
    random.choices(kinds, weights=[12, 4, 3, 1, 6, 2, 4])[0]()  # noqa: S311
