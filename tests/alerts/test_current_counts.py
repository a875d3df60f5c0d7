"""The numbers of a notice are those of the moment it is delivered, not of the decision."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from django.core import mail as django_mail
from django.db import DatabaseError
from django.urls import reverse

from deadletter import operations, testing
from deadletter.alerts import current_counts
from deadletter.models import Alert, PoisonRecord
from tests.cli.conftest import *  # noqa: F403
from tests.operations.records import dead, many_dead

from .conftest import SECRET, notices
from .servers import http_server

pytestmark = pytest.mark.slow


def subjects() -> list[str]:
    """Deliver what waits; return the subjects of the mails."""
    django_mail.outbox.clear()
    testing.drain(["deadletter"])
    return [mail.subject for mail in django_mail.outbox]


def remove_all_but(kept: int) -> None:
    ids = list(PoisonRecord.objects.order_by("id").values_list("pk", flat=True))
    operations.remove_poison(ids[kept:])


def test_a_notice_counts_what_died_between_the_decision_and_its_delivery(clock, rules, decide):
    rules(new_group=True)
    decide()
    many_dead(1, poisoned_at=clock.now)
    decide()
    assert notices()[0]["alerts"][0]["count"] == 1

    many_dead(4_999, first=2_000_000, poisoned_at=clock.now)

    assert subjects() == ["deadletter: new: mail dies of Boom (5,000 so far)"]
    assert "  still there: 5,000" in django_mail.outbox[0].body


def test_a_late_notice_says_how_many_are_left(clock, rules, decide):
    rules(new_group=True)
    decide()
    many_dead(20, poisoned_at=clock.now)
    decide()

    remove_all_but(3)

    assert subjects() == ["deadletter: new: mail dies of Boom (20 so far)"]
    assert "  still there: 3" in django_mail.outbox[0].body


def test_the_largest_cause_is_in_the_subject_and_none_of_the_listed_ones_is_smaller(
    clock, rules, decide
):
    rules(new_group=True)
    decide()
    # 25 small causes that began before the large one: the notice lists 20 of the 26.
    at = clock.now
    clock.advance(1)
    for n in range(25):
        many_dead(
            1, first=n * 1_000 + 1, name=f"small.{n}", fingerprint=f"{n:016d}", poisoned_at=at
        )
    many_dead(500, first=500_000, name="large", fingerprint="f" * 16, poisoned_at=clock.now)
    decide()
    assert notices()[0]["alerts"][0]["name"] == "large"

    # It is another one by the time of the delivery.
    small = notices()[0]["alerts"][1]
    many_dead(
        900, first=800_000, name=small["name"], fingerprint=small["subject"], poisoned_at=clock.now
    )

    [subject] = subjects()
    assert subject == f"deadletter: new: {small['name']} dies of Boom (901 so far) (and 25 more)"


def test_a_queue_with_many_dead_letters_names_the_cause_of_most(clock, rules, decide):
    rules(poison_depth={"above": 10}, poison_rate={"above": 10, "within": 300})
    decide()
    many_dead(30, name="orders.ship", exception="Timeout", poisoned_at=clock.now)
    # The newest is not the largest.
    clock.advance(1)
    many_dead(2, first=2_000_000, fingerprint="1" * 16, poisoned_at=clock.now)
    decide()

    subjects()

    lines = django_mail.outbox[0].body.splitlines()
    mostly = "more than 10; mostly orders.ship dies of Timeout"
    assert f"new: queue *: 32 dead letters of the last 5 min, {mostly}" in lines
    assert f"new: queue *: 32 dead letters, {mostly}" in lines


def test_an_end_with_dead_letters_left_is_quiet_and_not_over(clock, rules, decide):
    rules(new_group=True, recover_after=60)
    decide()
    many_dead(20, poisoned_at=clock.now)
    decide()
    subjects()
    remove_all_but(12)
    decide(100)

    assert subjects() == [
        "deadletter: quiet, 12 still dead: mail dies of Boom (20 so far)",
    ]
    body = django_mail.outbox[0].body
    assert "quiet since: " in body
    assert "over" not in body


def test_an_end_with_nothing_left_is_over(clock, rules, decide):
    rules(new_group=True, recover_after=60)
    decide()
    many_dead(20, poisoned_at=clock.now)
    decide()
    subjects()
    remove_all_but(0)
    decide(100)

    assert subjects() == ["deadletter: over: mail dies of Boom (20 so far)"]
    assert "over since: " in django_mail.outbox[0].body


def test_the_webhook_keeps_its_keys_and_gets_what_is_left(clock, rules, decide):
    with http_server() as receiver:
        channel = {"type": "webhook", "url": receiver.url, "secret": SECRET}
        rules(new_group=True, channels={"hook": channel})
        decide()
        many_dead(2, poisoned_at=clock.now)
        decide()
        [decided] = notices()[0]["alerts"]
        testing.drain(["deadletter"])
        [told] = receiver.accepted()[0]["alerts"]

    assert told.keys() == decided.keys()
    assert {"event", "key", "count", "more", "new", "url", "title"} < told.keys()
    assert (told["event"], told["count"], told["left"], told["left_more"]) == (
        "raised",
        2,
        2,
        False,
    )


def test_a_notice_that_cannot_be_recounted_is_told_with_the_numbers_of_its_decision(
    clock, rules, decide, monkeypatch
):
    rules(new_group=True)
    decide()
    many_dead(3, poisoned_at=clock.now)
    decide()

    def refuse(*args, **kwargs):
        raise DatabaseError("canceling statement due to statement timeout")

    monkeypatch.setattr(current_counts, "left_of", refuse)

    assert subjects() == ["deadletter: new: mail dies of Boom (3 so far)"]


@pytest.mark.parametrize("left", [0, 1])
def test_the_records_of_an_alert_are_there_and_later_the_page_says_what_was(
    clock, rules, decide, admin_client, left
):
    rules(new_group=True, base_url="https://shop.example.org")
    decide()
    dead("orders.ship")
    dead("orders.ship")
    decide()
    fingerprint = PoisonRecord.objects.first().fingerprint
    url = notices()[0]["alerts"][0]["url"]
    assert urlsplit(url).path == reverse("admin:deadletter_poisonrecord_group", args=[fingerprint])
    records = f"{reverse('admin:deadletter_poisonrecord_records')}?fingerprint={fingerprint}"
    assert admin_client.get(records).content.decode().count('class="dl-one"') == 2

    remove_all_but(left)
    page = admin_client.get(records).content.decode()

    assert page.count('class="dl-one"') == left
    assert ("Nothing of this group is left here" in page) is (left == 0)
    if not left:
        assert "its last alert counted 2 (<bdi>orders.ship</bdi>: <bdi>UNKNOWN</bdi>)" in page
        assert f"/admin/deadletter/alert/{Alert.objects.get().pk}/change/" in page
        assert "/admin/deadletter/auditentry/" in page


def test_the_pages_of_alerts_call_over_only_what_has_nothing_left(
    clock, rules, decide, admin_client, cli
):
    rules(new_group=True, recover_after=60)
    decide()
    many_dead(3, poisoned_at=clock.now)
    decide()
    decide(100)
    alert = Alert.objects.get()
    pages = ("/admin/deadletter/alert/", f"/admin/deadletter/alert/{alert.pk}/change/")

    for page in pages:
        assert "quiet, 3 still dead</span>" in admin_client.get(page).content.decode()
    assert "quiet 0 s ago, 3 still dead" in cli("alerts", "--all").out
    assert cli("alerts", "--all", "--format", "json").json[0]["left"] == 3

    remove_all_but(0)

    for page in pages:
        assert 'dl-state-due">over</span>' in admin_client.get(page).content.decode()
    assert "over 0 s ago" in cli("alerts", "--all").out
