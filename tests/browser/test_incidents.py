"""
Incidents at night, in a real browser, with the clicks counted from the login.

Each asks what a person on call asks: what is wrong, why, since when, in which release, who is hit,
and what is to be done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from deadletter import FailureReason, Outgoing, lifecycle, send, send_many
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    ApplicationRelease,
    FailureGroup,
    GroupEvent,
    Message,
    PoisonRecord,
    Queue,
    WorkerProcess,
)
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.process

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
else:
    expect = pytest.importorskip("playwright.sync_api", reason="playwright is missing").expect

OPERATOR = (
    "view_message",
    "view_poisonrecord",
    "view_failuregroup",
    "view_workerprocess",
    "view_alert",
    "view_payload",
    "retry_poison",
    "edit_payload",
    "remove_poison",
    "triage_group",
    "note_group",
)


class Hand:
    """Clicks, and counts the clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        target.first.click()
        self.clicks += 1

    def open_first_cause(self) -> None:
        """From the dashboard, whose causes begin with what needs a person first."""
        self.click(self.page.locator("#dl-board .dl-what a"))
        self.page.wait_for_url(re.compile(r"/poisonrecord/groups/\w{16}/"))

    def open_dashboard(self) -> None:
        """From the page on which a login ends."""
        self.click(self.page.locator("#content-main").get_by_role("link", name="Dead letters"))


def fail_all(
    messages: Sequence[Outgoing],
    *,
    queue: str = "default",
    exception: str = "shop.errors.NoAddress",
    frame: str = "shop/mail.py in send",
    error: str = "NoAddress: order without an address",
    **given: Any,
) -> None:
    """Send messages, and let all of them fail for good."""
    send_many(messages, queue=queue)
    while batch := lifecycle.claim(limit=500, worker="w1"):
        lifecycle.fail(
            batch.token,
            [
                Failure(
                    message.id,
                    error=error,
                    exception=exception,
                    frame=frame,
                    reason=FailureReason.HANDLER_EXCEPTION,
                    permanent=True,
                    tags=tags_of(message.payload),
                    **given,
                )
                for message in batch
            ],
        )


def tags_of(payload: dict[str, Any]) -> list[tuple[str, str]]:
    return [("customer", str(payload["customer"]))] if "customer" in payload else []


@pytest.fixture
def live_workers() -> None:
    """Three workers of the new release and one of the old, as their rows say."""
    now = timezone.now()
    for number, release in enumerate(["2.7.1", "2.7.1", "2.7.1", "2.7.0"]):
        WorkerProcess.objects.create(
            name=f"w{number}",
            host="web-1",
            pid=100 + number,
            version="0.1.0",
            release=release,
            queues=["default"],
            handlers=[["message", "sample.work"]],
            concurrency=1,
            started_at=now,
            seen_at=now + timedelta(minutes=10),
        )
    for release, age in (("2.7.0", 3), ("2.7.1", 1)):
        ApplicationRelease.objects.create(
            name=release, first_seen_at=now - timedelta(hours=age), last_seen_at=now
        )


def test_a_deploy_breaks_a_handler(open_page, live_workers) -> None:
    Queue(name="ledger", stream_policy="halt").save()
    for n in range(3):
        fail_all([Outgoing(f"sample.other{n}", {"n": n})], exception=f"shop.errors.Other{n}")
    fail_all(
        [Outgoing("sample.work", {"customer": 7}, stream="account-7")],
        queue="ledger",
        exception="shop.errors.Ledger",
    )
    fail_all(
        [Outgoing("sample.work", {"customer": 1040 + n % 3, "order": n}) for n in range(5_000)],
        release="2.7.0",
    )
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)

    hand.open_dashboard()
    expect(page.locator("#dl-board")).to_contain_text("NoAddress")
    hand.open_first_cause()

    assert hand.clicks <= 3
    content = page.locator("#content-main")
    # What, why, since when, which release, who is hit, and how many.
    expect(page.get_by_role("heading", level=1)).to_contain_text("NoAddress")
    expect(page.get_by_role("heading", level=1)).to_contain_text("shop/mail.py in send")
    expect(content).to_contain_text("order without an address")
    expect(content).to_contain_text("5,000")
    expect(content).to_contain_text(re.compile("first failure", re.I))
    expect(content).to_contain_text("2.7.0")
    for customer in ("1040", "1041", "1042"):
        expect(content.get_by_role("link", name=customer).first).to_be_visible()
    # And whether a retry makes sense.
    expect(page.locator(".dl-advice")).to_contain_text("2.7.0")
    expect(page.locator(".dl-advice")).to_contain_text("3 of 4")


