"""A policy is edited in the admin, and a bad one is refused with a reason."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.db.models import ProtectedError
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import send
from deadletter.models import Queue

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


def test_a_policy_is_changed_and_the_name_is_not(admin_client: Client, db) -> None:
    queue = Queue.objects.create(name="mail")

    admin_client.post(url("queue", "change", queue.pk), form(name="post", max_attempts=""))

    queue.refresh_from_db()
    assert (queue.name, queue.max_attempts) == ("mail", None)


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"on_poison": "dead_queue"}, "dead_queue", "no dead queue is named"),
        ({"name": "a b"}, "name", "Letters, digits"),
        ({"jitter": 2}, "jitter", "less than or equal to 1"),
        ({"lease_timeout": "0"}, "lease_timeout", "longer than nothing"),
        ({"expire_timeout": "5"}, "expire_timeout", "Must not be shorter"),
        ({"backoff_base": "-5"}, "backoff_base", "valid duration"),
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


def test_a_queue_in_use_is_not_deleted_and_its_messages_are_not_loaded(
    admin_client: Client, db
) -> None:
    queue = Queue.objects.create(name="mail")
    Queue.objects.create(name="source", dead_queue=queue, on_poison="dead_queue")
    send("hello", {"secret": 1}, queue="mail")

    with CaptureQueriesContext(connection) as queries:
        response = admin_client.post(url("queue", "delete", queue.pk), {"post": "yes"})
    many = {"action": "delete_selected", "_selected_action": [queue.pk], "post": "yes"}
    admin_client.post(url("queue"), many)

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

    assert "in use and was not deleted" in response.content.decode()


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
