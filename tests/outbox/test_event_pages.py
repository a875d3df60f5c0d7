"""Poison records of the outbox on the pages of the admin."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command
from django.urls import reverse

from deadletter import publish
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import OutboxMessage, PoisonRecord
from deadletter.outbox.transports.base import BrokerRefusal
from deadletter.status import FailureReason

pytestmark = pytest.mark.django_db(transaction=True)

TOO_LARGE = BrokerRefusal(FailureReason.VALIDATION_FAILURE, "too large", is_permanent=True)


@pytest.fixture
def record(broker, relay) -> PoisonRecord:
    broker.judge = staticmethod(lambda event: TOO_LARGE)
    publish("large", {"n": 1}, key="a")
    relay.turn()
    return PoisonRecord.objects.get()


def test_the_question_of_a_retry_asks_for_no_queue(record, admin_client):
    page = reverse("admin:deadletter_poisonrecord_retry", args=[record.pk])

    asked = admin_client.get(page).content.decode()

    assert 'name="queue"' not in asked
    assert "does not exist any more" not in asked


def test_a_retry_links_to_no_message(record, admin_client):
    page = reverse("admin:deadletter_poisonrecord_retry", args=[record.pk])

    answer = admin_client.post(page, {"why": "larger limit"}, follow=True).content.decode()

    assert OutboxMessage.objects.get().message_id == record.message_id
    assert "is back in the queue outbox:default" in answer
    assert "Look at it" not in answer


def test_the_question_names_a_broker_that_is_missing(record, admin_client, settings):
    settings.DEADLETTER = {}
    page = reverse("admin:deadletter_poisonrecord_retry", args=[record.pk])

    asked = admin_client.get(page).content.decode()

    assert "A retry would be refused now: there is no broker" in asked


def test_refused_events_of_a_cause_are_one_group(broker, relay, admin_client):
    broker.judge = staticmethod(lambda event: TOO_LARGE)
    for n in range(2):
        publish("large", {"n": n})
    relay.turn()
    fold_all_groups()

    groups = admin_client.get(reverse("admin:deadletter_poisonrecord_changelist"))

    assert [(line.group.name, line.count.n) for line in groups.context["groups"]] == [("large", 2)]
    fingerprint = PoisonRecord.objects.values_list("fingerprint", flat=True).distinct().get()
    assert f"poisonrecord/groups/{fingerprint}/" in groups.content.decode()


def test_an_edit_writes_a_row_of_the_outbox(record, admin_client):
    page = reverse("admin:deadletter_poisonrecord_edit", args=[record.pk])

    admin_client.post(page, {"payload": '{"n": 2}', "why": "smaller", "confirmed": "1"})

    row = OutboxMessage.objects.get()
    assert (row.pk, row.topic, row.key) == (record.source_id, "large", "a")
    assert row.payload == {"n": 2}
    assert not PoisonRecord.objects.exists()


def test_the_command_lists_shows_and_retries_a_refused_event(record, capsys):
    call_command("deadletter", "list", "--format", "json")
    (listed,) = json.loads(capsys.readouterr().out)
    call_command("deadletter", "show", str(record.pk))
    shown = capsys.readouterr().out
    call_command("deadletter", "retry", str(record.pk), "--yes")

    assert (listed["queue"], listed["name"], listed["origin"]) == (
        "outbox:default",
        "large",
        "topic:large",
    )
    assert "topic:large" in shown
    assert "VALIDATION_FAILURE" in shown
    assert OutboxMessage.objects.get().pk == record.source_id
    assert not PoisonRecord.objects.exists()
