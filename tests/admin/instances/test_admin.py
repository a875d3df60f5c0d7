"""Instances in the admin: found, read and cancelled, whatever is stored in them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client

from deadletter import (
    ActivityCompleted,
    ChildCompleted,
    Permanent,
    Started,
    operations,
    start,
    testing,
)
from deadletter.instances import Flow, flows
from deadletter.models import (
    Act,
    AuditEntry,
    Instance,
    InstanceEvent,
    Message,
    PoisonRecord,
)

from ..conftest import SCRIPT, url


def page(id: str, name: str = "change") -> str:
    return url("instance", name, quote(id))


def order(run: Any, event: Any) -> None:
    """Charge, then ship in a child; input "wait" waits for somebody outside."""
    match event:
        case Started(input="wait"):
            run.timer(3600)
        case Started(input="parent"):
            run.start_child("order", "wait", instance=f"{run.instance}+")
        case Started():
            run.state = {"card_token": "tok_1", "step": "charging"}
            run.call("charge", {"amount": 5})
        case ActivityCompleted(result=result):
            run.complete(result)
        case ChildCompleted():
            run.complete()


@pytest.fixture
def shop(handles):
    """Charges are refused until `shop.broken` is emptied."""
    flows.add(Flow(name="order", version="1.2.0", function=order))
    broken = ["charge"]

    def charge(message: Any) -> Any:
        if broken:
            raise Permanent("the card has expired")
        return {"receipt": 7, "password": "hunter2"}

    handles("charge", charge)
    yield broken
    flows.remove("order")


@pytest.fixture
def failed(clock, shop) -> Instance:
    start("order", instance="order-17", input={"sku": "gadget-blue"})
    testing.drain()
    return Instance.objects.get(pk="order-17")


def test_the_list_shows_the_latest_activity_first_and_why_one_failed(
    admin_client: Client, clock, shop, failed
) -> None:
    clock.advance(5)
    start("order", instance="order-18", input="wait")

    html = admin_client.get(url("instance")).content.decode()

    assert html.index("order-18") < html.index("order-17")
    assert "poison: activity charge#1 failed permanently at attempt 1 (max 5)" in html
    assert "is-failed" in html
    assert "is-running" in html


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"status": "failed"}, {"order-17"}),
        ({"status": "running"}, {"order-18"}),
        ({"name": "order"}, {"order-17", "order-18"}),
        ({"name": "order", "status": "running"}, {"order-18"}),
        ({"name": "other"}, set()),
        ({"status": "nonsense"}, set()),
        ({"q": "order-17"}, {"order-17"}),
        ({"q": "order-1"}, set()),
        ({"parent": "order-17"}, set()),
    ],
)
def test_filters_and_the_search_find_exactly_what_was_asked_for(
    admin_client: Client, shop, failed, query: dict[str, str], found: set[str]
) -> None:
    start("order", instance="order-18", input="wait")

    answer = admin_client.get(url("instance"), query)

    assert answer.status_code == 200
    assert {row.pk for row in answer.context["cl"].result_list} == found


def test_a_name_and_a_status_together_look_at_a_bounded_number_of_rows(
    admin_client: Client, clock, shop, failed, monkeypatch
) -> None:
    """Of 3 running and 3 of this name, the reach of 2 ends at the second: older ones are out."""
    monkeypatch.setattr("deadletter.operations.instances.REACH", 2)
    for number in range(3):
        clock.advance(1)
        start("order", instance=f"new-{number}", input="wait")

    answer = admin_client.get(url("instance"), {"name": "order", "status": "running"})
    alone = admin_client.get(url("instance"), {"name": "order", "status": "failed"})

    assert [row.pk for row in answer.context["cl"].result_list] == ["new-2", "new-1"]
    # There is but one failed: fewer than the reach, so it is found however old it is.
    assert [row.pk for row in alone.context["cl"].result_list] == ["order-17"]


def test_the_list_asks_as_much_for_many_as_for_few(
    admin_client: Client, shop, django_assert_max_num_queries
) -> None:
    for number in range(60):
        start("order", instance=f"order-{number}", input="wait")

    with django_assert_max_num_queries(10) as captured:
        admin_client.get(url("instance"))

    text = " ".join(query["sql"] for query in captured)
    assert '"state"' not in text
    assert '"input"' not in text
    counts = [q["sql"] for q in captured if "COUNT(" in q["sql"]]
    assert counts
    assert all("LIMIT" in sql for sql in counts)


def test_a_failed_instance_says_why_and_what_brings_it_back(admin_client: Client, failed) -> None:
    record = PoisonRecord.objects.get()

    html = admin_client.get(page("order-17")).content.decode()

    assert "poison: activity charge#1 failed permanently at attempt 1 (max 5)" in html
    assert "the card has expired" in html
    assert f"When message {record.message_id} is retried, the instance is reopened" in html
    assert url("poisonrecord", "retry", record.pk) in html
    assert url("poisonrecord", "change", record.pk) in html
    assert "the instance failed because of it" in html
    for event in ("started", "called", "activity failed", "failed"):
        assert f"<strong>{event}</strong>" in html
    assert "Cancel…" not in html


def test_content_is_redacted_and_needs_its_permission(
    login, admin_client: Client, shop, failed
) -> None:
    shop.clear()
    operations.retry_poison(PoisonRecord.objects.get().pk)
    testing.drain()
    browser = login("view_instance")

    html = browser.get(page("order-17")).content.decode()
    assert "You may not see payloads." in html
    for hidden in ("gadget-blue", "charging", "tok_1", "receipt", "hunter2"):
        assert hidden not in html

    html = admin_client.get(page("order-17")).content.decode()
    for shown in ("gadget-blue", "charging", "receipt", "[redacted]"):
        assert shown in html
    for secret in ("tok_1", "hunter2"):
        assert secret not in html


def test_children_and_parents_lead_to_each_other(admin_client: Client, clock, shop) -> None:
    start("order", instance="order-20", input="parent")
    testing.drain()

    above = admin_client.get(page("order-20")).content.decode()
    below = admin_client.get(page("order-20+")).content.decode()

    assert f'href="{page("order-20+")}"' in above
    assert f'href="{page("order-20")}"' in below
    assert "timer <bdi></bdi> #1" in below


def test_a_long_log_is_shown_a_page_at_a_time(
    admin_client: Client, shop, failed, django_assert_max_num_queries
) -> None:
    InstanceEvent.objects.all().delete()
    for number in range(120):
        InstanceEvent.objects.create(
            instance="order-17",
            execution_id=1,
            at=failed.created_at,
            event="raised",
            name=f"event-{number}.",
        )

    with django_assert_max_num_queries(30):
        first = admin_client.get(page("order-17"))
    second = admin_client.get(page("order-17") + first.context["log"].older)
    third = admin_client.get(page("order-17") + second.context["log"].older)

    lines = [
        [line.event.name for line in answer.context["log"].lines]
        for answer in (first, second, third)
    ]
    assert [len(some) for some in lines] == [50, 50, 20]
    assert (lines[0][0], lines[2][-1]) == ("event-119.", "event-0.")
    assert third.context["log"].older == ""


def test_hostile_content_is_only_text(admin_client: Client, shop, failed, damage) -> None:
    id = "x<script>alert('&')</script>/../\u202eevil"
    Instance.objects.filter(pk="order-17").update(parent=SCRIPT, name=SCRIPT, version=SCRIPT[:60])
    row = Instance.objects.get(pk="order-17")
    row.pk, row.error = id, {"category": "application", "text": SCRIPT}
    row.state = row.input = row.output = {SCRIPT: SCRIPT}
    row.history = [{"execution_id": SCRIPT, "status": SCRIPT, "at": SCRIPT, "error": SCRIPT}, 7]
    row.pending = {SCRIPT: {"kind": SCRIPT, "name": SCRIPT, "instance": SCRIPT}, "2": SCRIPT}
    row.save(force_insert=True)
    for event in ("started", "failed", "ignored", "child_failed", "nonsense"):
        InstanceEvent.objects.create(
            instance=id,
            execution_id=2,
            at=row.created_at,
            event=event,
            name=SCRIPT,
            data={"text": SCRIPT, "why": SCRIPT, "instance": SCRIPT, "error": {"text": SCRIPT}},
        )

    for address in (url("instance"), page(id), page(id, "cancel")):
        answer = admin_client.get(address)
        assert (address, answer.status_code) == (address, 200)
        html = answer.content.decode()
        assert "<script>alert" not in html
        assert "\u202e" not in html


@pytest.mark.parametrize("column", ["input", "state", "output", "error"])
def test_a_damaged_column_does_not_close_the_page(
    admin_client: Client, failed, damage, column: str
) -> None:
    damage(failed, column, '{"broken": ')

    assert admin_client.get(page("order-17")).status_code == 200
    assert admin_client.get(url("instance")).status_code == 200


def test_what_is_not_there_is_said(admin_client: Client, db) -> None:
    for address in (page("nobody"), page("nobody", "cancel"), page("nul\x00l")):
        answer = admin_client.get(address, follow=True)
        assert "There is no such instance." in answer.content.decode()


# Cancelling


def test_cancelling_asks_first_then_fails_it_with_its_children(
    admin_client: Client, clock, shop
) -> None:
    start("order", instance="order-20", input="parent")
    testing.drain()
    before = list(Message.objects.values())

    asked = admin_client.get(page("order-20", "cancel"), {"why": "x"}).content.decode()

    assert "Its running children and their running descendants are cancelled" in asked
    assert "order-20+" in asked
    assert list(Message.objects.values()) == before
    assert not AuditEntry.objects.exists()

    answer = admin_client.post(page("order-20", "cancel"), {"why": "withdrawn"}, follow=True)

    told = [str(message) for message in answer.context["messages"]]
    assert told == ["order-20 was cancelled, and 1 instance below it."]
    standing = dict(Instance.objects.values_list("pk", "status"))
    assert standing == {"order-20": "failed", "order-20+": "failed"}
    text = Instance.objects.get(pk="order-20").error_details.text
    assert text == "cancelled: withdrawn (admin)"
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.why, entry.done) == (Act.CANCEL, "admin", "withdrawn", 2)
    assert entry.selection == {"instance": "order-20", "cancelled": ["order-20", "order-20+"]}
    assert LogEntry.objects.count() == 1
    # What the child told its parent is on its way, and will be ignored.
    assert [message.payload["event"] for message in Message.objects.all()] == ["child_failed"]


def test_cancelling_needs_a_reason_and_something_that_runs(
    admin_client: Client, shop, failed
) -> None:
    start("order", instance="order-18", input="wait")

    silent = admin_client.post(page("order-18", "cancel"), {"why": " "})
    late = admin_client.post(page("order-17", "cancel"), {"why": "x"}, follow=True)

    assert "Say why: others will ask." in silent.content.decode()
    assert Instance.objects.get(pk="order-18").status == "running"
    assert "It was not cancelled" in late.content.decode()
    assert "not running any more" in admin_client.get(page("order-17", "cancel")).content.decode()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("granted", "look", "act"),
    [
        ((), 403, 403),
        (("view_instance",), 200, 403),
        (("cancel_instance",), 403, 403),
        (("remove_poison", "retry_poison", "view_poisonrecord"), 403, 403),
        (("view_instance", "cancel_instance"), 200, 302),
    ],
)
def test_every_page_asks_for_its_permission(login, shop, granted, look: int, act: int) -> None:
    start("order", instance="order-18", input="wait")
    browser = login(*granted)

    assert browser.get(url("instance")).status_code == look
    seen = browser.get(page("order-18"))
    assert seen.status_code == look
    if look == 200:
        assert ("Cancel…" in seen.content.decode()) == (act == 302)
    assert browser.get(page("order-18", "cancel")).status_code == (200 if act == 302 else 403)
    assert browser.post(page("order-18")).status_code == 403
    assert browser.post(page("order-18", "cancel"), {"why": "x"}).status_code == act
    standing = Instance.objects.get(pk="order-18").status
    assert standing == ("failed" if act == 302 else "running")


def test_a_cancellation_without_the_token_of_the_form_is_refused(admin_user, shop) -> None:
    start("order", instance="order-18", input="wait")
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)

    assert browser.post(page("order-18", "cancel"), {"why": "x"}).status_code == 403
    assert Instance.objects.get(pk="order-18").status == "running"


# Poison and messages


def test_a_poison_record_says_what_it_did_and_what_its_retry_would_do(
    admin_client: Client, shop, failed
) -> None:
    record = PoisonRecord.objects.get()

    html = admin_client.get(url("poisonrecord", "change", record.pk)).content.decode()
    asked = admin_client.get(url("poisonrecord", "retry", record.pk)).content.decode()
    removal = admin_client.get(url("poisonrecord", "remove", record.pk)).content.decode()

    assert "Instance order-17 failed because of this message. A retry reopens it." in html
    assert f'href="{page("order-17")}"' in html
    assert "these failed instances, which continue where they stopped: order-17." in asked
    assert "Instance order-17 stays as it is; nothing can reopen it any more." in removal
    assert Instance.objects.get().status == "failed"


def test_a_retry_that_would_be_refused_says_so_before(admin_client: Client, shop, failed) -> None:
    record = PoisonRecord.objects.get()
    start("order", instance="order-17", input="wait")

    html = admin_client.get(url("poisonrecord", "change", record.pk)).content.decode()
    asked = admin_client.get(url("poisonrecord", "retry", record.pk)).content.decode()

    said = "instance order-17 has gone on to execution 2 since"
    assert f"A retry is refused: {said}." in html
    assert f"A retry would be refused now: {said}." in asked


def test_poison_is_found_by_its_instance_and_kind(admin_client: Client, failed, poisoned) -> None:
    poisoned("mail")
    for query in ({"instance": "order-17"}, {"kind": "activity"}):
        answer = admin_client.get(url("poisonrecord", "records"), query)
        assert [record.name for record in answer.context["page"].records] == ["charge"]


def test_a_message_leads_to_its_instance_and_is_not_removed_behind_its_back(
    admin_client: Client, shop
) -> None:
    start("order", instance="order-18", input="wait")
    message = Message.objects.get()

    html = admin_client.get(url("message", "change", message.pk)).content.decode()
    asked = admin_client.get(url("message", "act", "remove"), {"ids": message.pk})
    found = admin_client.get(url("message"), {"q": "order-18"})

    assert f'href="{page("order-18")}"' in html
    assert "Instance order-18 waits for message" in asked.content.decode()
    assert [row.pk for row in found.context["cl"].result_list] == [message.pk]
