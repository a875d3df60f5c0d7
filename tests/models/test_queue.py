"""A policy is validated wherever it is written, in words an operator understands."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from deadletter import operations, send
from deadletter.lifecycle import claim
from deadletter.models import PoisonRecord, Queue

pytestmark = pytest.mark.django_db


def problems(error: ValidationError) -> str:
    return " ".join(" ".join(texts) for texts in error.message_dict.values())


def refused(field: str, **policy) -> str:
    """Create a queue that must be refused; return what is said about the field."""
    before = Queue.objects.count()
    with pytest.raises(ValidationError) as error:
        Queue.objects.create(name="mail", **policy)
    assert list(error.value.message_dict) == [field]
    assert Queue.objects.count() == before
    return problems(error.value)


def test_the_defaults_are_those_of_the_design():  # A12, C21, D4
    queue = Queue.objects.create(name="mail")

    assert queue.max_attempts == 5
    assert (queue.backoff_base, queue.backoff_cap) == (timedelta(seconds=30), timedelta(hours=1))
    assert (queue.jitter, queue.cooldown) == (0, None)
    assert (queue.lease_timeout, queue.expire_timeout) == (timedelta(seconds=60), None)
    assert (queue.on_poison, queue.dead_queue) == ("quarantine", None)
    assert (queue.stream_policy, queue.poison_retention, queue.paused) == ("strict", None, False)


def test_durations_may_be_given_in_seconds():
    Queue.objects.create(name="mail", backoff_base=1, backoff_cap=2.5, lease_timeout=90)

    queue = Queue.objects.get(name="mail")
    assert queue.backoff_base == timedelta(seconds=1)
    assert queue.backoff_cap == timedelta(seconds=2, milliseconds=500)
    assert queue.lease_timeout == timedelta(seconds=90)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "x" * 201, "ümlaut", "a~b", "'; --", ".a"])
def test_a_bad_name_is_refused(name):  # B10
    with pytest.raises(ValidationError) as error:
        Queue.objects.create(name=name)

    assert list(error.value.message_dict) == ["name"]


def test_a_second_queue_of_the_same_name_is_refused():
    Queue.objects.create(name="mail")

    assert refused("name") == "Queue with this Name already exists."


@pytest.mark.parametrize("number", [-1, 1_000_001, "many"])
def test_a_bad_limit_is_refused(number):  # B17
    assert refused("max_attempts", max_attempts=number)


@pytest.mark.parametrize("number", [0, 1, 1_000_000, None])
def test_every_sensible_limit_is_accepted(number):
    assert Queue.objects.create(name="mail", max_attempts=number).max_attempts == number


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_a_bad_jitter_is_refused(jitter):
    assert refused("jitter", jitter=jitter)


@pytest.mark.parametrize(
    "field",
    ["backoff_base", "backoff_cap", "cooldown", "lease_timeout", "expire_timeout",
     "poison_retention"],
)  # fmt: skip
@pytest.mark.parametrize("value", [-1, timedelta(seconds=-1), float("nan"), 1e12, "soon", True])
def test_a_bad_duration_is_refused(field, value):  # E10
    assert refused(field, **{field: value})


@pytest.mark.parametrize("field", ["on_poison", "stream_policy"])
def test_an_unknown_choice_is_refused(field):
    assert "not a valid choice" in refused(field, **{field: "explode"})


def test_a_lease_must_last():
    assert refused("lease_timeout", lease_timeout=0) == "Must be longer than 0."


def test_messages_must_not_be_dead_on_arrival():
    told = "Must be longer than 0: messages would expire when they are sent."
    assert refused("expire_timeout", expire_timeout=0) == told


def test_a_lease_must_not_outlast_the_expiry():  # B24
    text = refused("expire_timeout", lease_timeout=61, expire_timeout=60)

    assert text == "Must not be shorter than the lease timeout."
    assert Queue.objects.create(name="mail", lease_timeout=60, expire_timeout=60)


class TestDeadQueues:
    """Every configuration that would lose or chain dead messages is refused."""

    def test_a_dead_queue_is_accepted(self):  # B9
        dead = Queue.objects.create(name="dead")

        queue = Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=dead)

        assert list(dead.sources.all()) == [queue]

    def test_a_queue_is_not_its_own(self):  # B9
        queue = Queue.objects.create(name="mail")
        queue.on_poison, queue.dead_queue = "dead_queue", queue

        with pytest.raises(ValidationError) as error:
            queue.save()

        assert problems(error.value) == "A queue cannot be its own dead queue."
        assert Queue.objects.get(name="mail").dead_queue is None

    def test_a_queue_is_not_its_own_at_its_creation_either(self):  # B9
        with pytest.raises(ValidationError) as error:
            Queue(name="mail", dead_queue=Queue(name="mail")).save()

        assert problems(error.value) == "A queue cannot be its own dead queue."

    def test_one_that_is_named_without_a_policy_is_used(self):
        dead = Queue.objects.create(name="dead")

        Queue.objects.create(name="mail", dead_queue=dead)
        Queue.objects.create(name="post", dead_queue_id=dead.pk)

        assert set(dead.sources.values_list("on_poison", flat=True)) == {"dead_queue"}
        operations.create_queue("bills", dead_queue="dead")
        assert Queue.objects.get(name="bills").on_poison == "dead_queue"

    def test_one_that_is_named_later_without_a_policy_is_used(self):
        Queue.objects.create(name="dead")
        Queue.objects.create(name="mail")

        operations.set_queue("mail", dead_queue="dead")
        assert Queue.objects.get(name="mail").on_poison == "dead_queue"
        operations.set_queue("mail", on_poison="quarantine")
        operations.set_queue("mail", dead_queue="dead", on_poison="quarantine")
        assert Queue.objects.get(name="mail").on_poison == "quarantine"

    @pytest.mark.parametrize("on_poison", ["dead_queue", "discard"])
    def test_halt_needs_quarantine(self, on_poison):
        dead = Queue.objects.create(name="dead")

        text = refused("stream_policy", stream_policy="halt", on_poison=on_poison, dead_queue=dead)

        assert text == (
            f"halt needs on_poison quarantine: with {on_poison} no record is left to halt the "
            "stream."
        )

    def test_a_queue_that_halts_and_moves_since_long_can_be_paused_and_edited(self, clock):
        dead = Queue.objects.create(name="dead")
        Queue.objects.create(name="mail", dead_queue=dead)
        Queue.objects.filter(name="mail").update(stream_policy="halt")
        first, second = (send("mail", queue="mail", stream="a") for _ in range(2))

        operations.pause("mail")
        operations.set_queue("mail", max_attempts=7)
        operations.resume("mail")
        operations.poison([first.id], why="wrong")

        assert dead.messages.get().source_id == first.id
        assert claim(queues=["mail"]).ids == [second.id]

    def test_the_database_itself_refuses_that_too(self):
        queue = Queue.objects.create(name="mail")

        with pytest.raises(IntegrityError), transaction.atomic():
            Queue.objects.filter(pk=queue.pk).update(dead_queue=queue)

    def test_a_missing_one_is_refused(self):  # B9, B10
        gone = Queue.objects.create(name="gone")
        Queue.objects.filter(pk=gone.pk).delete()

        text = refused("dead_queue", on_poison="dead_queue", dead_queue=gone)

        assert "does not exist" in text

    def test_one_that_was_never_saved_is_refused(self):
        unsaved = Queue(name="unsaved")

        with pytest.raises((ValidationError, ValueError)):
            Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=unsaved)

        assert not Queue.objects.filter(name="mail").exists()

    def test_one_that_has_one_is_refused(self):  # B9, D23
        end = Queue.objects.create(name="end")
        middle = Queue.objects.create(name="middle", on_poison="dead_queue", dead_queue=end)

        text = refused("dead_queue", on_poison="dead_queue", dead_queue=middle)

        assert text == "middle already has a dead queue of its own; dead queues do not chain."

    def test_a_queue_that_is_one_gets_none(self):  # B11
        dead = Queue.objects.create(name="dead")
        Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=dead)
        dead.on_poison, dead.dead_queue = "dead_queue", Queue.objects.create(name="end")

        with pytest.raises(ValidationError) as error:
            dead.save()

        assert problems(error.value) == (
            "This queue is the dead queue of mail; dead queues do not chain."
        )

    def test_a_stale_copy_of_the_target_does_not_hide_its_own(self):
        end, middle = Queue.objects.create(name="end"), Queue.objects.create(name="middle")
        stale = Queue.objects.get(name="middle")
        middle.on_poison, middle.dead_queue = "dead_queue", end
        middle.save()

        text = refused("dead_queue", on_poison="dead_queue", dead_queue=stale)

        assert "middle already has a dead queue of its own" in text

    def test_deleting_one_in_use_is_refused(self):  # B11, D23
        dead = Queue.objects.create(name="dead")
        Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=dead)

        with pytest.raises(ProtectedError):
            dead.delete()

        assert Queue.objects.filter(name="dead").exists()

    def test_the_policy_without_the_queue_is_refused(self):
        text = refused("dead_queue", on_poison="dead_queue")

        assert text == "on_poison is dead_queue, but no dead queue is named."

    @pytest.mark.parametrize("on_poison", ["quarantine", "discard"])
    def test_the_queue_without_the_policy_is_kept_without_effect(self, clock, on_poison):
        dead = Queue.objects.create(name="dead")
        Queue.objects.create(name="mail", on_poison=on_poison, dead_queue=dead)
        message = send("mail", queue="mail")

        operations.poison([message.id], why="wrong")

        assert not dead.messages.exists()
        assert PoisonRecord.objects.count() == (on_poison == "quarantine")

    def test_one_may_be_taken_away_again(self):  # B22
        dead = Queue.objects.create(name="dead")
        queue = Queue.objects.create(name="mail", on_poison="dead_queue", dead_queue=dead)
        queue.on_poison, queue.dead_queue = "quarantine", None

        queue.save()

        dead.delete()
        assert not Queue.objects.filter(name="dead").exists()


def test_a_queue_with_messages_cannot_be_deleted(clock):
    send("mail")

    with pytest.raises(ProtectedError):
        Queue.objects.get(name="default").delete()


@pytest.mark.django_db(databases=["default", "second"])
def test_each_database_has_queues_of_its_own():
    here = Queue.objects.create(name="mail", max_attempts=1)
    there = Queue(name="mail", max_attempts=2)

    there.save(using="second")

    here.refresh_from_db()
    assert here.max_attempts == 1
    assert Queue.objects.using("second").get(name="mail").max_attempts == 2
