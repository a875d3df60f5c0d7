"""
Serve the admin under a theme: `THEME=unfold DATABASE_URL=sqlite:///… python -m
tests.browser.theme_site`.

A process of its own for each theme, because a theme is a choice of installed apps. First it asks
for every page there is; then it fills the tables with what people would see, and serves. It says
what came out as one line of JSON: the port, a session, the pages that failed, keys of rows.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import django
from django.apps import apps

PREPARED = "DJANGO_SETTINGS_MODULE"


def main() -> None:
    os.environ[PREPARED] = "tests.browser.theme_settings"
    django.setup()
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.management import call_command
    from django.core.servers.basehttp import run
    from django.core.wsgi import get_wsgi_application
    from django.test import Client

    call_command("migrate", verbosity=0)
    user = User.objects.create_superuser("operator", "", "secret")
    client = Client(raise_request_exception=False, headers={"host": "localhost"})
    client.force_login(user)
    asked, failed = ask_for_every_page(client)
    # A dead queue in use is protected.
    apps.get_model("deadletter", "Queue")._default_manager.update(dead_queue=None)
    for model in reversed(list(apps.get_app_config("deadletter").get_models())):
        model._default_manager.all().delete()
    call_command("migrate", verbosity=0)  # the declared queues again
    said = {
        "session": client.cookies["sessionid"].value,
        "asked": asked,
        "failed": failed,
        "rows": fill(),
    }

    def say(port: int) -> None:
        print(json.dumps({**said, "port": port}), flush=True)

    handler = StaticFilesHandler(get_wsgi_application())
    run("127.0.0.1", 0, handler, threading=True, on_bind=say)


def ask_for_every_page(client: Any) -> tuple[int, list[str]]:
    """Return how many pages there are, and those that answer with an error of the server."""
    from deadletter import clock
    from tests.admin.every_page import every_page, hostile_rows

    pages = every_page(hostile_rows(clock.now("default")))
    answers = [(page, client.get(page)) for page in pages]
    failed = [f"{page}: {answer.status_code}" for page, answer in answers if _broke(answer)]
    return len(pages), failed


def _broke(answer: Any) -> bool:
    return bool(answer.status_code >= 500)


def fill() -> dict[str, Any]:
    """Store what a site with some trouble has, and return the keys of what is looked at."""
    from deadletter import Outgoing, clock, lifecycle, operations, send, send_many, start
    from deadletter.lifecycle import Failure
    from deadletter.models import Breaker, Count, Message, PoisonRecord, Queue, WorkerProcess

    now = clock.now("default")
    ledger = Queue(name="ledger", stream_policy="halt")
    ledger.save()
    die("orders.ship", {"order": 41, "address": {"city": "Bonn"}}, "KeyError: 'street'")
    die("orders.ship", {"order": 42, "address": {"city": "Kiel"}}, "KeyError: 'street'")
    die("mail.welcome", {"to": "ada@example.org"}, "SMTPRecipientsRefused: no such address")
    die("ledger.book", {"n": 1}, "ValueError: unbalanced", queue="ledger", stream="account-7")
    for n in range(3):
        send("ledger.book", {"n": n}, queue="ledger", stream="account-7")
    send_many([Outgoing("mail.welcome", {"n": n}, stream="slow") for n in range(4)])
    batch = lifecycle.claim(limit=1, worker="w1", queues=["default"])
    lifecycle.fail(batch.token, [Failure(batch.ids[0], error="TimeoutError: no answer")])
    lifecycle.claim(limit=5, worker="w1")
    Message.objects.update(created_at=now - timedelta(minutes=4))
    start("an-order", instance="order-1", input={"sku": "A1"})
    removed = send("orders.ship")
    operations.remove(removed.pk, by="ada", why="sent twice")
    WorkerProcess.objects.create(
        name="web-3:4711", host="web-3", pid=4711, version="0.1.0", queues=["default", "mail"],
        concurrency=10, held=2, completed=18_240, failed=12, started_at=now - timedelta(hours=5),
        seen_at=now,
        running=[{"id": 17, "name": "orders.ship", "queue": "default", "seconds": 3.2}],
    )  # fmt: skip
    Breaker.objects.create(
        name="mail.welcome", failures=5, error="ConnectionRefusedError: mail is down",
        opened_at=now, until=now + timedelta(hours=1), opened_by="web-3:4711",
    )  # fmt: skip
    schedule = operations.create_schedule(
        "nightly report", message="mail.welcome", cron="0 3 * * *", time_zone="Europe/Berlin"
    )
    operations.run_schedule(schedule.name, by="ada")
    operations.hold_breaker("orders.ship", by="ada", why="the carrier asked")
    lifecycle.sweep()
    assert Count.objects.exists()
    return {
        "schedule": schedule.pk,
        "poison": PoisonRecord.objects.filter(name="orders.ship").latest("pk").pk,
        "message": Message.objects.filter(stream="slow").latest("pk").pk,
        "queue": ledger.pk,
        "entry": operations.trail(removed.pk)[0].entry_id,
    }


def die(name: str, payload: Any, error: str, **given: Any) -> None:
    from deadletter import FailureReason, lifecycle, send
    from deadletter.lifecycle import Failure

    send(name, payload, **given)
    batch = lifecycle.claim(limit=1, worker="w1")
    lifecycle.fail(
        batch.token,
        [
            Failure(
                batch.ids[0],
                error=error,
                reason=FailureReason.HANDLER_EXCEPTION,
                permanent=True,
                exception=error.partition(":")[0],
                frame=f"shop/{name.partition('.')[0]}.py:ship",
            )
        ],
    )


if __name__ == "__main__":
    main()
