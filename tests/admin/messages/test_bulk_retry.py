"""All failed messages that match the filters of the list are retried, in bounded pieces."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from deadletter import FailureReason, lifecycle, send
from deadletter.admin.messages import bulk_retry
from deadletter.lifecycle import Failure
from deadletter.models import AuditEntry, Queue

from ..conftest import SCRIPT, url

ACT = reverse("admin:deadletter_message_retry_failed")


@pytest.fixture
def failures(clock):
    """Three failed messages of `mail` and one of `report`; two of them in the queue `slow`."""
    Queue.objects.create(name="slow")
    for name, queue, reason in (
        ("mail", "default", FailureReason.TIMEOUT_EXCEEDED),
        ("mail", "slow", FailureReason.HANDLER_EXCEPTION),
        ("mail", "default", FailureReason.HANDLER_EXCEPTION),
        ("report", "slow", FailureReason.HANDLER_EXCEPTION),
    ):
        message = send(name, queue=queue)
        batch = lifecycle.claim(limit=1, worker="w1", queues=[queue])
        lifecycle.fail(batch.token, [Failure(message.pk, error="no", reason=reason)])


def test_the_list_of_failed_messages_offers_it_with_its_filters(admin_client: Client, failures):
    slow = Queue.objects.get(name="slow").pk

    def offered(**query) -> bool:
        return ACT in admin_client.get(url("message"), query).content.decode()

    html = admin_client.get(url("message"), {"state": "failed", "name": "mail", "queue": slow})

    assert f'href="{ACT}?queue={slow}&amp;name=mail"' in html.content.decode()
    assert offered(state="failed")
    assert not offered()
    assert not offered(state="pending")
    assert not offered(state="failed", q="x")
    assert not offered(state="failed", attempts="0-1")


@pytest.mark.parametrize(
    ("query", "n"),
    [
        ({}, 4),
        ({"name": "mail"}, 3),
        ({"reason": "timeout_exceeded"}, 1),
        ({"name": "mail", "reason": "handler_exception"}, 2),
    ],
)
def test_exactly_those_that_match_become_due(
    admin_client: Client, failures, counts, query: dict[str, str], n: int
):
    question = admin_client.get(ACT, query).content.decode()
    before = counts()
    answer = admin_client.post(ACT, {**query, "why": "it is up again"})

    assert f"{n} failed message" in question
    assert before == {"failed": 4}
    assert counts() == {key: value for key, value in (("failed", 4 - n), ("pending", n)) if value}
    assert answer.url.startswith(f"{url('message')}?state=failed")
    (entry,) = AuditEntry.objects.all()
    assert (entry.act, entry.by, entry.why) == ("retry_now", "admin", "it is up again")


def test_a_queue_is_obeyed(admin_client: Client, failures, counts):
    slow = Queue.objects.get(name="slow")

    page = admin_client.get(ACT, {"queue": slow.pk}).content.decode()
    assert "queue slow" in page
    assert "manage.py deadletter retry --failed --queue slow" in page
    admin_client.post(ACT, {"queue": slow.pk})

    assert counts() == {"failed": 2, "pending": 2}


def test_one_answer_retries_a_bounded_number(admin_client: Client, failures, counts, monkeypatch):
    monkeypatch.setattr(bulk_retry, "AT_MOST", 3)

    question = admin_client.get(ACT).content.decode()
    admin_client.post(ACT)

    assert "3+ failed messages" in question
    assert "One answer retries 3 of them" in question
    assert counts() == {"failed": 1, "pending": 3}


def test_nothing_to_do_is_said(admin_client: Client, clock):
    assert "There is nothing to do." in admin_client.get(ACT, {"name": SCRIPT}).content.decode()
    admin_client.post(ACT)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "query", [{"queue": "99"}, {"queue": "x"}, {"reason": "nonsense"}, {"name": "\x00"}]
)
def test_a_filter_that_is_none_is_not_found(admin_client: Client, failures, counts, query):
    assert admin_client.get(ACT, query).status_code == 404
    assert admin_client.post(ACT, query).status_code == 404
    assert counts() == {"failed": 4}


def test_it_needs_the_right_to_retry(login, failures, counts):
    browser = login("view_message", "remove_poison")

    assert ACT not in browser.get(url("message"), {"state": "failed"}).content.decode()
    assert browser.get(ACT).status_code == 403
    assert browser.post(ACT).status_code == 403
    assert counts() == {"failed": 4}


def test_the_command_for_the_whole_list_has_its_name(admin_client: Client, failures):
    query = {"state": "failed", "name": "mail", "queue": Queue.objects.get(name="slow").pk}

    html = admin_client.get(url("message"), query).content.decode()

    assert "manage.py deadletter retry --failed --queue slow --name mail" in html
