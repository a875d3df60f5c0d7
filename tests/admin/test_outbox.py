"""The pages of the outbox: pause and resume, published messages, and publishing them again."""

from __future__ import annotations

import pytest
from django.test import Client

from deadletter.models import (
    AuditEntry,
    BrokerStatus,
    OutboxMessage,
    OutboxPause,
    PublishedMessage,
)
from tests.outbox.memory_transport import PATH

pytestmark = pytest.mark.django_db

BROKERS = "/admin/deadletter/brokerstatus"
ARCHIVE = "/admin/deadletter/publishedmessage"


@pytest.fixture(autouse=True)
def broker(db, settings) -> None:
    settings.DEADLETTER = {
        **settings.DEADLETTER,
        "BROKERS": {"default": {"transport": PATH}},
        "OUTBOX_KEPT": None,
    }
    BrokerStatus.objects.create(name="default")


@pytest.fixture
def published(clock) -> list[int]:
    for n in range(1, 4):
        PublishedMessage.objects.create(
            id=n,
            broker="default",
            topic="orders",
            key="a",
            payload={"n": n, "password": "hunter2"},
            created_at=clock.now,
            published_at=clock.now,
        )
        clock.advance(60)
    return [1, 2, 3]


def topics() -> list[str]:
    return list(OutboxPause.objects.order_by("topic").values_list("topic", flat=True))


def test_a_topic_is_paused_and_resumed_on_the_page_of_its_broker(admin_client: Client):
    page = admin_client.get(f"{BROKERS}/default/change/").content.decode()
    assert f"{BROKERS}/default/pause/" in page
    assert topics() == []

    admin_client.post(f"{BROKERS}/default/pause/", {"topic": "mail.*", "why": "they asked"})

    assert topics() == ["mail.*"]
    page = admin_client.get(f"{BROKERS}/default/change/").content.decode()
    assert "mail.*" in page
    assert "they asked" in page
    admin_client.post(f"{BROKERS}/default/resume/", {"topic": "mail.*", "why": ""})
    assert topics() == []
    acts = AuditEntry.objects.order_by("pk").values_list("act", "by", "why")
    assert list(acts) == [("pause_outbox", "admin", "they asked"), ("resume_outbox", "admin", "")]


def test_an_empty_topic_pauses_the_broker(admin_client: Client):
    admin_client.post(f"{BROKERS}/default/pause/", {"topic": "", "why": ""})

    assert topics() == [""]
    assert (
        "This broker is paused" in admin_client.get(f"{BROKERS}/default/change/").content.decode()
    )


def test_what_is_no_topic_is_asked_again(admin_client: Client):
    answer = admin_client.post(f"{BROKERS}/default/pause/", {"topic": "two words", "why": ""})

    assert answer.status_code == 200
    assert topics() == []


def test_a_selection_is_published_again(admin_client: Client, published):
    act = admin_client.post(
        f"{ARCHIVE}/", {"action": "publish_selected_again", "_selected_action": ["1", "3"]}
    )
    assert act["Location"] == f"{ARCHIVE}/publish-again/?ids=1%2C3"
    assert OutboxMessage.objects.count() == 0
    assert "Publish 2 messages again" in admin_client.get(act["Location"]).content.decode()

    admin_client.post(f"{ARCHIVE}/publish-again/", {"ids": "1,3", "why": "lost"})

    rows = OutboxMessage.objects.order_by("id")
    assert [row.payload["n"] for row in rows] == [1, 3]
    assert [row.headers["original-id"] for row in rows] == ["1", "3"]
    (entry,) = AuditEntry.objects.all()
    assert (entry.act, entry.by, entry.why, entry.done) == ("publish_again", "admin", "lost", 2)


def test_a_topic_is_published_again_up_to_a_number(admin_client: Client, published, monkeypatch):
    monkeypatch.setattr("deadletter.admin.archive.AT_ONCE", 2)
    page = f"{ARCHIVE}/publish-topic-again/"
    answer = admin_client.post(page, {"topic": "orders", "why": ""})
    assert "More than 2 messages" in answer.content.decode()
    assert OutboxMessage.objects.count() == 0
    since = PublishedMessage.objects.get(pk=2).published_at.strftime("%Y-%m-%d %H:%M:%S")

    admin_client.post(page, {"topic": "orders", "since": since, "why": ""})

    assert [row.payload["n"] for row in OutboxMessage.objects.order_by("id")] == [2, 3]


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        (f"{BROKERS}/default/pause/", {"topic": "mail"}),
        (f"{BROKERS}/default/resume/", {"topic": "mail"}),
        (f"{ARCHIVE}/publish-again/", {"ids": "1"}),
        (f"{ARCHIVE}/publish-topic-again/", {"topic": "orders"}),
    ],
)
def test_who_may_only_look_may_not_act(login, published, page, answer):
    OutboxPause.objects.create(broker="default", topic="mail", paused_at="2026-01-01T00:00Z")
    browser = login("view_brokerstatus", "view_publishedmessage")

    assert browser.get(page).status_code == browser.post(page, answer).status_code == 403

    assert topics() == ["mail"]
    assert OutboxMessage.objects.count() == 0
    assert page not in browser.get(f"{BROKERS}/default/change/").content.decode()


def test_payloads_are_shown_with_the_permission_only_and_redacted(
    admin_client: Client, login, published
):
    page = f"{ARCHIVE}/1/change/"

    assert "hunter2" not in admin_client.get(page).content.decode()
    assert "[redacted]" in admin_client.get(page).content.decode()
    assert "[redacted]" not in login("view_publishedmessage").get(page).content.decode()
