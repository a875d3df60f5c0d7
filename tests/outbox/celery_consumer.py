"""
A Celery worker that reads events with deadletter's inbox: `celery -A tests.outbox.celery_consumer`.

DIE_AT=handling|handled, DIE_ID: its process kills itself inside the transaction of this event, or
behind it and before the acknowledgement.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from celery import Celery, bootsteps  # noqa: E402
from django.db import close_old_connections  # noqa: E402
from kombu import Consumer, Queue  # noqa: E402

from deadletter import inbox  # noqa: E402
from tests.sample.journal import write  # noqa: E402
from tests.sample.models import Effect  # noqa: E402

QUEUE = "celery-billing"

app = Celery("billing", broker=os.environ["BROKER_URL"])


class Events(bootsteps.ConsumerStep):
    """Celery's way to read messages that are no tasks of its own."""

    def get_consumers(self, channel: Any) -> list[Consumer]:
        queue = Queue(QUEUE, no_declare=True)
        return [Consumer(channel, [queue], callbacks=[self.receive], prefetch_count=10)]

    def receive(self, data: Any, message: Any) -> None:
        close_old_connections()
        id = message.headers["cloudEvents:id"]
        redelivered = bool(message.delivery_info["redelivered"])
        with inbox("billing", id) as is_new:
            write("received", id=int(id), redelivered=redelivered, is_new=is_new)
            if is_new:
                Effect.objects.create(message=int(id), note=str(data["order"]))
            die_at("handling", id)
        die_at("handled", id)
        message.ack()


app.steps["consumer"].add(Events)


def die_at(place: str, id: str) -> None:
    if os.environ.get("DIE_AT") == place and os.environ.get("DIE_ID") == id:
        os.kill(os.getpid(), signal.SIGKILL)
