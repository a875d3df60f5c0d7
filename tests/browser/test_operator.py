"""An operator at work, in a real browser, with real workers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from deadletter import lifecycle, send, testing
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import AuditEntry, BulkJob, Message, PoisonRecord, Queue

from .rows import die, die_many

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from playwright.sync_api import Page
else:
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is missing").expect

EVERYTHING = (
    "view_message",
    "view_poisonrecord",
    "view_payload",
    "retry_poison",
    "edit_payload",
    "remove_poison",
)


def test_an_operator_repairs_a_message_and_sees_it_succeed(open_page, workers) -> None:
    record = die("sample.work", {"fail": 1_000, "order": 41})
    fold_all_groups()
    page: Page = open_page(*EVERYTHING)

    page.get_by_role("link", name="Poison records").first.click()
    page.get_by_role("link", name="Its records").click()
    page.get_by_role("link", name=f"#{record.message_id}").click()
    expect(page.get_by_text("ValueError: no address").first).to_be_visible()
    expect(page.get_by_text('"order": 41')).to_be_visible()
    page.get_by_role("link", name="Edit and retry…").click()
    page.locator("#id_payload").fill('{"fail": 0, "order": 41}')
    page.locator("#id_why").fill("the address was missing")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.get_by_role("heading", name="What changes")).to_be_visible()
    page.get_by_role("button", name="Retry with this payload").click()
    expect(page.locator(".messagelist")).to_be_visible()
    workers.drain()

    assert not Message.objects.filter(pk=record.message_id).exists()
    assert len(workers.journal("finish")) == 1
    lifecycle.sweep()
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.why, entry.succeeded) == ("retry", "the address was missing", 1)


def test_two_thousand_are_retried_by_filter_and_followed_to_the_end(open_page, workers) -> None:
    die_many(2_000)
    page: Page = open_page(*EVERYTHING)

    page.goto("/admin/deadletter/poisonrecord/records/?name=sample.work")
    page.locator("button[name=scope][value=all]", has_text="Retry…").click()
    expect(page.get_by_text("2,000 messages", exact=True)).to_be_visible()
    page.get_by_role("button", name="Retry 2,000 messages").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("progressbar")).to_be_visible()
    workers.start("--queues", "deadletter")
    expect(page.locator(".dl-progress")).to_contain_text("100 %")

    job = BulkJob.objects.get()
    assert (job.state, job.done, job.total) == ("done", 2_000, 2_000)
    assert PoisonRecord.objects.count() == 0
    assert Message.objects.filter(name="sample.work", attempts=0).count() == 2_000


def test_a_halted_stream_is_freed_by_keyboard_alone(open_page, workers) -> None:
    Queue(name="ledger", stream_policy="halt").save()
    die("sample.work", {"fail": 1_000}, queue="ledger", stream="account-7")
    for n in (2, 3):
        send("sample.work", {"n": n}, queue="ledger", stream="account-7")
    assert len(lifecycle.claim(limit=5, worker="w1", queues=["ledger"])) == 0
    page: Page = open_page(*EVERYTHING)

    page.goto("/admin/deadletter/message/")
    press(page, "Blocked and halted streams")
    expect(page.get_by_text("account-7").first).to_be_visible()
    press(page, "Remove the poison (account-7)")
    # The field for the reason has the focus; what follows is the button.
    expect(page.locator("#id_why")).to_be_focused()
    page.keyboard.type("the account was closed")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("The stream continues")
    workers.drain()

    assert Message.objects.count() == 0
    assert len(workers.journal("finish")) == 2
    assert AuditEntry.objects.get().why == "the account was closed"


def test_an_operator_without_the_right_sees_no_button_and_is_refused(open_page) -> None:
    record = die("sample.work", {"n": 1, "secret": "s3cret"})
    page: Page = open_page("view_message", "view_poisonrecord")

    page.goto(f"/admin/deadletter/poisonrecord/{record.pk}/change/")
    expect(page.get_by_text("You do not have permission to see error texts.")).to_be_visible()
    expect(page.get_by_text("no address")).to_have_count(0)
    expect(page.get_by_role("link", name="Retry…")).to_have_count(0)
    expect(page.get_by_text("You may not see payloads.")).to_have_count(2)  # headers too
    for act in ("retry", "edit", "remove"):
        refused = page.goto(f"/admin/deadletter/poisonrecord/{record.pk}/{act}/")
        assert refused is not None
        assert refused.status == 403
    assert PoisonRecord.objects.count() == 1


def test_a_message_is_hurried_and_a_queue_paused(open_page, handles) -> None:
    handles("mail", lambda message: None)
    message = send("mail")
    batch = lifecycle.claim(limit=1, worker="w1")
    lifecycle.fail(batch.token, [Failure(message.pk, error="no")])
    page: Page = open_page(*EVERYTHING, "view_queue", "pause_queue")

    page.goto("/admin/deadletter/queue/")
    page.get_by_role("row", name="default").get_by_role("link", name="1", exact=True).click()
    page.get_by_role("link", name=str(message.pk), exact=True).click()
    page.get_by_role("link", name="Retry now").click()
    page.get_by_role("button", name="Retry 1 message now").click()
    expect(page.locator(".messagelist .success")).to_contain_text("1 message is due now.")
    assert testing.drain().completed == 1

    page.goto("/admin/deadletter/queue/")
    page.get_by_role("link", name="default", exact=True).click()
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause default").click()
    expect(page.get_by_text("This queue is paused")).to_be_visible()
    assert Queue.objects.get(name="default").paused


def press(page: Page, name: str) -> None:
    """Go to a link with Tab, as somebody without a mouse does, and open it with Enter."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.textContent.replace(/\\s+/g, ' ').trim()")
        if focused == name:
            page.keyboard.press("Enter")
            return
    pytest.fail(f"the keyboard does not reach {name!r}")
