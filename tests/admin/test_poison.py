"""The pages of poison say what died and why; retrying is the only verb, and it asks for a right."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, operations, send
from deadletter.models import Message, PoisonRecord, Queue

from .conftest import SCRIPT, url


def shown(response) -> list[int]:
    return [row.pk for row in response.context["cl"].result_list]


def test_a_page_says_what_died_and_why(admin_client: Client, poisoned) -> None:
    record = poisoned("orders.ship", {"order": 41}, error="ValueError: no address")

    html = admin_client.get(url("poisonrecord", "change", record.pk)).content.decode()

    assert "orders.ship" in html
    assert "failed permanently: its handler said it cannot succeed" in html
    assert "ValueError: no address" in html
    assert "Traceback: ValueError: no address" in html
    assert "&quot;order&quot;: 41" in html
    assert "1 of 5" in html


def test_hostile_content_is_shown_and_not_run(admin_client: Client, poisoned) -> None:
    record = poisoned("mail", {SCRIPT: SCRIPT}, stream=SCRIPT, key=SCRIPT, error=SCRIPT)

    for page in (url("poisonrecord"), url("poisonrecord", "change", record.pk)):
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


@pytest.mark.parametrize("text", ["{", "[" * 5_000 + "]" * 5_000, "9" * 5_000, r'"\ud800"'])
def test_a_damaged_payload_is_shown_as_it_is(
    admin_client: Client, poisoned, damage, text: str
) -> None:
    record = poisoned()
    damage(record, "payload", text)

    response = admin_client.get(url("poisonrecord", "change", record.pk))

    assert response.status_code == 200
    assert admin_client.get(url("poisonrecord")).status_code == 200


def test_the_list_selects_the_beginning_of_the_error_and_nothing_large(
    admin_client: Client, poisoned
) -> None:
    poisoned(error="x" * 10_000)

    with CaptureQueriesContext(connection) as queries:
        html = admin_client.get(url("poisonrecord")).content.decode()

    assert "x" * 120 + "…" in html
    assert "x" * 121 not in html
    listed = [q["sql"] for q in queries if 'FROM "deadletter_poison"' in q["sql"]]
    for column in ("payload", "headers", "history"):
        assert not [sql for sql in listed if f'"deadletter_poison"."{column}"' in sql]


def test_the_list_is_narrowed_to_a_queue_and_to_a_reason(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="other")
    first = poisoned()
    second = poisoned(queue="other")
    third = send("mail")
    operations.poison(third.pk, why="by hand")

    by_queue = admin_client.get(url("poisonrecord"), {"queue": "other"})
    by_reason = admin_client.get(
        url("poisonrecord"), {"reason": str(int(FailureReason.POISON_MESSAGE))}
    )

    assert shown(by_queue) == [second.pk]
    assert shown(by_reason) == [second.pk, first.pk]
    assert shown(admin_client.get(url("poisonrecord"), {"reason": "x"})) == []


@pytest.mark.parametrize("column", ["message_id", "fingerprint"])
def test_a_record_is_found_by_whole_values(admin_client: Client, poisoned, column: str) -> None:
    poisoned("other")
    record = poisoned("mail")

    response = admin_client.get(url("poisonrecord"), {"q": str(getattr(record, column))})

    assert shown(response) == [record.pk]


def test_what_halts_a_stream_is_found_by_the_stream(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned(stream="account-1")
    record = poisoned(stream="account-1", queue="ledger")

    response = admin_client.get(url("poisonrecord"), {"q": "account-1"})

    assert shown(response) == [record.pk]


def retry(browser: Client, *ids: int, **more: str):
    data = {"action": "retry", "_selected_action": [str(id) for id in ids], **more}
    return browser.post(url("poisonrecord"), data, follow=True)


def test_a_retry_puts_the_messages_back_and_leaves_a_trace(login, poisoned, counts) -> None:
    record, other = poisoned(), poisoned()
    browser = login("view_poisonrecord", "retry_poison")

    html = retry(browser, record.pk).content.decode()

    assert "Retried 1 message." in html
    assert counts() == {"pending": 1, "dead": 1}
    assert Message.objects.get().pk == record.message_id
    assert PoisonRecord.objects.get() == other
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_repr) == ("operator", str(record))


def test_a_retry_needs_the_permission_to_change(login, poisoned, counts) -> None:
    record = poisoned()
    browser = login("view_poisonrecord")

    retry(browser, record.pk)

    assert counts() == {"dead": 1}
    assert b'value="retry"' not in browser.get(url("poisonrecord")).content


def test_a_retry_that_is_refused_says_why(admin_client: Client, poisoned, counts) -> None:
    record = poisoned(key="k")
    send("mail", key="k")

    html = retry(admin_client, record.pk).content.decode()

    assert "was not retried: an unfinished message with key" in html
    assert counts() == {"pending": 1, "dead": 1}


def test_a_retry_of_everything_is_refused(
    admin_client: Client, poisoned, counts, monkeypatch
) -> None:
    from deadletter.admin import PoisonRecordAdmin

    monkeypatch.setattr(PoisonRecordAdmin, "list_per_page", 1)
    first, _second = poisoned(), poisoned()

    html = retry(admin_client, first.pk, select_across="1").content.decode()

    assert "at most one page" in html
    assert counts() == {"dead": 2}


def test_looking_changes_nothing(admin_client: Client, poisoned) -> None:
    record = poisoned()
    before = PoisonRecord.objects.filter(pk=record.pk).values().get()

    admin_client.get(url("poisonrecord"), {"action": "retry", "_selected_action": record.pk})
    admin_client.get(url("poisonrecord", "change", record.pk))

    assert PoisonRecord.objects.filter(pk=record.pk).values().get() == before
    assert not Message.objects.exists()


def test_not_even_a_superuser_can_add_change_or_delete(admin_client: Client, poisoned) -> None:
    record = poisoned()

    assert admin_client.get(url("poisonrecord", "add")).status_code == 403
    assert admin_client.post(url("poisonrecord", "change", record.pk), {}).status_code == 403
    assert (
        admin_client.post(url("poisonrecord", "delete", record.pk), {"post": "yes"}).status_code
        == 403
    )
    assert PoisonRecord.objects.count() == 1


def test_poison_is_seen_only_with_the_permission_to(login, db) -> None:
    assert login().get(url("poisonrecord")).status_code == 403
