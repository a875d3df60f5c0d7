"""The page of streams names blocked and halted streams and offers acts to those who may."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from django.utils.http import urlencode

from deadletter import lifecycle, send
from deadletter.admin import streams
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
        ["Retry the poison", "Edit and retry", "Remove the poison", "Release the next"],
        ["Retry the first now", "Release the next"],
    ]


def test_every_way_out_asks_first(admin_client: Client, waiting, halted, counts) -> None:
    before = counts()
    for row in admin_client.get(here()).context["rows"]:
        for way in row.ways:
            page = admin_client.get(way.url)
            assert page.status_code == 200
            assert re.search('id="act_form"|name="payload"', page.content.decode())

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

    pages = (here(), stream_page("ledger", SCRIPT), act_url("retry", record.pk), url("message"))
    for page in pages:
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


def stream_page(queue: str, name: str) -> str:
    return f"{reverse('admin:deadletter_stream')}?{urlencode({'queue': queue, 'name': name})}"


def test_each_stream_shows_the_error_of_what_holds_it(admin_client: Client, waiting, halted):
    rows = admin_client.get(here()).context["rows"]

    assert [row.error for row in rows] == ["RuntimeError: no such customer", "no"]


def test_error_texts_need_the_right_to_see_payloads(login, waiting, halted) -> None:
    browser = login("view_message")

    for page in (here(), stream_page("ledger", "account-7"), stream_page("default", "slow")):
        html = browser.get(page).content.decode()
        assert "no such customer" not in html
    assert "RuntimeError" in browser.get(here()).content.decode()


def test_the_halted_and_the_blocked_have_a_tab_each(admin_client: Client, waiting, halted) -> None:
    def streams(query: str) -> list[str]:
        return [row.held.stream for row in admin_client.get(here() + query).context["rows"]]

    assert streams("?only=halted") == ["account-7"]
    assert streams("?only=blocked") == ["slow"]
    assert streams("?only=nonsense") == streams("") == ["account-7", "slow"]


@pytest.mark.parametrize("missing", ["view_poisonrecord", "view_payload", "edit_payload"])
def test_edit_and_retry_needs_all_of_its_rights(login, halted, missing: str) -> None:
    rights = {"view_message", "retry_poison", "view_poisonrecord", "view_payload", "edit_payload"}

    html = login(*rights - {missing}).get(here()).content.decode()

    assert url("poisonrecord", "edit", halted.pk) not in html


def test_a_stream_shows_its_messages_in_order_the_head_first(
    admin_client: Client, waiting, halted
) -> None:
    halted_page = admin_client.get(stream_page("ledger", "account-7"))
    slow_page = admin_client.get(stream_page("default", "slow"))

    found = halted_page.context["lines"]
    assert 'class="messagelist"' not in halted_page.content.decode()
    assert [(one.kind, one.error) for one in found] == [
        ("halted", "RuntimeError: no such customer"),
        ("blocked", ""),
        ("blocked", ""),
    ]
    assert [one.id for one in found] == sorted(one.id for one in found)
    assert found[0].url == url("poisonrecord", "change", halted.pk)
    assert [way.press for way in halted_page.context["row"].ways] == ["r", "e", "", ""]
    assert [(one.id, one.kind) for one in slow_page.context["lines"]] == [
        (waiting[0].pk, "failed"),
        (waiting[1].pk, "blocked"),
    ]


def test_the_list_leads_to_the_page_of_each_stream(admin_client: Client, waiting, halted) -> None:
    html = admin_client.get(here()).content.decode()

    for queue, name in (("ledger", "account-7"), ("default", "slow")):
        assert f'href="{escape(stream_page(queue, name))}"' in html


def test_a_stream_that_nothing_holds_says_so(admin_client: Client, db) -> None:
    send("mail", stream="free")

    page = admin_client.get(stream_page("default", "free"))

    assert "Nothing holds this stream." in page.content.decode()
    assert len(page.context["lines"]) == 1


def test_a_long_stream_is_cut_and_says_where_the_rest_is(
    admin_client: Client, halted, monkeypatch
) -> None:
    monkeypatch.setattr(streams, "FOLLOWERS", 2)

    page = admin_client.get(stream_page("ledger", "account-7"))

    assert (len(page.context["lines"]), page.context["more"]) == (2, True)
    assert "All messages of this stream" in page.content.decode()


def test_no_queue_or_no_name_is_no_stream(admin_client: Client, halted) -> None:
    for queue, name in (("gone", "account-7"), ("ledger", "\x00"), ("\x00", "account-7")):
        assert admin_client.get(stream_page(queue, name)).status_code == 404
    for queue, name in (("", "account-7"), ("ledger", "")):
        assert admin_client.get(stream_page(queue, name)).url == here()


def test_a_stream_is_seen_with_the_right_to_see_messages(login, halted) -> None:
    assert login("view_poisonrecord").get(stream_page("ledger", "account-7")).status_code == 403
