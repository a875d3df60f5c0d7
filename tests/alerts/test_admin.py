"""The page of alerts: what is open, what is over, nothing to change."""

from __future__ import annotations

import html
import re

import pytest
from django.urls import reverse

from deadletter import alerts, operations, send
from deadletter.alerts.notice import path_of
from deadletter.lifecycle.groups import fold_all_groups
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


def test_a_line_begins_with_what_it_is_about_and_links_there(alert, admin_client):
    page = admin_client.get(reverse("admin:deadletter_alert_changelist")).content.decode()

    titles = re.findall(r'class="(?:sortable )?column-(\w+)', page)
    assert titles == ["subject_linked", "what", "since", "counted", "state"]
    lines = page.split("<tbody>")[1].split("<tr>")[1:]
    depth, group = (
        dict(re.findall(r'class="field-(\w+)[^"]*">(.*?)</t[dh]>', line)) for line in lines
    )
    assert path_of(alert) in html.unescape(group["subject_linked"])
    assert "<bdi>mail: UNKNOWN</bdi>" in group["subject_linked"]
    # The rule leads to the alert itself.
    assert reverse("admin:deadletter_alert_change", args=[alert.pk]) in group["what"]
    assert (group["counted"], "open" in group["state"]) == ("1", True)
    assert reverse("admin:deadletter_poisonrecord_changelist") in depth["subject_linked"]
    assert "<bdi>all queues</bdi>" in depth["subject_linked"]


def test_an_alert_about_a_queue_leads_to_that_queue(clock, rules, decide, policy, admin_client):
    policy("mails")
    rules(oldest_age={"after": 60, "queue": "mails"})
    send("mail", queue="mails")
    decide(120)

    page = admin_client.get(reverse("admin:deadletter_alert_changelist")).content.decode()

    queues = reverse("admin:deadletter_queue_changelist")
    assert f'<a href="{queues}?q=mails"><bdi>mails</bdi></a>' in page
    listed = admin_client.get(queues, {"q": "mails"}).content.decode()
    assert "1 queue" in listed


def test_a_hostile_name_is_text(alert, admin_client):
    Alert.objects.filter(pk=alert.pk).update(
        detail={"name": "<img src=x>\u202e", "exception": "<b>"}, subject='"><script>'
    )

    page = admin_client.get(reverse("admin:deadletter_alert_changelist")).content.decode()

    assert "<img src=x>" not in page
    assert '<script>"' not in page
    assert "\u202e" not in page
    assert "&lt;img src=x&gt;" in page


def test_an_alert_that_a_person_ended_says_how(alert, admin_client):
    fold_all_groups()
    operations.mute_group(alert.subject, by="ann")
    alerts.decide()

    page = admin_client.get(reverse("admin:deadletter_alert_changelist")).content.decode()

    assert '<span class="dl-state dl-state-due">muted</span>' in page


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
