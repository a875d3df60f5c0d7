"""Queues declared in settings exist after migrate; from then on the row is the truth."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command

from deadletter.models import Queue

pytestmark = pytest.mark.django_db


def migrate() -> None:
    call_command("migrate", verbosity=0)


def test_a_default_queue_exists_without_being_declared(settings):
    del settings.DEADLETTER
    Queue.objects.all().delete()

    migrate()

    assert list(Queue.objects.values_list("name", flat=True)) == ["default"]


def test_declared_queues_are_created_with_their_policy(settings):
    settings.DEADLETTER = {
        "QUEUES": {"mail": {"max_attempts": 3, "backoff_base": 10, "stream_policy": "halt"}}
    }

    migrate()

    queue = Queue.objects.get(name="mail")
    assert (queue.max_attempts, queue.stream_policy) == (3, "halt")
    assert queue.backoff_base.total_seconds() == 10


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ({}, (5, 10)),
        ({"max_attempts": 5}, (5, None)),
        ({"max_attempts": None}, (None, None)),
        ({"unregistered_attempts": 3}, (5, 3)),
        ({"unregistered_attempts": None}, (5, None)),
    ],
)
def test_a_queue_that_names_no_attempts_waits_five_minutes_for_a_handler(settings, policy, limits):
    settings.DEADLETTER = {"QUEUES": {"mail": policy}}

    migrate()

    queue = Queue.objects.get(name="mail")
    assert (queue.max_attempts, queue.unregistered_attempts) == limits
    assert Queue(name="by.hand").unregistered_attempts is None


def test_policies_by_reason_are_declared_with_durations(settings):
    policies = {"TRANSPORT_UNAVAILABLE": {"max_attempts": 20, "backoff_base": timedelta(seconds=5)}}
    settings.DEADLETTER = {"QUEUES": {"mail": {"reason_policies": policies}}}

    migrate()

    assert Queue.objects.get(name="mail").reason_policies == {
        "TRANSPORT_UNAVAILABLE": {"max_attempts": 20, "backoff_base": 5.0}
    }


def test_what_an_operator_edited_is_not_overwritten(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {"max_attempts": 3}}}
    migrate()
    Queue.objects.filter(name="mail").update(max_attempts=9, paused=True)

    migrate()

    queue = Queue.objects.get(name="mail")
    assert (queue.max_attempts, queue.paused) == (9, True)


def test_a_queue_no_longer_declared_stays(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {}}}
    migrate()
    settings.DEADLETTER = {}

    migrate()

    assert Queue.objects.filter(name="mail").exists()


def test_a_dead_queue_may_be_declared_in_any_order(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {"dead_queue": "zombies"}, "zombies": {}}}

    migrate()

    queue = Queue.objects.get(name="mail")
    assert (queue.dead_queue.name, queue.on_poison) == ("zombies", "dead_queue")


def test_a_queue_declared_as_its_own_dead_queue_is_told_so(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {"dead_queue": "mail"}}}

    with pytest.raises(ValueError, match="cannot be its own dead queue"):
        migrate()


def test_a_policy_that_is_named_with_a_dead_queue_is_kept_as_it_is_named(settings):
    declared = {"dead_queue": "zombies", "on_poison": "quarantine"}
    settings.DEADLETTER = {"QUEUES": {"mail": declared, "zombies": {}}}

    migrate()

    assert Queue.objects.get(name="mail").on_poison == "quarantine"


def test_a_dead_queue_that_does_not_exist_is_refused_by_name(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {"dead_queue": "nowhere"}}}

    with pytest.raises(Exception, match="nowhere"):
        migrate()

    assert not Queue.objects.filter(name="mail").exists()


def test_a_bad_policy_is_refused(settings):
    settings.DEADLETTER = {"QUEUES": {"mail": {"lease_timeout": 100, "expire_timeout": 1}}}

    with pytest.raises(ValidationError):
        migrate()

    assert not Queue.objects.filter(name="mail").exists()
