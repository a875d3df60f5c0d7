"""A policy is edited in the admin, and a bad one is refused with a reason."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import ProtectedError
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import lifecycle, send
from deadletter.admin import counts as counting
from deadletter.lifecycle import Failure
from deadletter.models import AuditEntry, Message, Queue

from .conftest import url


def form(**changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "name": "mail",
        "max_attempts": 3,
        "backoff_base": "30",
        "backoff_cap": "3600",
        "jitter": 0,
        "cooldown": "",
        "lease_timeout": "60",
        "expire_timeout": "",
        "on_poison": "quarantine",
        "dead_queue": "",
        "poison_retention": "",
        "stream_policy": "strict",
    }
    return values | changes


def test_a_queue_is_created(admin_client: Client, db) -> None:
    response = admin_client.post(url("queue", "add"), form())

    assert response.status_code == 302
    assert Queue.objects.get(name="mail").max_attempts == 3
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.selection) == ("edit_queue", "admin", {"queue": "mail"})


def test_a_policy_is_changed_and_the_name_is_not(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail")

    admin_client.post(url("queue", "change", queue.pk), form(name="post", max_attempts=""))

    queue.refresh_from_db()
    assert (queue.name, queue.max_attempts) == ("mail", None)


def test_a_dead_queue_that_is_chosen_is_used(admin_client: Client, db) -> None:
    dead = Queue.objects.create(name="dead")
    queue = Queue.objects.create(name="post")

    admin_client.post(url("queue", "add"), form(dead_queue=dead.pk))
    admin_client.post(
        url("queue", "change", queue.pk), form(name="post", max_attempts=5, dead_queue=dead.pk)
    )

    assert set(dead.sources.values_list("on_poison", flat=True)) == {"dead_queue"}
    assert dead.sources.count() == 2
    # Named by itself, another policy stays: the dead queue is only remembered.
    admin_client.post(url("queue", "change", queue.pk), form(name="post", dead_queue=dead.pk))
    queue.refresh_from_db()
    assert queue.on_poison == "quarantine"


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        (
            {"stream_policy": "halt", "on_poison": "discard"},
            "stream_policy",
            "halt needs on_poison quarantine",
        ),
        ({"on_poison": "dead_queue"}, "dead_queue", "no dead queue is named"),
        ({"name": "a b"}, "name", "Letters, digits"),
        ({"jitter": 2}, "jitter", "less than or equal to 1"),
        ({"lease_timeout": "0"}, "lease_timeout", "longer than 0"),
        ({"expire_timeout": "5"}, "expire_timeout", "Must not be shorter"),
        ({"backoff_base": "-5"}, "backoff_base", "Enter a duration"),
        ({"cooldown": "-1:00:00"}, "cooldown", "Enter a duration"),
        ({"unregistered_attempts": "-1"}, "unregistered_attempts", "greater than or equal to 0"),
        ({"reason_policies": "{"}, "reason_policies", "valid JSON"),
        ({"reason_policies": "[1]"}, "reason_policies", "expected an object"),
        (
            {"reason_policies": '{"UNKNOWN": {"backoff_base": -1}}'},
            "reason_policies",
            "UNKNOWN: backoff_base: ",
        ),
    ],
)
def test_a_bad_policy_is_a_form_error(
    admin_client: Client, db, changes: dict[str, object], field: str, text: str
) -> None:
    response = admin_client.post(url("queue", "add"), form(**changes))

    assert response.status_code == 200
    assert text in str(response.context["adminform"].form.errors[field])
    assert not Queue.objects.filter(name="mail").exists()


def test_every_rule_of_dead_queues_is_a_form_error(admin_client: Client, db) -> None:
    graveyard = Queue.objects.create(name="graveyard")
    source = Queue.objects.create(name="source", dead_queue=graveyard, on_poison="dead_queue")

    def errors(queue: Queue, target: Queue) -> str:
        data = form(name=queue.name, on_poison="dead_queue", dead_queue=target.pk)
        response = admin_client.post(url("queue", "change", queue.pk), data)
        return str(response.context["adminform"].form.errors["dead_queue"])

    assert "its own dead queue" in errors(source, source)
    assert "dead queue of source" in errors(graveyard, Queue.objects.get(name="default"))
    assert "source already has a dead queue" in errors(Queue.objects.create(name="new"), source)


def test_a_rule_broken_by_an_edit_in_the_meantime_is_told(
    admin_client: Client, db, monkeypatch
) -> None:
    def refuse(self: Queue, *args: object, **kwargs: object) -> None:
        raise ValidationError({"dead_queue": ["dead queues do not chain."]})

    monkeypatch.setattr(Queue, "save", refuse)

    response = admin_client.post(url("queue", "add"), form(), follow=True)

    assert "Dead queues do not chain." in response.content.decode()


def test_an_unused_queue_is_deleted(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail")

    admin_client.post(url("queue", "delete", queue.pk), {"post": "yes"})

    assert not Queue.objects.filter(name="mail").exists()
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.selection, entry.done) == (
        "edit_queue",
        "admin",
        {"queue": "mail"},
        1,
    )
    assert (entry.detail["deleted"], entry.detail["max_attempts"]) == ("True", "5")


def test_a_queue_in_use_is_not_deleted_and_its_messages_are_not_loaded(
    admin_client: Client, db
) -> None:
    queue = Queue.objects.create(name="mail")
    Queue.objects.create(name="source", dead_queue=queue, on_poison="dead_queue")
    send("hello", {"secret": 1}, queue="mail")

    with CaptureQueriesContext(connection) as queries:
        response = admin_client.post(url("queue", "delete", queue.pk), {"post": "yes"})
    many = {"action": "delete_selected", "_selected_action": [queue.pk], "post": "yes"}
    assert admin_client.post(url("queue"), many).status_code == 200

    html = response.content.decode()
    assert "mail is the dead queue of source" in html
    assert "mail has messages in it" in html
    assert Queue.objects.filter(name="mail").exists()
    assert not [q for q in queries if '"payload"' in q["sql"]]


def test_a_queue_that_came_into_use_in_the_meantime_stays(
    admin_client: Client, db, monkeypatch
) -> None:
    queue = Queue.objects.create(name="mail")

    def refuse(self: Queue, *args: object, **kwargs: object) -> None:
        raise ProtectedError("in use", set())

    monkeypatch.setattr(Queue, "delete", refuse)

    response = admin_client.post(url("queue", "delete", queue.pk), {"post": "yes"}, follow=True)

    assert "The queue was not deleted. in use" in response.content.decode()


def test_limits_of_unknown_names_and_policies_by_reason_are_edited_and_audited(
    admin_client: Client, db
) -> None:
    queue = Queue.objects.create(name="mail", max_attempts=3)
    page = url("queue", "change", queue.pk)
    policies = '{"VALIDATION_FAILURE": {"max_attempts": 1}}'

    admin_client.post(page, form(unregistered_attempts=8, reason_policies=policies))

    queue.refresh_from_db()
    assert (queue.unregistered_attempts, queue.reason_policies) == (
        8,
        {"VALIDATION_FAILURE": {"max_attempts": 1}},
    )
    assert AuditEntry.objects.get().detail == {
        "unregistered_attempts": "None → 8",
        "reason_policies": f"{{}} → {policies}",
    }
    html = admin_client.get(page).content.decode()
    assert "VALIDATION_FAILURE" in html
    assert (
        "different limits for some failure reasons"
        in admin_client.get(url("queue")).content.decode()
    )


def test_the_list_shows_the_policies(admin_client: Client, db) -> None:
    response = admin_client.get(url("queue"))

    assert response.status_code == 200
    assert "default" in response.content.decode()


def test_viewing_is_not_changing(login, db) -> None:
    queue = Queue.objects.get(name="default")
    browser = login("view_queue")

    response = browser.post(url("queue", "change", queue.pk), form(max_attempts=1))

    queue.refresh_from_db()
    assert response.status_code == 403
    assert queue.max_attempts == 5


def test_only_what_was_edited_is_written_and_audited(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail", max_attempts=5, jitter=0)
    data = form(max_attempts=9, why="slow partner")
    # Somebody else edits while the form is open.
    page = url("queue", "change", queue.pk)
    admin_client.get(page)

    admin_client.post(page, data)

    entry = AuditEntry.objects.get()
    assert (entry.why, list(entry.detail)) == ("slow partner", ["max_attempts"])
    assert LogEntry.objects.get().user.username == "admin"


def test_a_form_that_changes_nothing_writes_nothing(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail", max_attempts=3)

    response = admin_client.post(url("queue", "change", queue.pk), form())

    assert response.status_code == 302
    assert AuditEntry.objects.count() == 0


def test_a_queue_is_paused_and_resumed_after_asking(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail")
    pause, resume = url("queue", "pause", queue.pk), url("queue", "resume", queue.pk)

    asked = admin_client.get(pause).content.decode()
    queue.refresh_from_db()
    assert "No worker takes messages from queue mail until it is resumed." in asked
    assert not queue.paused

    admin_client.post(pause, {"why": "maintenance"})
    queue.refresh_from_db()
    assert queue.paused
    page = admin_client.get(url("queue", "change", queue.pk)).content.decode()
    assert "This queue is paused" in page
    assert resume in page

    admin_client.post(resume)
    queue.refresh_from_db()
    assert not queue.paused
    entries = AuditEntry.objects.order_by("pk").values_list("act", "by", "why")
    assert list(entries) == [("pause", "admin", "maintenance"), ("resume", "admin", "")]
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("page", ["pause", "resume"])
def test_pausing_is_a_right_of_its_own(login, db, page: str) -> None:
    queue = Queue.objects.create(name="mail")
    browser = login("view_queue", "change_queue", "add_queue", "delete_queue")
    here = url("queue", page, queue.pk)

    assert browser.get(here).status_code == 403
    assert browser.post(here).status_code == 403
    assert here not in browser.get(url("queue", "change", queue.pk)).content.decode()
    assert AuditEntry.objects.count() == 0


def test_who_may_pause_need_not_be_able_to_edit(login, db) -> None:
    queue = Queue.objects.create(name="mail")
    browser = login("view_queue", "pause_queue")

    browser.post(url("queue", "pause", queue.pk))
    browser.post(url("queue", "change", queue.pk), form(max_attempts=1))

    queue.refresh_from_db()
    assert (queue.paused, queue.max_attempts) == (True, 5)


def test_pausing_a_queue_that_is_gone_is_not_found(admin_client: Client, db) -> None:
    assert admin_client.post(url("queue", "pause", 987_654)).status_code == 404


@pytest.mark.slow
def test_the_counts_lead_to_the_rows_behind_them(admin_client: Client, poisoned, clock) -> None:
    poisoned("dead")
    failed = send("failed")
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(failed.pk, error="no")])
    send("active")
    lifecycle.claim(limit=1, worker="w")
    send("later", delay=60)
    send("due", priority=9)
    blocked = send("blocked", stream="s")
    Message.objects.filter(pk=blocked.pk).update(available_at=None)
    queue = Queue.objects.get(name="default")

    page = admin_client.get(url("queue", "change", queue.pk))
    listed = admin_client.get(url("queue")).content.decode()

    counts = {str(count["label"]): count for count in page.context["counts"]}
    assert {label: count["n"].n for label, count in counts.items()} == dict.fromkeys(counts, 1)
    for label, count in counts.items():
        assert count["url"].replace("&", "&amp;") in listed
        response = admin_client.get(count["url"])
        assert response.status_code == 200
        if label == "dead":
            assert "<bdi>dead</bdi>" in response.content.decode()
            continue
        rows = response.context["cl"].result_list
        assert [row.name.replace("later", "scheduled") for row in rows] == [
            label.replace("pending", "due")
        ]


def test_counts_stop_at_their_limit(admin_client: Client, db, monkeypatch) -> None:
    monkeypatch.setattr("deadletter.admin.queues.ON_A_PAGE", 2)
    for _ in range(3):
        send("due")
        send("later", delay=600)
    queue = Queue.objects.get(name="default")

    with CaptureQueriesContext(connection) as queries:
        page = admin_client.get(url("queue", "change", queue.pk))

    counts = {str(count["label"]): str(count["n"]) for count in page.context["counts"]}
    assert (counts["pending"], counts["scheduled"], counts["failed"]) == ("2+", "2+", "0")
    assert str(counting.Capped(10_000, True)) == "10,000+"
    counted = [q["sql"] for q in queries if "COUNT(" in q["sql"] and "message" in q["sql"]]
    assert counted
    # The second look tells apart those that wait.
    assert all("LIMIT 3" in sql or "LIMIT 10001" in sql for sql in counted)


def test_a_deletion_that_is_refused_is_told_in_a_plain_sentence(admin_client, db):
    send("mail")
    queue = Queue.objects.get(name="default")

    page = admin_client.get(url("queue", "delete", queue.pk)).content.decode()

    assert "The queue “default” is in use, so it is not deleted. Nothing was changed." in page
    assert "default has messages in it" in page
    assert "protected related objects" not in page


def test_durations_are_shown_as_people_read_them_and_taken_back(admin_client: Client, db) -> None:
    queue = Queue.objects.create(
        name="mail", backoff_base="1m30s", poison_retention=timedelta(days=30), cooldown="1.5h"
    )
    page = admin_client.get(url("queue", "change", queue.pk))
    shown = page.context["adminform"].form
    fields = ("backoff_base", "backoff_cap", "cooldown", "lease_timeout", "poison_retention")
    assert [shown[field].value() for field in fields] == ["1m30s", "1h", "1h30m", "1m", "30d"]
    assert 'value="1m30s"' in page.content.decode()

    values = {field: shown[field].value() for field in shown.fields}
    sent = {field: "" if value is None else value for field, value in values.items()}
    response = admin_client.post(url("queue", "change", queue.pk), sent)
    assert response.status_code == 302
    assert not AuditEntry.objects.exists()

    admin_client.post(url("queue", "change", queue.pk), sent | {"cooldown": "2h", "why": "slow"})
    queue.refresh_from_db()
    assert (queue.cooldown, queue.backoff_base) == (timedelta(hours=2), timedelta(seconds=90))
    assert AuditEntry.objects.get().detail["cooldown"] == "1h30m → 2h"


def test_who_may_only_look_reads_durations_the_same_way(client, db, django_user_model) -> None:
    queue = Queue.objects.create(name="mail", backoff_base="1m30s")
    user = django_user_model.objects.create_user("eve", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_queue"))
    client.force_login(user)

    text = client.get(url("queue", "change", queue.pk)).content.decode()

    assert "1m30s" in text
    assert "0:01:30" not in text
