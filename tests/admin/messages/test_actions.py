"""Acts on messages ask first, say what they will do, need a right, and leave a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from deadletter import lifecycle, operations, send
from deadletter.lifecycle import Failure
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue

from ..conftest import SCRIPT, url

ACTS = ["retry-now", "release", "poison", "remove"]
RIGHTS = {"retry-now": "retry_poison", "release": "retry_poison"}
RIGHTS |= {"poison": "remove_poison", "remove": "remove_poison"}


def act_url(slug: str, *messages: Message) -> str:
    ids = ",".join(str(message.pk) for message in messages)
    return reverse("admin:deadletter_message_act", args=[slug]) + f"?ids={ids}"


def answer(slug: str, browser: Client, *messages: Message, why: str = "", **given: Any) -> Any:
    ids = ",".join(str(message.pk) for message in messages)
    return browser.post(act_url(slug), {"ids": ids, "why": why, **given}, follow=True)


@pytest.fixture
def failed(db: None) -> Callable[..., Message]:
    """Send a message and let its first attempt fail."""

    def fail(name: str = "mail", payload: Any = None, **given: Any) -> Message:
        message = send(name, payload, **given)
        batch = lifecycle.claim(limit=1, worker="w1")
        lifecycle.fail(batch.token, [Failure(message.pk, error="no")])
        return message

    return fail


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_a_failed_message_is_retried_now(admin_client: Client, failed, counts) -> None:
    message = failed()
    other = failed("other")

    page = admin_client.get(act_url("retry-now", message)).content.decode()
    assert "1 message becomes due at once" in page
    assert counts() == {"failed": 2}
    response = answer("retry-now", admin_client, message, why="the bug is fixed")

    assert told(response) == ["1 message is due now."]
    assert counts() == {"pending": 1, "failed": 1}
    other.refresh_from_db()
    assert other.attempts == 1
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.why, entry.done) == (
        "retry_now",
        "admin",
        "the bug is fixed",
        1,
    )
    assert LogEntry.objects.get().get_change_message() == "Retry now: the bug is fixed"


def test_what_was_never_tried_is_named_and_left_alone(admin_client: Client, failed) -> None:
    message = failed("wanted")
    due = send("due")

    page = admin_client.get(act_url("retry-now", due, message)).content.decode()
    response = answer("retry-now", admin_client, due, message)

    why = f"essage {due.pk} is pending and was never tried; there is nothing to retry"
    assert f"M{why}" in page
    assert f'name="ids" value="{message.pk}"' in page
    assert told(response) == [
        "1 message is due now.",
        f"Refused: m{why}.",
    ]


@pytest.mark.parametrize("given", [{}, {"keep_attempts": "on"}])
def test_the_number_of_attempts_can_be_kept(admin_client: Client, failed, counts, given) -> None:
    message = failed()

    page = admin_client.get(act_url("retry-now", message)).content.decode()
    assert '<input type="checkbox" name="keep_attempts" id="id_keep_attempts">' in page
    assert "keep_attempts" not in admin_client.get(act_url("remove", message)).content.decode()
    answer("retry-now", admin_client, message, **given)

    message.refresh_from_db()
    assert counts() == {"pending": 1}
    assert message.attempts == (1 if given else 0)


def test_what_was_abandoned_and_what_is_due_again_are_retried_now(
    admin_client: Client, clock, failed, counts
) -> None:
    due = failed()
    clock.advance(60)
    given_up = send("mail", priority=-1)
    token = lifecycle.claim(limit=1).token
    lifecycle.abandon(token, given_up.pk, delay=600, error="gave up")
    assert counts() == {"pending": 1, "scheduled": 1}

    assert "Retry now" in admin_client.get(url("message", "change", given_up.pk)).content.decode()
    response = answer("retry-now", admin_client, due, given_up)

    assert told(response) == ["2 messages are due now."]
    assert counts() == {"pending": 2}
    assert set(Message.objects.values_list("attempts", flat=True)) == {0}


def test_a_blocked_message_is_released_by_name(admin_client: Client, policy, counts) -> None:
    policy(max_attempts=5)
    first, second = send("a", stream="s"), send("b", stream="s")
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(first.pk, error="no")])
    lifecycle.claim(limit=5, worker="w")
    assert counts() == {"failed": 1, "blocked": 1}

    response = answer("release", admin_client, second, why="urgent")

    assert told(response) == ["1 message was released."]
    assert counts() == {"failed": 1, "pending": 1}


def test_release_is_refused_where_nothing_holds(admin_client: Client, db) -> None:
    message = send("mail")

    page = admin_client.get(act_url("release", message)).content.decode()

    assert f"Message {message.pk} belongs to no stream" in page
    assert "There is nothing to do." in page
    assert 'type="submit" value="Release' not in page


def test_poison_by_hand_needs_a_reason(admin_client: Client, counts) -> None:
    message = send("mail")

    response = answer("poison", admin_client, message)

    assert "Say why" in response.content.decode()
    assert counts() == {"pending": 1}

    answer("poison", admin_client, message, why="customer left")

    assert counts() == {"dead": 1}
    record = PoisonRecord.objects.get()
    assert (record.verdict, record.poisoned_by) == ("customer left", "admin")


@pytest.mark.parametrize(
    ("policy_of_queue", "text"),
    [
        ({}, "becomes a poison record"),
        ({"on_poison": "discard"}, "is DISCARDED"),
        ({"on_poison": "dead_queue"}, "is moved to the dead queue grave"),
    ],
)
def test_poison_by_hand_says_where_the_policy_sends_it(
    admin_client: Client, db, policy_of_queue: dict[str, str], text: str
) -> None:
    if policy_of_queue.get("on_poison") == "dead_queue":
        policy_of_queue["dead_queue"] = Queue.objects.create(name="grave")
    Queue.objects.create(name="q", **policy_of_queue)
    message = send("mail", queue="q")

    assert text in admin_client.get(act_url("poison", message)).content.decode()


def test_a_message_is_removed_for_good(admin_client: Client, counts) -> None:
    message, other = send("mail"), send("other")
    page = url("message", "change", message.pk)

    response = answer("remove", admin_client, message, next=page)

    assert told(response) == ["1 message was removed."]
    assert response.redirect_chain == [(url("message"), 302)]
    assert Message.objects.get() == other


def test_what_a_worker_handles_is_left_alone(admin_client: Client, db) -> None:
    message = send("mail")
    lifecycle.claim(limit=1, worker="w")

    for slug in ("poison", "remove"):
        response = answer(slug, admin_client, message, why="x")
        assert f"message {message.pk} is active; wait for its lease to end" in told(response)[0]
    assert Message.objects.count() == 1


def test_the_second_of_two_operators_is_told(admin_client: Client, db) -> None:
    message = send("mail")
    answer("remove", admin_client, message)

    assert told(answer("remove", admin_client, message)) == [
        "1 message is not in a queue any more."
    ]


def test_the_actions_of_the_list_lead_to_the_question(admin_client: Client, db) -> None:
    first, second = send("a"), send("b")
    data = {"action": "remove", "_selected_action": [first.pk, second.pk]}

    response = admin_client.post(url("message"), data)

    assert response.status_code == 302
    page = admin_client.get(response.url).content.decode()
    assert "2 messages are removed for good" in page
    assert Message.objects.count() == 2


@pytest.mark.parametrize("slug", ACTS)
def test_every_act_needs_its_right(login, db, slug: str) -> None:
    message = send("mail", stream="s")
    rest = set(RIGHTS.values()) - {RIGHTS[slug]}
    browser = login("view_message", *rest)

    assert browser.get(act_url(slug, message)).status_code == 403
    assert answer(slug, browser, message, why="x").status_code == 403
    listed = browser.post(
        url("message"), {"action": slug.replace("-", "_"), "_selected_action": [message.pk]}
    )
    assert listed.status_code in (200, 302)
    assert "/act/" not in listed.get("Location", "")
    assert (Message.objects.count(), AuditEntry.objects.count()) == (1, 0)
    page = browser.get(url("message", "change", message.pk)).content.decode()
    assert f"/act/{slug}/" not in page


@pytest.mark.parametrize("slug", ACTS)
def test_the_right_to_act_is_not_the_right_to_look(login, db, slug: str) -> None:
    message = send("mail", stream="s")
    browser = login(RIGHTS[slug])

    assert answer(slug, browser, message, why="x").status_code == 403


@pytest.mark.parametrize("slug", ACTS)
def test_an_act_without_its_token_is_refused(admin_user, db, slug: str) -> None:
    message = send("mail", stream="s")
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)

    assert answer(slug, browser, message, why="x").status_code == 403
    assert Message.objects.count() == 1


@pytest.mark.parametrize("ids", ["", "x", "-1", "1,2,3", "9" * 30, "1;DROP", "0" * 50])
def test_odd_ids_find_nothing(admin_client: Client, db, ids: str) -> None:
    here = reverse("admin:deadletter_message_act", args=["remove"])

    assert admin_client.get(here, {"ids": ids}).status_code == 200
    assert admin_client.post(here, {"ids": ids}).status_code == 302


def test_an_act_nobody_knows_is_not_found(admin_client: Client, db) -> None:
    assert admin_client.get(act_url("explode")).status_code == 404


@pytest.mark.parametrize("place", ["https://evil.example/", "//evil.example", "javascript:run()"])
def test_the_way_back_stays_on_this_site(admin_client: Client, db, place: str) -> None:
    message = send("mail")

    page = admin_client.get(act_url("remove", message) + f"&next={place}").content.decode()
    response = answer("remove", admin_client, message, next=place)

    assert place not in page
    assert response.redirect_chain[0][0] == url("message")


def test_hostile_names_are_shown_and_not_run(admin_client: Client, db) -> None:
    message = send("mail", stream=SCRIPT)

    for slug in ACTS:
        page = admin_client.get(act_url(slug, message)).content.decode()
        assert "<script>alert" not in page
    answer("poison", admin_client, message, why=SCRIPT)
    assert "<script>alert" not in admin_client.get(url("message")).content.decode()
    assert operations.trail(message.pk)[0].entry.why == SCRIPT


def test_payloads_are_seen_only_with_the_right_and_redacted(login, admin_client, db) -> None:
    message = send("mail", {"city": "Rome", "password": "hunter2"}, headers={"token": "t0p"})
    page = url("message", "change", message.pk)

    full = admin_client.get(page).content.decode()
    assert "Rome" in full
    assert "hunter2" not in full
    assert "t0p" not in full
    assert "[redacted]" in full
    bare = login("view_message").get(page).content.decode()
    assert "Rome" not in bare
    assert "You may not see payloads." in bare


def test_a_blocked_message_says_what_it_waits_for(admin_client: Client, db) -> None:
    first, second = send("first", stream="s"), send("second", stream="s")
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(first.pk, error="no")])
    lifecycle.claim(limit=5, worker="w")

    page = admin_client.get(url("message", "change", second.pk)).content.decode()

    assert f"first #{first.pk} comes first; it waits until" in page
    assert url("message", "change", first.pk) in page


def test_what_people_did_is_on_the_page(admin_client: Client, failed) -> None:
    message = failed()
    answer("retry-now", admin_client, message, why="once more")

    page = admin_client.get(url("message", "change", message.pk)).content.decode()

    assert "once more" in page