def test_a_handler_is_killed_by_the_system(open_page, workers: Workers) -> None:
    Queue.objects.filter(name="default").update(max_attempts=1)
    crashing = send("sample.crash", {"how": "kill"})
    worker = workers.start("--poll", 0.05, "--processes", 2)
    wait_for_records(workers, 1)
    worker.stop()
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)

    hand.open_dashboard()
    hand.open_first_cause()

    assert hand.clicks <= 3
    content = page.locator("#content-main")
    expect(content).to_contain_text("SIGKILL")
    expect(content).to_contain_text(re.compile(r"peak memory \d+ MiB"))
    hand.click(page.get_by_role("link", name="Latest record"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"#{crashing.pk}")
    expect(page.locator("#content-main")).to_contain_text("SIGKILL")


def test_the_stream_of_one_customer_is_halted_and_freed(open_page, workers: Workers) -> None:
    Queue(name="ledger", stream_policy="halt").save()
    fail_all([Outgoing("sample.work", {"fail": 1_000}, stream="account-7")], queue="ledger")
    followers = [
        send("sample.work", {"n": n}, queue="ledger", stream="account-7").pk for n in range(2)
    ]
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)

    hand.open_dashboard()
    expect(page.locator("#dl-board")).to_contain_text("account-7")
    hand.click(page.locator("#content-main").get_by_role("link", name="Streams"))
    row = page.get_by_role("row").filter(has_text="account-7")
    hand.click(row.get_by_role("link", name=re.compile("^Edit and retry")))
    page.locator("#id_payload").fill('{"fail": 0}')
    hand.click(page.get_by_role("button", name="Show the difference"))
    hand.click(page.get_by_role("button", name="Retry with this payload"))
    expect(page.locator(".messagelist")).to_be_visible()
    assert hand.clicks <= 5
    workers.drain("--queues", "ledger")

    assert not PoisonRecord.objects.exists()
    assert not Message.objects.filter(queue__name="ledger").exists()
    assert [line["id"] for line in workers.journal("finish")][1:] == followers


def test_a_service_is_down_and_comes_back(open_page, workers: Workers) -> None:
    """Nobody has to act: what failed is retried, and the dashboard is calm again."""
    Queue.objects.filter(name="default").update(backoff_base=timedelta(0))
    send_many([Outgoing("sample.work", {"n": n}) for n in range(3_000)])
    while batch := lifecycle.claim(limit=500, worker="w1"):
        lifecycle.fail(
            batch.token,
            [
                Failure(
                    id,
                    error="ConnectionError: refused",
                    exception="ConnectionError",
                    frame="shop/bank.py in pay",
                    reason=FailureReason.TRANSPORT_UNAVAILABLE,
                    delay="1h",
                )
                for id in batch.ids
            ],
        )
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)
    hand.open_dashboard()
    expect(page.locator("#dl-board")).to_contain_text("3,000")
    group = FailureGroup.objects.get()
    assert (group.failures, group.deaths) == (3_000, 0)

    Message.objects.update(available_at=timezone.now())
    workers.drain()

    page.reload()
    assert hand.clicks == 1
    assert not Message.objects.exists()
    assert not PoisonRecord.objects.exists()
    expect(page.locator("#dl-verdict")).not_to_contain_text("3,000")


def test_a_cause_comes_back_after_it_was_resolved(open_page) -> None:
    fail_all([Outgoing("sample.work", {"n": 1})])
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)
    hand.open_dashboard()
    hand.open_first_cause()
    hand.click(page.get_by_role("link", name=re.compile("^Resolve")))
    hand.click(page.get_by_role("button", name=re.compile("Resolve")))
    expect(state_of_group(page)).to_contain_text("resolved")
    assert hand.clicks == 4

    fail_all([Outgoing("sample.work", {"n": 2})])
    fold_all_groups()
    page.reload()

    expect(state_of_group(page)).to_contain_text("regressed")
    assert FailureGroup.objects.get().state == "regressed"
    assert GroupEvent.objects.filter(kind="regressed").count() == 1
    hand = Hand(page)
    page.goto("/admin/")
    hand.open_dashboard()
    expect(page.locator("#dl-board")).to_contain_text("came back")


def test_a_name_that_no_worker_knows(open_page, live_workers) -> None:
    Queue.objects.filter(name="default").update(unregistered_attempts=1)
    send("sample.renamed", {"n": 1})
    batch = lifecycle.claim(limit=1, worker="w1")
    failure = Failure(
        batch.ids[0],
        error="no handler is registered for 'sample.renamed'",
        reason=FailureReason.UNREGISTERED,
        deferred=True,
        delay=0,
    )
    lifecycle.fail(batch.token, [failure])
    lifecycle.claim(limit=1, worker="w1")  # judges the count
    fold_all_groups()
    page: Page = open_page(*OPERATOR)
    hand = Hand(page)

    hand.open_dashboard()
    hand.open_first_cause()

    assert hand.clicks <= 3
    expect(page.locator(".dl-advice")).to_contain_text(re.compile("no live worker knows", re.I))


def state_of_group(page: Page) -> Locator:
    return page.get_by_role("region", name="State of the group")


def wait_for_records(workers: Workers, count: int) -> None:
    wait_until(
        lambda: PoisonRecord.objects.count() >= count,
        why=lambda: workers.report("not enough records"),
    )
