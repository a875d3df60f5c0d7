"""A Celery worker consumes through the inbox: a real worker on a real RabbitMQ, killed and not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from deadletter import OutgoingEvent, publish_many
from deadletter.models import InboxMessage
from tests.patience import PATIENCE, wait_until
from tests.processes import database_url
from tests.sample.journal import DIRECTORY
from tests.sample.models import Effect

pytest.importorskip("celery", reason="Celery is not installed: pip install -r requirements-dev.txt")

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

TOPIC = "billing.ordered"
QUEUE = "celery-billing"
COUNT = 30


@pytest.fixture
def ids(rabbitmq_server, settings, new_relay) -> list[int]:
    """Publish events; a queue holds them."""
    rabbitmq_server.ensure_running()
    with rabbitmq_server.connection() as connection:
        connection.channel().queue_delete(QUEUE)
    declare = {"queues": {QUEUE: [TOPIC]}}
    settings.DEADLETTER = {"BROKERS": {"default": {"url": rabbitmq_server.url, "declare": declare}}}
    ids = publish_many([OutgoingEvent(TOPIC, {"order": n}, "one") for n in range(COUNT)])
    new_relay().turn()
    return ids


@pytest.fixture
def start(rabbitmq_server, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Give a function that starts a worker of Celery."""
    workers: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "celery.txt"

    def run(**environment: str) -> subprocess.Popen[bytes]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with log.open("ab") as output:
            workers.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "celery", "-A", "tests.outbox.celery_consumer"),
                        *("worker", "--pool", "solo", "--loglevel", "INFO", *quiet),
                    ],
                    cwd=django_settings.BASE_DIR,
                    env={
                        **os.environ,
                        "BROKER_URL": rabbitmq_server.url,
                        "DATABASE_URL": database_url(),
                        "DJANGO_SETTINGS_MODULE": "tests.settings",
                        DIRECTORY: str(tmp_path),
                        **environment,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            )
        return workers[-1]

    yield run
    for worker in workers:
        worker.kill()
        worker.wait()
    print(log.read_text() if log.exists() else "")  # shown by pytest on failure


def received(directory: Path) -> list[dict[str, Any]]:
    journal = directory / "journal"
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def wait_until_acknowledged(server, worker: subprocess.Popen[bytes]) -> None:
    """Wait until the last event is handled, then end the worker, which acknowledges it first."""
    wait_until(lambda: worker.poll() is not None or Effect.objects.count() == COUNT)
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    with server.connection() as connection:
        assert connection.channel().basic_get(QUEUE) is None


def test_a_celery_worker_handles_each_event(ids, start, rabbitmq_server, tmp_path):
    worker = start()

    wait_until_acknowledged(rabbitmq_server, worker)

    effects = [(effect.message, effect.note) for effect in Effect.objects.order_by("pk")]
    assert effects == [(id, str(n)) for n, id in enumerate(ids)]
    assert InboxMessage.objects.filter(consumer="billing").count() == COUNT
    assert all(line["is_new"] for line in received(tmp_path))


@pytest.mark.parametrize("place", ["handling", "handled"])
def test_what_a_killed_celery_worker_gets_again_is_handled_once(
    ids, start, rabbitmq_server, tmp_path, place
):
    died = ids[10]
    worker = start(DIE_AT=place, DIE_ID=str(died))
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert Effect.objects.filter(message=died).count() == (1 if place == "handled" else 0)

    worker = start()
    wait_until_acknowledged(rabbitmq_server, worker)

    assert sorted(Effect.objects.values_list("message", flat=True)) == ids
    again = [line for line in received(tmp_path) if line["id"] == died]
    assert [line["redelivered"] for line in again] == [False, True]
    assert [line["is_new"] for line in again] == [True, place == "handling"]
