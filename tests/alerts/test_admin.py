"""The page of alerts: what is open, what is over, nothing to change."""

from __future__ import annotations

import pytest
from django.urls import reverse

from deadletter.models import Alert
from tests.operations.records import dead


@pytest.fixture
def alert(clock, rules, decide) -> Alert:
    rules(new_group=True, poison_depth={"above": 0})
    decide()
    dead("mail", error="<script>alert(1)</script>")
    decide()
    return Alert.objects.get(rule="new_group")


def test_alerts_are_listed_filtered_and_found(alert, admin_client):
    page = reverse("admin:deadletter_alert_changelist")

    text = admin_client.get(page).content.decode()
    assert "a new cause of death" in text
    assert "all queues" in text

    Alert.objects.filter(pk=alert.pk).update(closed_at=alert.opened_at)
    over = admin_client.get(page, {"state": "over"}).content.decode()
    assert f"/{alert.pk}/change/" in over
    assert f"/{Alert.objects.get(closed_at=None).pk}/change/" not in over
    found = admin_client.get(page, {"q": alert.subject}).content.decode()
    assert "1 alert" in found


def test_an_alert_is_shown_and_cannot_be_changed(alert, admin_client):
    page = reverse("admin:deadletter_alert_change", args=[alert.pk])

    text = admin_client.get(page).content.decode()

    assert "&lt;script&gt;" in text
    assert "<script>alert(1)" not in text
    assert admin_client.post(page, {}).status_code == 403


def test_who_may_not_look_does_not(alert, client, django_user_model):
    user = django_user_model.objects.create_user("ann", password="x", is_staff=True)
    client.force_login(user)

    assert client.get(reverse("admin:deadletter_alert_changelist")).status_code == 403
