"""The page of streams names blocked and halted streams and offers acts to those who may."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from deadletter import lifecycle, send
from deadletter.lifecycle import Failure
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue

from .conftest import SCRIPT, url


def here() -> str:
    return reverse("admin:deadletter_streams")


def act_url(slug: str, id: int) -> str:
    return reverse("admin:deadletter_stream_act", args=[slug, id])


@pytest.fixture
def halted(poisoned) -> PoisonRecord:
    """A stream that poison halts, with two messages behind it."""
    Queue.objects.create(name="ledger", stream_policy="halt")
    record = poisoned("book", {"n": 1}, queue="ledger", stream="account-7")
    for n in (2, 3):
        send("book", {"n": n}, queue="ledger", stream="account-7")
    assert len(lifecycle.claim(limit=5, worker="w2", queues=["ledger"])) == 0
    return record


@pytest.fixture
def waiting(db: None) -> tuple[Message, Message]:
    """A stream whose head failed and waits, with one message behind it."""
    first, second = send("first", stream="slow"), send("second", stream="slow")
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(first.pk, error="no")])
    lifecycle.claim(limit=5, worker="w")
    return first, second


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_nothing_stands_still(admin_client: Client, db) -> None:
    assert "No stream is blocked or halted." in admin_client.get(here()).content.decode()


def test_the_halted_come_first_then_the_blocked(admin_client: Client, waiting, halted) -> None:
    rows = admin_client.get(here()).context["rows"]

    assert [(row.held.stream, row.held.why, row.held.waiting) for row in rows] == [
        ("account-7", "halted", 2),
        ("slow", "waiting", 1),
    ]
    assert [[str(way.label) for way in row.ways] for row in rows] == [
        ["Retry the poison", "Remove the poison", "Release the next"],
        ["Retry the first now", "Release the next"],
    ]


def test_every_way_out_asks_first(admin_client: Client, waiting, halted, counts) -> None:
    before = counts()
    for row in admin_client.get(here()).context["rows"]:
        for way in row.ways:
            page = admin_client.get(way.url)
            assert page.status_code == 200
            assert 'id="act_form"' in page.content.decode()

    assert counts() == before
    assert AuditEntry.objects.count() == 0


def test_a_halted_stream_goes_on_after_the_retry(admin_client: Client, halted, counts) -> None:
    page = admin_client.get(act_url("retry", halted.pk)).content.decode()
    response = admin_client.post(act_url("retry", halted.pk), {"why": "fixed"}, follow=True)

    assert "2 messages wait behind it." in page
    page = url("message", "change", halted.message_id)
    assert " ".join(told(response)) == (
        f"Message {halted.message_id} (book) is back in the queue ledger. "
        "The stream continues with this message. "
        f'<a href="{page}">Look at it</a>'
    )
    assert counts() == {"pending": 1, "blocked": 2}
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.why) == ("retry", "admin", "fixed")
    assert LogEntry.objects.get().get_change_message() == "Retried. fixed"


def test_a_halted_stream_goes_on_after_the_removal(admin_client: Client, halted, counts) -> None:
    response = admin_client.post(act_url("remove", halted.pk), {"why": "never mind"}, follow=True)

    assert told(response) == [
        f"Message {halted.message_id} (book) was removed for good. The stream continues."
    ]
    assert counts() == {"pending": 1, "blocked": 1}


@pytest.mark.parametrize("slug", ["retry", "remove"])
def test_the_second_of_two_operators_is_told(admin_client: Client, halted, slug: str) -> None:
    admin_client.post(act_url("retry", halted.pk))

    response = admin_client.post(act_url(slug, halted.pk), follow=True)

    assert told(response)[-1].startswith("This poison record is gone")
    assert AuditEntry.objects.count() == 1


def test_a_refused_retry_is_told(admin_client: Client, halted, counts) -> None:
    PoisonRecord.objects.filter(pk=halted.pk).update(queue="gone")

    response = admin_client.post(act_url("retry", halted.pk), follow=True)

    assert "It was not retried: queue 'gone' does not exist" in told(response)[0]
    assert counts() == {"blocked": 2, "dead": 1}


@pytest.mark.parametrize(
    ("slug", "right"), [("retry", "remove_poison"), ("remove", "retry_poison")]
)
def test_each_way_out_needs_its_right(login, halted, slug: str, right: str) -> None:
    browser = login("view_message", right)

    assert browser.get(act_url(slug, halted.pk)).status_code == 403
    assert browser.post(act_url(slug, halted.pk)).status_code == 403
    assert PoisonRecord.objects.count() == 1
    assert act_url(slug, halted.pk) not in browser.get(here()).content.decode()


def test_streams_are_seen_with_the_right_to_see_messages(login, halted) -> None:
    browser = login("view_poisonrecord", "retry_poison", "remove_poison")

    assert browser.get(here()).status_code == 403
    assert browser.post(act_url("retry", halted.pk)).status_code == 403


def test_who_may_only_look_gets_no_buttons(login, halted) -> None:
    page = login("view_message").get(here())

    assert [row.ways for row in page.context["rows"]] == [[]]


def test_strangers_are_sent_to_the_login(client: Client, halted) -> None:
    for place in (here(), act_url("retry", halted.pk)):
        assert client.get(place).status_code == 302
        assert client.post(place).status_code == 302
    assert PoisonRecord.objects.count() == 1


def test_a_way_out_without_its_token_is_refused(admin_user, halted) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)

    assert browser.post(act_url("retry", halted.pk)).status_code == 403
    assert PoisonRecord.objects.count() == 1


def test_an_unknown_way_out_is_not_found(admin_client: Client, halted) -> None:
    assert admin_client.get(act_url("explode", halted.pk)).status_code == 404


def test_a_hostile_stream_is_shown_and_not_run(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    record = poisoned("book", queue="ledger", stream=SCRIPT, error=SCRIPT)
    send("book", queue="ledger", stream=SCRIPT)

    for page in (here(), act_url("retry", record.pk), url("message")):
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html
