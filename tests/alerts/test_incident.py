"""
An incident, with real workers, a real SMTP server and a real HTTP server.

The handler begins to fail; the alert arrives once at both, repeats as a digest, and its end
follows. The web server fails at first: its notice is tried again, and nothing is told about that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadletter import Outgoing, send, send_many
from deadletter.models import Alert, AlertState, Message, PoisonRecord, Queue
from tests.processes import Workers, database_url, wait_until, worker_processes
from tests.sample.journal import DIRECTORY

from .conftest import SECRET
from .servers import Mailbox, Receiver, http_server, smtp_server
from .test_delivery import verify

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def servers() -> Iterator[tuple[Mailbox, Receiver]]:
    with smtp_server() as mailbox, http_server() as receiver:
        yield mailbox, receiver


@pytest.fixture
def workers(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workers]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    with worker_processes(tmp_path, database_url()) as started:
        yield started


def environment(servers: tuple[Mailbox, Receiver], **policy: object) -> dict[str, str]:
    mailbox, receiver = servers
    alerts = {
        "rules": {"new_group": True},
        "channels": {
            "ops": {"type": "email", "to": ["ops@example.org"]},
            "hook": {"type": "webhook", "url": receiver.url, "secret": SECRET},
        },
        "interval": 1,
        "base_url": "https://shop.example.org",
        **policy,
    }
    return {
        "DJANGO_SETTINGS_MODULE": "tests.alerts.site",
        "TEST_ALERTS": json.dumps(alerts),
        "TEST_SMTP_PORT": str(mailbox.port),
    }


def events(receiver: Receiver) -> list[tuple[str, int]]:
    """What arrived for good: event and count of every alert, notice by notice."""
    return [(a["event"], a["count"]) for n in receiver.accepted() for a in n["alerts"]]


def test_an_incident_from_the_first_death_to_its_end(workers: Workers, servers):
    mailbox, receiver = servers
    receiver.answers = [500]
    Queue.objects.filter(name="default").update(max_attempts=0)
    started = [
        workers.start("--poll", 0.1, **environment(servers, digest=5, recover_after=12))
        for _ in range(2)
    ]
    for worker in started:
        worker.wait_ready()
    wait_until(AlertState.objects.exists, why=started[0].text)

    send("sample.work", {"fail": 1_000})
    wait_until(lambda: mailbox.mails, why=started[0].text)
    # More of the same must not be told at once.
    send_many([Outgoing("sample.work", {"fail": 1_000}) for _ in range(30)])
    wait_until(lambda: PoisonRecord.objects.count() == 31, why=started[0].text)
    # The end comes 12 s after the last death; the web server's retry, 10 s after its failure.
    over = Alert.objects.filter(settled_at__isnull=False)
    wait_until(over.exists, why=started[0].text)
    wait_until(lambda: not Message.objects.exists(), why=started[0].text)
    assert [worker.stop() for worker in started] == [0, 0]

    subjects = [mail["Subject"] for mail in mailbox.mails]
    words = [subject.split(": ")[1] for subject in subjects]
    assert (words[0], set(words[1:-1]), words[-1]) == (
        "new",
        {"continues"},
        "quiet, 31 still dead",
    ), subjects
    text = mailbox.mails[0].get_content()
    assert "  a sample error:" in text
    assert "    | RuntimeError: as asked, attempt 1" in text
    assert "  https://shop.example.org/admin/deadletter/poisonrecord/groups/" in text
    assert {address for to in mailbox.recipients for address in to} == {"ops@example.org"}

    assert all(verify(request) for request in receiver.requests)
    assert [request.headers["answer"] for request in receiver.requests].count("500") == 1
    ids = [notice["id"] for notice in receiver.accepted()]
    assert len(set(ids)) == len(ids) == len(mailbox.mails)
    # Its first attempt failed: the second, 10 s later, has the numbers of then.
    assert events(receiver).count(("raised", 31)) == 1
    assert [event for event, _ in events(receiver)].count("raised") == 1
    assert events(receiver).count(("recovered", 31)) == 1
    assert ("continues", 31) in events(receiver)

    # The failure of the web server was nobody's alert.
    [alert] = Alert.objects.all()
    assert alert.rule == "new_group"
    assert alert.settled_at is not None


def test_a_worker_killed_after_the_decision_loses_no_notice(workers: Workers, servers):
    """The decision is committed; the process dies before anything is delivered."""
    mailbox, receiver = servers
    Queue.objects.filter(name="default").update(max_attempts=0)
    # It does not serve the own queue, so it decides and delivers nothing.
    first = workers.start("--poll", 0.1, "--queues", "default", **environment(servers))
    wait_until(AlertState.objects.exists, why=first.text)
    send("sample.work", {"fail": 1_000})
    wait_until(lambda: Message.objects.filter(name="deadletter.alert").count() == 2, why=first.text)
    first.close()
    assert (mailbox.mails, receiver.requests) == ([], [])

    second = workers.start("--poll", 0.1, **environment(servers))
    wait_until(lambda: mailbox.mails and receiver.requests, why=second.text)
    wait_until(lambda: not Message.objects.exists(), why=second.text)
    assert second.stop() == 0

    assert len(mailbox.mails) == len(receiver.requests) == 1
    assert mailbox.mails[0]["Message-ID"].startswith(f"<{receiver.accepted()[0]['id']}@")
