"""The page of circuit breakers: what each holds, and the acts: hold a name, reset a breaker."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from deadletter import operations, send
from deadletter.models import AuditEntry, Breaker, WorkerProcess

from .conftest import SCRIPT, url

HOLD = reverse("admin:deadletter_breaker_hold")


def reset(row: Breaker) -> str:
    return url("breaker", "reset", row.pk)


@pytest.fixture
def worker(clock):
    return WorkerProcess.objects.create(
        name="w1", host="h", pid=1, version="1", concurrency=1, handlers=[["message", "mail.send"]],
        started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip


def test_the_list_says_what_is_held_since_when_why_and_by_whom(admin_client: Client, clock):
    send("mail.send")
    send("mail.send")
    operations.hold_breaker("mail.send", by="ann", why=SCRIPT)
    operations.hold_breaker("bill", duration="2h", by="bob")
    clock.advance(180)

    html = admin_client.get(url("breaker")).content.decode()

    assert "held until it is reset" in html
    assert "held for another 1\xa0hour" in html
    held = f"{url('message')}?name=mail.send"
    assert f'<td class="field-waiting"><a href="{held}">2</a></td>' in html
    assert admin_client.get(held).context["cl"].result_count == 2
    assert '<td class="field-opened_by">ann</td>' in html
    assert ">3 min</span>" in html
    assert "&lt;script&gt;alert" in html
    assert "<script>alert" not in html


def test_a_name_is_held_and_reset_with_a_reason(admin_client: Client, clock, worker):
    asked = admin_client.get(HOLD, {"name": "mail.send"})
    answer = admin_client.post(
        HOLD, {"name": "mail.send", "duration": "4h", "why": "the provider asked"}
    )

    assert 'value="mail.send"' in asked.content.decode()
    assert '<option value="mail.send">' in asked.content.decode()
    assert answer.url == url("breaker")
    row = Breaker.objects.get()
    assert (row.name, row.opened_by, row.why) == ("mail.send", "admin", "the provider asked")
    assert row.held_until == clock.now + timedelta(hours=4)

    question = admin_client.get(reset(row)).content.decode()
    assert "It holds 0 messages." in question
    assert "manage.py deadletter breakers reset mail.send" in question
    assert admin_client.post(reset(row), {"why": "back"}).url == url("breaker")

    assert not Breaker.objects.exists()
    assert [(e.act, e.by, e.why) for e in AuditEntry.objects.order_by("id")] == [
        ("hold_breaker", "admin", "the provider asked"),
        ("reset_breaker", "admin", "back"),
    ]
    assert LogEntry.objects.count() == 2


def test_looking_at_the_questions_changes_nothing(admin_client: Client, clock):
    row = operations.hold_breaker("mail", by="ann")

    admin_client.get(HOLD, {"name": "other", "why": "x", "anyway": "on"})
    admin_client.get(reset(row))

    assert Breaker.objects.get() == row
    assert AuditEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "This field is required."),
        ({"name": "two words"}, "This cannot be held"),
        ({"name": "deadletter.job"}, "This cannot be held"),
        ({"name": "mail.send", "duration": "soon"}, "This is no duration"),
        ({"name": "mail.send", "duration": "0"}, "More than nothing"),
        ({"name": "mail.send", "duration": "400d"}, "at most 366d"),
    ],
)
def test_a_wrong_answer_is_asked_again(admin_client: Client, clock, worker, given, said):
    html = admin_client.post(HOLD, given).content.decode()

    assert said in html
    assert not Breaker.objects.exists()


def test_a_name_that_no_worker_knows_is_asked_about_first(admin_client: Client, clock, worker):
    first = admin_client.post(HOLD, {"name": "mail.sent"}).content.decode()

    assert "No live worker has a handler of this name. Did you mean mail.send?" in first
    assert 'type="checkbox" name="anyway"' in first
    assert not Breaker.objects.exists()

    admin_client.post(HOLD, {"name": "mail.sent", "anyway": "on"})
    assert Breaker.objects.get().name == "mail.sent"


def test_without_a_live_worker_any_name_can_be_held(admin_client: Client, clock):
    admin_client.post(HOLD, {"name": "mail.sent"})

    assert Breaker.objects.get().held_until is None


def test_a_breaker_that_was_reset_meanwhile_is_not_an_error(admin_client: Client, clock):
    row = operations.hold_breaker("mail", by="ann")
    operations.reset_breaker("mail", by="bob")

    assert admin_client.get(reset(row)).status_code == 404
    assert admin_client.post(reset(row)).status_code == 404


def test_the_acts_need_a_permission_of_their_own(login, clock):
    row = operations.hold_breaker("mail", by="ann")
    browser = login("view_breaker")

    listed = browser.get(url("breaker")).content.decode()
    page = browser.get(url("breaker", "change", row.pk)).content.decode()

    assert "held until it is reset" in listed
    assert HOLD not in listed + page
    assert reset(row) not in listed + page
    for address in (HOLD, reset(row)):
        assert browser.get(address).status_code == 403
        assert browser.post(address, {"name": "other"}).status_code == 403
    assert Breaker.objects.count() == 1


def test_who_may_hold_finds_the_acts_on_the_list_and_on_the_page(login, clock):
    row = operations.hold_breaker("mail", by="ann")
    browser = login("view_breaker", "hold_breaker")

    for address in (url("breaker"), url("breaker", "change", row.pk)):
        html = browser.get(address).content.decode()
        assert HOLD in html
        assert reset(row) in html


def test_a_message_says_that_its_name_is_held(admin_client: Client, clock):
    message = send("mail")
    row = operations.hold_breaker("mail", by="ann")

    html = admin_client.get(url("message", "change", message.pk)).content.decode()

    assert "Its name is held until the circuit breaker is reset." in html
    assert url("breaker", "change", row.pk) in html


def test_a_message_that_was_put_aside_says_why_and_a_scheduled_one_does_not(
    admin_client: Client, clock
):
    aside, scheduled = send("mail", delay=20), send("mail", delay=3_600)
    operations.hold_breaker("mail", duration="1h", by="ann")

    def page(message):
        return admin_client.get(url("message", "change", message.pk)).content.decode()

    assert "A circuit breaker holds its name" in page(aside)
    assert "It is scheduled" in page(scheduled)


def test_the_dashboard_says_who_holds_what(admin_client: Client, clock):
    operations.hold_breaker("mail", by="ann", why="the provider asked")

    html = admin_client.get("/admin/deadletter/").content.decode()

    assert "essages named mail are held by ann" in html
    assert "the provider asked" in html
    assert "circuit breaker open for" not in html


def test_the_last_error_is_not_cut_off(admin_client: Client, clock):
    error = "ConnectionError: " + "refused by the payment service, " * 10 + "END"
    Breaker.objects.create(
        name="mail", failures=5, error=error, opened_at=clock.now,
        until=clock.now + timedelta(minutes=1), opened_by="w1",
    )  # fmt: skip

    assert error in admin_client.get(url("breaker")).content.decode()


def test_who_may_not_read_errors_sees_the_class_alone(login, clock):
    Breaker.objects.create(
        name="mail", failures=5, error="ConnectionError: card 4111", opened_at=clock.now,
        until=clock.now + timedelta(minutes=1), opened_by="w1",
    )  # fmt: skip

    html = login("view_breaker").get(url("breaker")).content.decode()

    assert "4111" not in html
    assert "ConnectionError" in html
