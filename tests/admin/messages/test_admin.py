"""The pages of messages show everything and change nothing."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, lifecycle, operations, send
from deadletter.admin import MessageAdmin, base
from deadletter.admin.messages import filters
from deadletter.lifecycle import Failure
from deadletter.models import Message, Queue
from tests.operations.records import failed

from ..conftest import SCRIPT, url


def shown_ids(response) -> list[int]:
    return [row.pk for row in response.context["cl"].result_list]


def test_the_list_shows_each_message_with_its_state(admin_client: Client, clock) -> None:
    send("pending")
    send("scheduled", delay=600)
    failed = send("failed", priority=1)
    batch = lifecycle.claim(limit=2, worker="w1")
    lifecycle.fail(batch.token, [Failure(failed.pk, error="no")])
    lifecycle.release(batch.token, [id for id in batch.ids if id != failed.pk])
    send("active", stream="s")
    blocked = send("blocked", stream="s")
    lifecycle.claim(limit=1, worker="w2")
    Message.objects.filter(pk=blocked.pk).update(available_at=None)

    response = admin_client.get(url("message"))

    states = {
        row.name: response.context["cl"].model_admin.state(row)
        for row in response.context["cl"].result_list
    }
    assert states["scheduled"] == "scheduled"
    assert states["failed"] == "failed"
    assert states["blocked"] == "blocked"
    assert sorted([states["pending"], states["active"]]) == ["active", "pending"]


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("pending", ["due"]),
        ("scheduled", ["later"]),
        ("failed", []),
        ("active", []),
        ("blocked", []),
        ("nonsense", []),
    ],
)
def test_the_list_is_narrowed_to_a_state(
    admin_client: Client, clock, state: str, names: list[str]
) -> None:
    send("due")
    send("later", delay=600)

    response = admin_client.get(url("message"), {"state": state})

    assert [row.name for row in response.context["cl"].result_list] == names


def test_the_list_is_narrowed_to_a_queue(admin_client: Client, db) -> None:
    other = Queue.objects.create(name="other")
    send("here")
    message = send("there", queue="other")

    response = admin_client.get(url("message"), {"queue": str(other.pk)})

    assert shown_ids(response) == [message.pk]


@pytest.mark.parametrize("term", ["{id}", "order-1", "once"])
def test_a_message_is_found_by_whole_values(admin_client: Client, db, term: str) -> None:
    send("other", stream="order-10", key="once more")
    message = send("wanted", stream="order-1", key="once")

    response = admin_client.get(url("message"), {"q": term.format(id=message.pk)})

    assert shown_ids(response) == [message.pk]


@pytest.mark.parametrize("term", ["orde", "99999999999999999999999", "²", "%", "' OR 1=1 --"])
def test_a_search_that_fits_nothing_finds_nothing(admin_client: Client, db, term: str) -> None:
    send("wanted", stream="order-1")

    response = admin_client.get(url("message"), {"q": term})

    assert response.status_code == 200
    assert shown_ids(response) == []


def test_the_list_selects_no_payload_no_history_and_the_start_of_errors(
    admin_client: Client, db
) -> None:
    for n in range(3):
        send("mail", {"n": n}, headers={"h": 1})

    with CaptureQueriesContext(
        connection,
    ) as queries:
        admin_client.get(url("message"))

    listed = [q["sql"] for q in queries if '"deadletter_message"' in q["sql"]]
    assert listed
    for column in ("payload", "headers", "history"):
        assert not [sql for sql in listed if f'"deadletter_message"."{column}"' in sql]
    errors = [sql for sql in listed if '"deadletter_message"."error"' in sql]
    assert errors
    assert all(sql.count('"error"') == 1 and '."error", ' in sql for sql in errors)


def test_the_list_asks_the_same_number_of_queries_for_any_number_of_rows(
    admin_client: Client, db
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(url("message"))
        return len(captured)

    send("mail")
    queries()
    one = queries()
    for _ in range(20):
        send("mail")

    assert queries() == one


def test_no_list_counts_a_whole_table(admin_client: Client, db) -> None:
    send("mail")

    with CaptureQueriesContext(connection) as queries:
        admin_client.get(url("message"))

    counts = [q["sql"] for q in queries if "COUNT(" in q["sql"] and "deadletter_" in q["sql"]]
    assert len(counts) == 1
    assert all(f"LIMIT {base.COUNT_LIMIT + 1}" in sql for sql in counts)


def test_a_count_above_the_limit_is_shown_as_such(admin_client: Client, db, monkeypatch) -> None:
    monkeypatch.setattr(base, "COUNT_LIMIT", 3)
    monkeypatch.setattr(MessageAdmin, "list_per_page", 2)
    for _ in range(4):
        send("mail")

    response = admin_client.get(url("message"), {"p": 2})

    assert "more than 3 messages" in response.content.decode()
    assert len(shown_ids(response)) == 1


def test_a_message_whose_queue_is_gone_is_still_shown(admin_client: Client, db, damage) -> None:
    message = send("mail")
    damage(message, "queue_id", 987_654)

    assert shown_ids(admin_client.get(url("message"))) == [message.pk]
    assert admin_client.get(url("message", "change", message.pk)).status_code == 200


def test_hostile_content_is_shown_and_not_run(admin_client: Client, db) -> None:
    message = send("mail", {SCRIPT: [SCRIPT]}, stream=SCRIPT, key=SCRIPT, headers={"h": SCRIPT})
    batch = lifecycle.claim(limit=1, worker=SCRIPT)
    lifecycle.fail(batch.token, [Failure(message.pk, error=SCRIPT, traceback=SCRIPT)])

    for page in (url("message"), url("message", "change", message.pk)):
        html = admin_client.get(page).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


@pytest.mark.parametrize(
    "text",
    ["{", "[" * 5_000 + "]" * 5_000, "[" * 900 + "]" * 900, "9" * 5_000, r'"\ud800"', "", "NaN"],
    ids=["cut", "deep", "fairly deep", "digits", "surrogate", "empty", "nan"],
)
def test_a_damaged_payload_is_shown_as_it_is(admin_client: Client, db, damage, text: str) -> None:
    message = send("mail", {"n": 1})
    damage(message, "payload", text)
    damage(message, "headers", text)

    response = admin_client.get(url("message", "change", message.pk))

    assert response.status_code == 200
    assert admin_client.get(url("message")).status_code == 200


@pytest.mark.sqlite_only(reason="PostgreSQL checks what a column holds")
@pytest.mark.parametrize("value", [b"\xff\xfe", b"[1]", b"[\xff"])
def test_a_page_survives_what_only_sqlite_can_hold(
    admin_client: Client, db, damage, value: object
) -> None:
    message = send("mail", {"n": 1})
    damage(message, "payload", value)

    response = admin_client.get(url("message", "change", message.pk))

    assert response.status_code == 200
    assert admin_client.get(url("message")).status_code == 200


@pytest.mark.parametrize(
    "history",
    [
        "{}",
        "7",
        '["text", 7, null, {"at": 5, "reason": "x", "error": {"a": [1]}}]',
        '[{"at": "x"}]',
    ],
)
def test_a_history_of_any_shape_is_shown(admin_client: Client, db, damage, history: str) -> None:
    message = send("mail")
    damage(message, "history", history)

    assert admin_client.get(url("message", "change", message.pk)).status_code == 200


def test_looking_changes_nothing(admin_client: Client, db, django_assert_num_queries) -> None:
    message = send("mail", {"n": 1}, stream="s")
    before = Message.objects.filter(pk=message.pk).values().get()

    with CaptureQueriesContext(connection) as queries:
        for page in (url("message"), url("message", "change", message.pk)):
            assert admin_client.get(page).status_code == 200

    assert Message.objects.filter(pk=message.pk).values().get() == before
    written = [q["sql"] for q in queries if not q["sql"].startswith(("SELECT", "SAVE", "RELEASE"))]
    assert written == []


def test_not_even_a_superuser_can_add_change_or_delete(admin_client: Client, db) -> None:
    message = send("mail", {"n": 1})

    assert admin_client.get(url("message", "add")).status_code == 403
    assert admin_client.post(url("message", "change", message.pk), {"n": 2}).status_code == 403
    assert (
        admin_client.post(url("message", "delete", message.pk), {"post": "yes"}).status_code == 403
    )
    assert Message.objects.count() == 1


def test_messages_are_seen_only_with_the_permission_to(login, db) -> None:
    send("mail")

    assert login().get(url("message")).status_code == 403


def test_the_permission_to_view_is_enough(login, db) -> None:
    message = send("mail")
    browser = login("view_message")

    assert browser.get(url("message")).status_code == 200
    assert browser.get(url("message", "change", message.pk)).status_code == 200


def test_filters_do_not_count_what_they_would_find(admin_client: Client, db) -> None:
    send("mail")

    with CaptureQueriesContext(connection) as queries:
        html = admin_client.get(url("message"), {"_facets": "True"}).content.decode()

    assert "Show counts" not in html
    assert len([q for q in queries if "COUNT(" in q["sql"]]) == 1


@pytest.fixture
def two_failed(clock) -> tuple[Message, Message]:
    reasons = (FailureReason.TRANSPORT_UNAVAILABLE, FailureReason.TIMEOUT_EXCEEDED)
    down, slow = (failed(reason=reason, error=f"OSError: card {reason:d}") for reason in reasons)
    return down, slow


def test_the_list_shows_reason_and_error(admin_client: Client, two_failed) -> None:
    page = admin_client.get(url("message"), {"state": "failed"}).content.decode()

    assert '<td class="field-reason">transport unavailable</td>' in page
    assert '<td class="field-error_start">OSError: card 1</td>' in page


def test_the_list_shows_only_the_class_to_who_may_not_read_errors(login, two_failed) -> None:
    page = login("view_message").get(url("message")).content.decode()

    assert '<td class="field-reason">transport unavailable</td>' in page
    assert '<td class="field-hidden_error_start">OSError</td>' in page
    assert "card" not in page


@pytest.mark.parametrize("state", [{}, {"state": "failed"}])
@pytest.mark.parametrize("reason", ["transport_unavailable", "TRANSPORT_UNAVAILABLE", "nonsense"])
def test_the_list_is_narrowed_to_a_reason(admin_client, two_failed, reason, state) -> None:
    send("mail")

    response = admin_client.get(url("message"), {"reason": reason} | state)

    expected = [] if reason == "nonsense" else [two_failed[0].pk]
    assert shown_ids(response) == expected


def test_a_reason_without_the_failed_mark_is_found_by_its_state(admin_client, clock) -> None:
    message = send("mail")
    token = lifecycle.claim(limit=1).token
    lifecycle.abandon(token, message.pk, delay=600, error="gave up")

    given = {"state": "scheduled", "reason": "unknown"}
    assert shown_ids(admin_client.get(url("message"), given)) == [message.pk]


def test_failed_messages_of_a_queue_name_the_command_for_all_of_them(admin_client, clock) -> None:
    message = send("mail")
    lifecycle.fail(lifecycle.claim(limit=1).token, [Failure(message.pk, error="no")])
    queue = {"queue": message.queue_id, "state": "failed"}
    command = "manage.py deadletter retry --failed --queue default"

    def text(**query: str) -> str:
        return admin_client.get(url("message"), {**queue, **query}).content.decode()

    assert f"<code>{command} --why" in text()
    assert f"<code>{command} --reason unknown --why" in text(reason="unknown")
    assert "on the command line" not in text(state="pending")


def test_messages_are_filtered_by_name(admin_client: Client, clock) -> None:
    for name in ("mail", "mail", "report"):
        send(name)

    page = admin_client.get(url("message"), {"name": "mail"})

    assert [row.name for row in page.context["cl"].result_list] == ["mail", "mail"]
    (names,) = [spec for spec in page.context["cl"].filter_specs if spec.title == "name"]
    assert names.lookup_choices == [("mail", "mail"), ("report", "report")]
    assert shown_ids(admin_client.get(url("message"), {"name": "other"})) == []
    assert shown_ids(admin_client.get(url("message"), {"name": "\x00"})) == []


def test_a_name_is_looked_for_among_the_newest_and_the_oldest(
    admin_client: Client, clock, monkeypatch
) -> None:
    monkeypatch.setattr(filters, "REACH", 2)
    ids = [send("mail").pk for _ in range(6)]

    page = admin_client.get(url("message"), {"name": "mail"})

    assert shown_ids(page) == [ids[5], ids[4], ids[1], ids[0]]


def test_a_name_and_a_state_narrow_each_other(admin_client: Client, clock) -> None:
    send("mail"), send("report", delay=60)
    later = send("mail", delay=60)

    page = admin_client.get(url("message"), {"name": "mail", "state": "scheduled"})

    assert shown_ids(page) == [later.pk]


def test_messages_held_by_a_breaker_say_so(admin_client: Client, clock) -> None:
    for delay in (0, 20, 3_600):  # due, put aside by the breaker, scheduled
        send("mail", delay=delay)
    send("mail", stream="s"), send("mail", stream="s"), send("other")
    Message.objects.filter(stream="s").update(available_at=None)
    row = operations.hold_breaker("mail", by="ann")

    html = admin_client.get(url("message")).content.decode()

    shown = re.findall(r'<td class="field-when">(.*?)</td>', html)
    held = f'<a href="{url("breaker", "change", row.pk)}">held by its circuit breaker</a>'
    assert [text == held for text in reversed(shown)] == [True, True, False, False, False, False]


def test_an_open_breaker_costs_the_list_no_statement_a_row(admin_client: Client, clock) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(url("message"))
        return len(queries)

    send("mail")
    statements()
    one = statements()
    for n in range(10):
        send(f"mail-{n}")
        operations.hold_breaker(f"mail-{n}", by="ann")

    assert statements() == one
