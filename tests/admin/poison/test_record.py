"""The page of one record: why it died, what it carries for those who may see it, what was tried."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from deadletter import FailureReason, lifecycle, operations, send
from deadletter.admin.history import read_traceback
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue

from ..conftest import url

TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/django/db/utils.py", line 9, in inner
    return func(*args)
  File "/srv/shop/orders.py", line 12, in ship
    address = order["address"]
              ~~~~~^^^^^^^^^^^
KeyError: 'address'
"""


def see(browser: Client, record: PoisonRecord) -> str:
    response = browser.get(url("poisonrecord", "change", record.pk))
    assert response.status_code == 200
    return response.content.decode()


def test_a_page_shows_the_last_progress(admin_client: Client, poisoned, login) -> None:
    record = poisoned()
    before = see(admin_client, record)
    PoisonRecord.objects.update(
        progress={"done": 37, "total": 100, "note": "reading", "at": "2030-01-01T12:00:05+00:00"}
    )

    html = " ".join(see(admin_client, record).split())
    without_right = see(login("view_poisonrecord"), record)

    assert "Last progress" not in before
    assert "<dt>Last progress</dt>" in html
    assert '<progress max="100" value="37" aria-label="Progress">37 %</progress>' in html
    assert "<strong>37 of 100 (37 %)</strong>, <bdi>reading</bdi>" in html
    assert "12:00:05 UTC" in html
    assert "37 of 100" in without_right
    assert "reading" not in without_right


def test_a_page_says_what_died_and_why(admin_client: Client, poisoned) -> None:
    record = poisoned("orders.ship", {"order": 41}, error="ValueError: no address")

    html = see(admin_client, record)

    assert f"orders.ship</bdi> #{record.message_id}" in html
    assert "failed permanently: its handler said it cannot succeed" in html
    assert "ValueError: no address" in html
    assert "Traceback: ValueError: no address" in html
    assert "&quot;order&quot;: 41" in html
    assert "1 of 5" in html
    assert f"manage.py deadletter retry {record.pk} --why" in html


def test_a_payload_is_for_those_who_may_see_it(login, poisoned) -> None:
    record = poisoned(payload={"iban": "DE02"})
    PoisonRecord.objects.update(
        history=[{"original_payload": '{"iban": "DE99"}', "error": "payload edited by ann"}]
    )
    browser = login("view_poisonrecord", "retry_poison", "edit_payload", "remove_poison")

    html = see(browser, record)

    assert "You may not see payloads" in html
    assert "iban" not in html
    assert "DE99" not in html
    assert "payload edited by ann" in html
    assert browser.get(url("poisonrecord", "payload", record.pk)).status_code == 403
    assert browser.get(url("poisonrecord", "edit", record.pk)).status_code == 403


def test_who_may_see_it_sees_it_redacted_also_in_the_history(login, poisoned) -> None:
    record = poisoned(payload={"to": 1, "api_token": "t0p"}, headers={"Authorization": "Bearer b"})
    PoisonRecord.objects.update(
        history=[{"original_payload": '{"to": 7, "password": "pw1"}', "error": "edited"}]
    )
    browser = login("view_poisonrecord", "view_payload")

    html = see(browser, record)
    download = browser.get(url("poisonrecord", "payload", record.pk))

    assert "&quot;to&quot;: 7" in html
    assert html.count("[redacted]") == 3
    for secret in ("t0p", "pw1", "Bearer b"):
        assert secret not in html
    assert download.json() == {"to": 1, "api_token": "[redacted]"}
    assert download["Content-Disposition"].startswith("attachment")
    assert download["X-Content-Type-Options"] == "nosniff"


def test_a_long_payload_is_cut_and_can_be_downloaded(admin_client: Client, poisoned) -> None:
    record = poisoned(payload={"text": "x" * 100_000})

    html = see(admin_client, record)

    assert "Only the beginning is shown" in html
    assert len(html) < 100_000
    download = admin_client.get(url("poisonrecord", "payload", record.pk))
    assert download.json() == {"text": "x" * 100_000}


