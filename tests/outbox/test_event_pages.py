"""Poison records of the outbox on the pages of the admin."""

from __future__ import annotations

import pytest
from django.urls import reverse

from deadletter import publish
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
