"""What forked processes do. Imported once by the process they are forked from."""

from __future__ import annotations

import json
import os
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
django.setup()

from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections, transaction  # noqa: E402

from deadletter import (  # noqa: E402
    Outgoing,
    OutgoingEvent,
    operations,
    publish,
    publish_many,
    send,
    send_many,
)
from deadletter.management.commands import run_worker as _imported  # noqa: E402, F401
from deadletter.worker.registry import discover  # noqa: E402
from tests.sample.journal import write  # noqa: E402

from .crashes import arm  # noqa: E402
from .relays import hurry  # noqa: E402

discover()


def _prepare() -> None:
    """Look at the database of the test, and die where it says."""
    connections.settings["default"]["NAME"] = os.environ["STAGE_DATABASE"]
    if "CHAOS_BROKERS" in os.environ:
        brokers = json.loads(os.environ["CHAOS_BROKERS"])
        settings.DEADLETTER = {**settings.DEADLETTER, "BROKERS": brokers}
        hurry(os.environ)
    arm(os.environ)


def worker(*arguments: str) -> None:
    _prepare()
    call_command("run_worker", *arguments)


def sender(tags: list[str], many: bool) -> None:
    """Send in one transaction, and write down what is known."""
    _prepare()
    write("attempted", tags=tags)
    with transaction.atomic():
        if many:
            ids = send_many([Outgoing("chaos.work", {"tag": tag}) for tag in tags])
        else:
            ids = [send("chaos.work", {"tag": tag}).pk for tag in tags]
    write("acked", tags=tags, ids=ids)


def publisher(offered: list[dict[str, Any]], many: bool) -> None:
    """Publish in one transaction, and write down what is known."""
    _prepare()
    tags = [event["payload"]["tag"] for event in offered]
    told = [[event["payload"]["tag"], event["key"], event["topic"]] for event in offered]
    write("attempted", tags=[], streams=[], events=told)
    with transaction.atomic():
        if many:
            ids = publish_many(OutgoingEvent(**event) for event in offered)
        else:
            ids = [publish(**event).pk for event in offered]
    write("acked", tags=[], ids=[], events=dict(zip(tags, ids, strict=True)))


def operator(verb: str, ids: list[int]) -> None:
    _prepare()
    act: Any = {"retry": operations.retry_poison, "remove": operations.remove_poison}[verb]
    act(ids, by="operator")


ACTS: dict[str, Any] = {
    "worker": worker,
    "sender": sender,
    "publisher": publisher,
    "operator": operator,
}