@pytest.mark.parametrize("text", ["{", "[" * 5_000 + "]" * 5_000, "9" * 5_000, r'"\ud800"'])
def test_a_damaged_payload_is_shown_as_it_is(
    admin_client: Client, poisoned, damage, text: str
) -> None:
    record = poisoned()
    damage(record, "payload", text)

    assert see(admin_client, record)
    for page in ("payload", "edit", "retry"):
        assert admin_client.get(url("poisonrecord", page, record.pk)).status_code == 200
    assert admin_client.get(url("poisonrecord")).status_code == 200


@pytest.mark.parametrize("history", ['{"a": 1}', '"x"', "[1, null, [2]]", '[{"at": 5}]'])
def test_a_damaged_history_does_not_keep_the_page_shut(
    admin_client: Client, poisoned, damage, history: str
) -> None:
    record = poisoned()
    damage(record, "history", history)

    assert "RuntimeError: no such customer" in see(admin_client, record)


def test_the_frames_of_the_application_come_first(admin_client: Client, poisoned) -> None:
    record = poisoned()
    PoisonRecord.objects.update(history=[{"attempt": 1, "error": "e", "traceback": TRACEBACK}])

    html = see(admin_client, record)

    before, _, folded = html.partition("<details")
    assert "/srv/shop/orders.py" in before
    assert "order[&quot;address&quot;]" in before
    assert "site-packages" not in before
    assert "Whole traceback, with 1 frame of libraries" in folded
    assert "site-packages" in folded


def test_attempts_of_earlier_lives_are_told_apart(admin_client: Client, poisoned) -> None:
    record = poisoned(error="RuntimeError: one")
    operations.retry_poison(record.pk, by="ann", why="deployed")
    batch = lifecycle.claim(limit=1, worker="w2")
    lifecycle.fail(batch.token, [lifecycle.Failure(record.message_id, error="two", permanent=True)])
    record = PoisonRecord.objects.get()

    response = admin_client.get(url("poisonrecord", "change", record.pk))
    html = response.content.decode()

    lives = response.context["timeline"].lives
    assert [[a.error for a in life.attempts] for life in lives] == [["two"], ["RuntimeError: one"]]
    assert [life.current for life in lives] == [True, False]
    assert "it was retried and died again" in html
    assert "by ann" in html
    assert "deployed" in html
    assert "died of another cause" in html


def test_a_stream_says_what_waits_behind_it(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    record = poisoned(queue="ledger", stream="account-1")
    follower = send("later", queue="ledger", stream="account-1")

    html = see(admin_client, record)

    assert "The stream is halted until" in html
    assert f"later</bdi> #{follower.pk}" in html
    assert "1 message waits behind it" in html


def test_a_record_that_is_gone_is_told(admin_client: Client, poisoned) -> None:
    record = poisoned()
    operations.remove_poison(record.pk)

    for page in ("change", "retry", "edit", "remove", "payload"):
        here = url("poisonrecord", page, record.pk)
        html = admin_client.get(here, follow=True).content.decode()
        assert "is gone" in html
    far = admin_client.get(url("poisonrecord", "change", 2**70), follow=True)
    assert far.status_code == 200


def test_a_question_says_what_will_happen_and_changes_nothing(
    admin_client: Client, poisoned, counts
) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt", paused=False)
    record = poisoned(queue="ledger", stream="account-1")
    send("later", queue="ledger", stream="account-1")
    before = counts()

    retry = admin_client.get(url("poisonrecord", "retry", record.pk)).content.decode()
    remove = admin_client.get(url("poisonrecord", "remove", record.pk)).content.decode()

    assert f"Message {record.message_id} (mail) goes back into its queue, ledger" in retry
    assert "attempts start again at 0" in retry
    assert "is halted by this record" in retry
    assert "1 message waits behind it" in retry
    assert "cannot be undone" in remove
    assert "Removing it lets the stream continue" in remove
    assert counts() == before


def test_a_retry_puts_the_message_back_and_leaves_a_trace(login, poisoned, counts) -> None:
    record, other = poisoned(), poisoned()
    browser = login("view_poisonrecord", "retry_poison")

    response = browser.post(url("poisonrecord", "retry", record.pk), {"why": "fixed"}, follow=True)

    assert f"Message {record.message_id} (mail) is back" in response.content.decode()
    assert counts() == {"pending": 1, "dead": 1}
    assert PoisonRecord.objects.get() == other
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_repr) == ("operator", str(record))
    assert entry.change_message == "Retried. fixed"
    audit = AuditEntry.objects.get()
    assert (audit.by, audit.why, audit.done) == ("operator", "fixed", 1)


