"""deadletter outbox: pause, resume, published messages, publish again."""

from __future__ import annotations

import pytest

from deadletter.models import AuditEntry, OutboxMessage, OutboxPause, PublishedMessage
from tests.outbox.memory_transport import PATH


@pytest.fixture(autouse=True)
def broker(settings) -> None:
    brokers = {"default": {"transport": PATH}}
    settings.DEADLETTER = {**settings.DEADLETTER, "BROKERS": brokers}


@pytest.fixture
def published(clock) -> list[int]:
    """Three messages of a topic and one of another, a minute apart."""
    for n in range(1, 5):
        PublishedMessage.objects.create(
            id=n,
            broker="default",
            topic="mail" if n == 4 else "orders",
            key="a" if n == 1 else None,
            payload={"n": n, "password": "secret"},
            created_at=clock.now,
            published_at=clock.now,
        )
        clock.advance(60)
    return [1, 2, 3, 4]


def test_topics_and_brokers_are_paused_and_resumed(cli):
    assert cli("outbox", "pause", "mail", "news.*", "--by", "ann", "--why", "x").code == 0
    assert cli("outbox", "pause", "--all").code == 0
    assert sorted(OutboxPause.objects.values_list("topic", flat=True)) == ["", "mail", "news.*"]

    listed = cli("outbox")
    assert "paused" in listed.lines[1]
    again = cli("outbox", "pause", "mail", "--format", "json")
    assert again.json["changed"] == []
    assert cli("outbox", "resume", "mail", "news.*").code == 0
    assert cli("outbox", "resume", "--all").code == 0

    assert not OutboxPause.objects.exists()
    entry = AuditEntry.objects.order_by("pk").first()
    assert (entry.act, entry.by, entry.why) == ("pause_outbox", "ann", "x")


def test_a_dry_run_pauses_nothing(cli):
    assert "would pause topic mail" in cli("outbox", "pause", "mail", "--dry-run").err

    assert not OutboxPause.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause",),
        ("pause", "mail", "--all"),
        ("pause", "two words"),
        ("pause", "mail", "--broker", "gone"),
        ("list", "mail"),
        ("publish-again",),
        ("publish-again", "x"),
        ("publish-again", "1", "--topic", "mail"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(cli, arguments):
    assert cli("outbox", *arguments).code == 2


def test_published_messages_are_listed(cli, published):
    assert cli("outbox", "published").column("id") == ["4", "3", "2", "1"]
    assert cli("outbox", "published", "--topic", "orders", "--limit", 2).column("id") == ["3", "2"]
    (found,) = cli("outbox", "published", "--key", "a", "--format", "json").json
    assert found["payload"]["password"] != "secret"
    assert cli("outbox", "published", "--topic", "none").code == 1


def test_messages_are_published_again_by_id_and_by_topic_and_time(cli, published):
    assert cli("outbox", "publish-again", 1, 9, "--yes").code == 0
    assert cli("outbox", "publish-again", "--topic", "orders", "--since", "3m", "--yes").code == 0

    payloads = [row.payload["n"] for row in OutboxMessage.objects.order_by("id")]
    assert payloads == [1, 2, 3]
    entries = AuditEntry.objects.order_by("pk").values_list("act", "done", "missing")
    assert list(entries) == [("publish_again", 1, 1), ("publish_again", 2, 0)]


def test_nothing_is_published_again_without_a_yes(cli, published):
    assert cli("outbox", "publish-again", "--topic", "orders").code == 2
    assert cli("outbox", "publish-again", "--topic", "orders", "--dry-run").code == 0
    assert cli("outbox", "publish-again", 9, "--yes").code == 1

    assert not OutboxMessage.objects.exists()
