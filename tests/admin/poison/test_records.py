"""The list of poison records: filters, exact search, pages; bounded whatever the table holds."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, operations, send
from deadletter.admin.poison import query, records
from deadletter.models import PoisonRecord, Queue

from ..conftest import url


def shown(response) -> list[int]:
    return [row.pk for row in response.context["page"].records]


def look(browser: Client, **query):
    return browser.get(url("poisonrecord", "records"), query)


def test_the_list_selects_the_beginning_of_the_error_and_nothing_large(
    admin_client: Client, poisoned
) -> None:
    poisoned(error="x" * 10_000)

    with CaptureQueriesContext(connection) as queries:
        html = look(admin_client).content.decode()

    assert "x" * 200 + "…" in html
    assert "x" * 201 not in html
    listed = [q["sql"] for q in queries if 'FROM "deadletter_poison"' in q["sql"]]
    assert listed
    for column in ("payload", "headers", "history"):
        assert not [sql for sql in listed if f'"deadletter_poison"."{column}"' in sql]


def test_nothing_is_counted_without_a_limit(admin_client: Client, poisoned) -> None:
    record = poisoned(stream="s")
    pages = [
        url("poisonrecord"),
        url("poisonrecord", "records"),
        url("poisonrecord", "records") + "?queue=default&text=x",
        url("poisonrecord", "matrix"),
        url("poisonrecord", "change", record.pk),
        url("poisonrecord", "jobs"),
        url("poisonrecord", "bulk", "retry") + "?queue=default",
    ]

    with CaptureQueriesContext(connection) as queries:
        for page in pages:
            assert admin_client.get(page).status_code == 200

    counts = [q["sql"] for q in queries if "COUNT(" in q["sql"].upper()]
    assert counts
    assert [sql for sql in counts if "LIMIT" not in sql] == []


@pytest.mark.slow
def test_the_list_is_narrowed_by_every_field(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="other")
    first = poisoned("mail", error="RuntimeError: first", stream="a")
    second = poisoned("ship", queue="other", error="RuntimeError: second")
    third = send("mail")
    operations.poison(third.pk, why="by hand")
    by_hand = PoisonRecord.objects.get(message_id=third.pk)
    PoisonRecord.objects.filter(pk=second.pk).update(
        instance="i-1", kind="activity", exception="shop.Full"
    )
    later = (second.poisoned_at + timedelta(days=1)).isoformat()

    found = {
        ("queue", "other"): [second.pk],
        ("name", "ship"): [second.pk],
        ("kind", "activity"): [second.pk],
        ("instance", "i-1"): [second.pk],
        ("exception", "shop.Full"): [second.pk],
        ("fingerprint", first.fingerprint): [first.pk],
        ("stream", "a"): [first.pk],
        ("text", "FIRST"): [first.pk],
        ("reason", "OPERATOR"): [by_hand.pk],
        ("reason", str(int(FailureReason.HANDLER_EXCEPTION))): [second.pk, first.pk],
        ("since", later): [],
        ("until", later): [by_hand.pk, second.pk, first.pk],
        ("until", "2020-01-01 10:00"): [],
        ("since", "2020-01-01"): [by_hand.pk, second.pk, first.pk],
    }

    for (key, value), ids in found.items():
        assert shown(look(admin_client, **{key: value})) == ids, (key, value)
    both = look(admin_client, queue="other", text="second")
    assert shown(both) == [second.pk]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("reason", "x"),
        ("reason", "9" * 5_000),
        ("since", "yesterday"),
        ("since", "0001-01-01T00:00:00+14:00"),
        ("until", "9999-12-31T23:59:59-14:00"),
        ("since", "2026-13-45T99:00"),
        ("name", "a\x00b"),
        ("text", "x" * 100_000),
        ("colour", "red"),
        ("up_to", "1"),
    ],
)
def test_a_bad_filter_is_told_and_matches_nothing(
    admin_client: Client, poisoned, key: str, value: str
) -> None:
    poisoned()

    response = look(admin_client, **{key: value})

    assert response.status_code == 400
    assert shown(response) == []
    assert "The filter cannot be read" in response.content.decode()


def test_a_filter_in_the_address_of_the_groups_leads_to_the_records(
    admin_client: Client, poisoned
) -> None:
    record = poisoned()

    response = admin_client.get(url("poisonrecord"), {"fingerprint": record.fingerprint})

    assert response.url == (url("poisonrecord", "records") + f"?fingerprint={record.fingerprint}")


@pytest.mark.parametrize("column", ["message_id", "pk"])
def test_an_id_leads_to_its_record(admin_client: Client, poisoned, column: str) -> None:
    send("mail", delay=3600)
    record = poisoned()

    response = look(admin_client, q=str(getattr(record, column)))

    assert response.url == url("poisonrecord", "change", record.pk)


@pytest.mark.parametrize("column", ["fingerprint", "name", "stream", "instance", "queue"])
def test_a_whole_value_leads_to_its_records(login, poisoned, column: str) -> None:
    record = poisoned(stream="account 1")
    PoisonRecord.objects.update(instance="i&1")
    record.refresh_from_db()
    value = getattr(record, column)

    browser = login("view_poisonrecord")  # who may see groups is led to the page of a group
    response = browser.get(url("poisonrecord", "records"), {"q": f" {value} "}, follow=True)

    assert shown(response) == [record.pk]
    assert response.context["filter"].query == {column: value}


@pytest.mark.parametrize("term", ["nothing", "9" * 30, "a\x00b", "²"])
def test_a_term_that_nothing_has_is_told(admin_client: Client, poisoned, term: str) -> None:
    poisoned()

    html = admin_client.get(
        url("poisonrecord", "records"), {"q": term}, follow=True
    ).content.decode()

    assert "No poison has exactly" in html


def test_pages_go_back_and_forth_and_lose_nothing(
    admin_client: Client, poisoned, monkeypatch
) -> None:
    monkeypatch.setattr(records, "PER_PAGE", 2)
    ids = [poisoned().pk for _ in range(5)][::-1]
    # Records of one transaction have one time.
    PoisonRecord.objects.update(poisoned_at=PoisonRecord.objects.get(pk=ids[0]).poisoned_at)
    here = url("poisonrecord", "records")

    first = admin_client.get(here)
    second = admin_client.get(here + first.context["page"].older)
    third = admin_client.get(here + second.context["page"].older)
    back = admin_client.get(here + third.context["page"].newer)

    assert [shown(page) for page in (first, second, third)] == [ids[:2], ids[2:4], ids[4:]]
    assert shown(back) == ids[2:4]
    assert first.context["page"].newer == ""
    assert third.context["page"].older == ""
    assert shown(admin_client.get(here, {"older": "nonsense_x"})) == ids[:2]


def test_what_no_index_answers_is_looked_for_step_by_step(
    admin_client: Client, poisoned, monkeypatch
) -> None:
    monkeypatch.setattr(query, "REACH_FOR_TEXT", 2)
    old = poisoned(error="RuntimeError: needle")
    poisoned(), poisoned()
    here = url("poisonrecord", "records")

    first = admin_client.get(here, {"text": "needle"})
    second = admin_client.get(here + first.context["page"].further)

    assert shown(first) == []
    assert "Looked at the 2 newest records" in first.content.decode()
    assert shown(second) == [old.pk]
    assert second.context["page"].further == ""


def test_every_page_of_poison_leads_to_the_others(admin_client: Client, poisoned) -> None:
    record = poisoned()

    for page in (url("poisonrecord"), url("poisonrecord", "change", record.pk)):
        html = admin_client.get(page).content.decode()
        for other in ("changelist", "records", "matrix", "jobs"):
            assert f'href="{url("poisonrecord", other)}"' in html


def test_not_even_a_superuser_can_add_change_or_delete(admin_client: Client, poisoned) -> None:
    record = poisoned()

    assert admin_client.get(url("poisonrecord", "add")).status_code == 403
    assert admin_client.post(url("poisonrecord", "change", record.pk), {}).status_code == 403
    assert (
        admin_client.post(url("poisonrecord", "delete", record.pk), {"post": "yes"}).status_code
        == 403
    )
    assert PoisonRecord.objects.count() == 1


def test_the_filter_survives_in_the_links_of_the_pages(
    admin_client: Client, poisoned, monkeypatch
) -> None:
    monkeypatch.setattr(records, "PER_PAGE", 1)
    poisoned(stream="a&b=c"), poisoned(stream="a&b=c"), poisoned()

    page = look(admin_client, stream="a&b=c").context["page"]

    assert re.match(r"\?stream=a%26b%3Dc&older=", page.older)