def test_a_retry_can_go_to_another_queue(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="slow")
    record = poisoned()

    admin_client.post(url("poisonrecord", "retry", record.pk), {"queue": "slow"})

    assert Message.objects.get().queue.name == "slow"


def test_a_queue_that_does_not_exist_is_refused_in_the_form(
    admin_client: Client, poisoned, counts
) -> None:
    record = poisoned()

    response = admin_client.post(url("poisonrecord", "retry", record.pk), {"queue": "nowhere"})

    assert "Select a valid choice" in response.content.decode()
    assert counts() == {"dead": 1}


def test_a_retry_that_is_refused_says_why(admin_client: Client, poisoned, counts) -> None:
    record = poisoned(key="k")
    send("mail", key="k")
    here = url("poisonrecord", "retry", record.pk)

    warned = admin_client.get(here).content.decode()
    html = admin_client.post(here, follow=True).content.decode()

    assert "An unfinished message with the same key, k," in warned
    assert "It was not retried: an unfinished message with key" in html
    assert counts() == {"pending": 1, "dead": 1}


def test_a_removal_is_for_good(login, poisoned, counts) -> None:
    record = poisoned()
    browser = login("view_poisonrecord", "remove_poison")

    html = browser.post(
        url("poisonrecord", "remove", record.pk), {"why": "test data"}, follow=True
    ).content.decode()

    assert "was removed for good" in html
    assert counts() == {}
    assert LogEntry.objects.get().is_deletion()


@pytest.mark.parametrize("act", ["retry", "remove", "edit"])
def test_the_second_of_two_operators_is_told_who_was_first(
    admin_client: Client, poisoned, counts, act: str
) -> None:
    record = poisoned()
    here = url("poisonrecord", act, record.pk)
    assert admin_client.get(here).status_code == 200
    operations.retry_poison(record.pk, by="ann")

    response = admin_client.post(
        here,
        {"message": record.message_id, "payload": "{}", "confirmed": "1"},
        follow=True,
    )

    assert f"Message {record.message_id} was already retried by ann" in response.content.decode()
    assert counts() == {"pending": 1}
    assert Message.objects.count() == 1


def test_what_nobody_knew_was_deferred_and_never_tried(admin_client: Client, poisoned) -> None:
    record = poisoned()
    PoisonRecord.objects.update(
        reason=FailureReason.UNREGISTERED,
        exception="UNREGISTERED",
        frame="",
        attempts=3,
        max_attempts=3,
        history=[],
    )

    html = see(admin_client, record)

    assert "It was never tried." in html
    assert re.search(r"<dt>Deferred</dt>\s*<dd>3 of 3</dd>", html)
    assert "<dt>Attempts</dt>" not in html
    # The reason is said in words above.
    assert "<bdi>UNREGISTERED</bdi>" not in html
    assert "deferred 3" in admin_client.get(url("poisonrecord", "records")).content.decode()


def test_an_attempt_that_raised_at_once_took_more_than_nothing(
    admin_client: Client, poisoned
) -> None:
    record = poisoned()
    PoisonRecord.objects.update(history=[{"attempt": 1, "error": "no", "duration": 0.0}])

    html = see(admin_client, record)

    assert "took under 1 ms" in html
    assert "took 0 s" not in html


@pytest.mark.parametrize("module", ["forks.py", "copies.py"], ids=["now", "formerly"])
def test_frames_of_deadletter_are_none_of_the_application(module: str) -> None:
    text = TRACEBACK.replace("site-packages/django/db/utils.py", f"checkout/deadletter/{module}")
    text = text.replace("/usr/lib/python3.11/", "/srv/")

    found = read_traceback(text)

    assert found is not None
    assert [frame.function for frame in found.application] == ["ship"]
