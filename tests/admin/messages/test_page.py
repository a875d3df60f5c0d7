"""The page of a message: what it waits for, and what became of it when it is gone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from deadletter import lifecycle, operations, send
from deadletter.lifecycle import Failure
from deadletter.models import Breaker, Message, PoisonRecord, Queue, WorkerProcess
from deadletter.status import FailureReason

from ..conftest import url


def page_of(client: Client, id: int, status: int = 200) -> str:
    answer = client.get(url("message", "change", id))
    assert answer.status_code == status
    return " ".join(answer.content.decode().split())


def alive(clock) -> WorkerProcess:
    return WorkerProcess.objects.create(
        name="w",
        host="h",
        pid=1,
        version="0",
        queues=["default"],
        concurrency=1,
        started_at=clock.now,
        seen_at=clock.now,
    )


def test_a_due_message_waits_for_a_worker_and_says_since_when(admin_client: Client, clock) -> None:
    message = send("mail")
    clock.advance(12)

    nobody = page_of(admin_client, message.pk)
    alive(clock)
    somebody = page_of(admin_client, message.pk)

    assert "It waits for a worker: none is alive." in nobody
    assert "It waits for a worker to take it." in somebody
    assert "It has been due for 12 seconds." in somebody


def test_a_failed_message_waits_for_its_retry_to_the_second(admin_client: Client, clock) -> None:
    message = send("mail")
    batch = lifecycle.claim(worker="w")
    lifecycle.fail(batch.token, [Failure(message.pk, error="no", delay=42)])

    page = page_of(admin_client, message.pk)

    at = clock.now + timedelta(seconds=42)
    assert f"It waits for its retry, in 42 seconds ({at:%B}" in page.replace("Nov.", "November")
    assert f"{at:%H:%M:%S} UTC" in page
    assert "It was tried 1 of 5 times." in page


def test_a_message_that_is_handled_names_its_worker_and_lease(admin_client: Client, clock) -> None:
    message = send("mail")
    lifecycle.claim(worker="w-7", lease=30)

    page = page_of(admin_client, message.pk)

    assert "Worker w-7 is handling it." in page
    assert "Its lease ends in 30 seconds" in page


def report(clock, **given) -> dict[str, object]:
    return {"done": 37, "total": 100, "note": "reading", "at": clock.now.isoformat(), **given}


def test_the_progress_of_a_running_handler_is_shown(admin_client: Client, clock) -> None:
    message = send("mail")
    lifecycle.claim(worker="w")
    Message.objects.update(progress=report(clock))
    clock.advance(3)

    page = page_of(admin_client, message.pk)

    assert '<progress max="100" value="37" aria-label="Progress">37 %</progress>' in page
    assert "Progress: <strong>37 of 100 (37 %)</strong>, <bdi>reading</bdi>" in page
    assert f"{clock.now - timedelta(seconds=3):%H:%M:%S} UTC</time> (3 seconds ago)" in page


def test_what_a_failed_attempt_reported_is_its_last_progress(admin_client: Client, clock) -> None:
    message = send("mail")
    Message.objects.update(progress=report(clock, total=None, note=""))

    page = page_of(admin_client, message.pk)

    assert "Last progress: <strong>37 done</strong> <span" in page
    assert "<progress" not in page


@pytest.mark.parametrize(
    ("done", "total", "text"),
    [
        (12_345, 1_000_000, "12,345 of 1,000,000 (1 %)"),
        (0.5, 1, "0.5 of 1 (50 %)"),
        (12, 10, "12 of 10 (100 %)"),
        (0, 0, "0 of 0 (100 %)"),
        (10**300, 10**301, "1e+300 of 1e+301 (10 %)"),
    ],
)
def test_numbers_of_progress_are_readable(admin_client: Client, clock, done, total, text) -> None:
    message = send("mail")
    Message.objects.update(progress=report(clock, done=done, total=total))

    assert f"<strong>{text}</strong>" in page_of(admin_client, message.pk)


@pytest.mark.parametrize(
    "stored",
    ["[]", "3", '{"done": "x"}', '{"done": -1}', "{}", "null", '{"done": 1' + "0" * 5000 + "}"],
)
def test_progress_that_is_none_does_not_break_the_page(
    admin_client: Client, clock, damage, stored
) -> None:
    message = send("mail")
    damage(message, "progress", stored)

    assert "progress" not in page_of(admin_client, message.pk)


def test_without_a_report_there_is_no_progress(admin_client: Client, clock) -> None:
    message = send("mail")

    assert "rogress" not in page_of(admin_client, message.pk)


def test_the_note_is_a_text_of_the_handler_and_needs_the_permission(login, clock) -> None:
    message = send("mail")
    Message.objects.update(progress=report(clock))

    page = page_of(login("view_message"), message.pk)

    assert "<strong>37 of 100 (37 %)</strong> <span" in page
    assert "reading" not in page


def test_progress_is_shown_in_the_language_of_the_page(admin_client: Client, clock) -> None:
    message = send("mail")
    Message.objects.update(progress=report(clock, done=1_234.5, total=10_000))

    page = admin_client.get(url("message", "change", message.pk), headers={"accept-language": "de"})

    assert "Letzter Fortschritt" in page.content.decode()
    assert "<strong>1.234,5 von 10.000 (12 %)</strong>" in page.content.decode()


def test_a_message_whose_name_nobody_knows_does_not_say_that_it_failed(
    admin_client: Client, clock
) -> None:
    message = send("mail")
    batch = lifecycle.claim(worker="w")
    unknown = Failure(
        message.pk,
        error="no handler is registered for 'mail'",
        reason=FailureReason.UNREGISTERED,
        delay=4,
        deferred=True,
    )
    lifecycle.fail(batch.token, [unknown])

    page = page_of(admin_client, message.pk)

    assert "It waits for a worker that knows its name." in page
    assert "The next try is in 4 seconds" in page
    assert "its handler failed" not in page
    assert "waits for its retry" not in page


def test_a_paused_queue_and_a_breaker_are_what_a_message_waits_for(
    admin_client: Client, clock
) -> None:
    message = send("mail")
    alive(clock)
    Breaker.objects.create(
        name="mail",
        failures=3,
        error="no",
        opened_at=clock.now,
        until=clock.now + timedelta(seconds=30),
        opened_by="w",
    )

    held = page_of(admin_client, message.pk)
    clock.advance(31)
    over = page_of(admin_client, message.pk)
    Queue.objects.update(paused=True)
    paused = page_of(admin_client, message.pk)

    assert "A circuit breaker holds its name" in held
    assert "circuit breaker" not in over
    assert "Its queue is paused." in paused


def test_a_page_shows_no_empty_fields(admin_client: Client, clock) -> None:
    page = page_of(admin_client, send("mail").pk)

    for name in ("Stream", "Key", "Instance", "Expires", "Headers", "Worker", "Origin"):
        assert f"<dt>{name}</dt>" not in page
        assert f"<h2>{name}</h2>" not in page
    assert "What people did" not in page


def test_an_ended_message_says_what_became_of_it_and_who_did_what(
    admin_client: Client, clock
) -> None:
    message = send("mail")
    batch = lifecycle.claim(worker="w")
    lifecycle.fail(batch.token, [Failure(message.pk, error="no", permanent=True)])
    dead = page_of(admin_client, message.pk)
    poison = PoisonRecord.objects.get()
    operations.retry_poison([poison.pk], by="ada", why="repaired")
    batch = lifecycle.claim(worker="w")
    lifecycle.complete(batch.token, batch.ids)
    before_the_sweep = page_of(admin_client, message.pk)
    lifecycle.sweep()
    after = page_of(admin_client, message.pk)

    assert "It is dead: it is stored as a poison record." in dead
    assert url("poisonrecord", "change", poison.pk) in dead
    assert "It ended: succeeded." in before_the_sweep
    assert "It ended: succeeded." in after
    for page in (before_the_sweep, after):
        assert "by ada" in page
        assert "repaired" in page
    assert "Perhaps it was deleted" not in after


def test_a_message_that_died_into_a_dead_queue_leads_to_its_copy(
    admin_client: Client, clock
) -> None:
    graveyard = Queue.objects.create(name="graveyard")
    Queue.objects.create(name="work", on_poison="dead_queue", dead_queue=graveyard)
    message = send("mail", queue="work")
    batch = lifecycle.claim(queues=["work"], worker="w")
    lifecycle.fail(batch.token, [Failure(message.pk, error="no", permanent=True)])

    page = page_of(admin_client, message.pk)

    copy = Message.objects.get(queue=graveyard)
    assert "is in the dead queue graveyard" in page
    assert url("message", "change", copy.pk) in page


@pytest.mark.parametrize("id", ["999999", "99999999999999999999", "x"])
def test_an_id_that_nobody_knows_is_not_found(admin_client: Client, db, id) -> None:
    page = page_of(admin_client, id, status=404)

    assert "It was completed, or never existed" in page


def test_what_became_of_a_message_is_for_who_may_see_messages(login, db) -> None:
    message = send("mail")
    batch = lifecycle.claim(worker="w")
    lifecycle.fail(batch.token, [Failure(message.pk, error="secret", permanent=True)])
    poison = PoisonRecord.objects.get()

    page = page_of(login("view_message"), message.pk)

    assert "It is dead" in page
    assert url("poisonrecord", "change", poison.pk) not in page


def test_who_may_not_see_messages_learns_nothing_of_their_end(login, db) -> None:
    answer = login("view_queue").get(url("message", "change", 1))

    assert answer.status_code == 403
