"""Groups are the first page of poison; the matrix says when each began."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from deadletter import operations
from deadletter.admin.poison import groups
from deadletter.models import PoisonRecord, Queue

from ..conftest import SCRIPT, url


def page(browser: Client, **query):
    return browser.get(url("poisonrecord"), query)


def lines(response) -> list[tuple[str, int]]:
    return [(line.group.name, line.count.n) for line in response.context["groups"]]


def test_an_empty_page_says_so(admin_client: Client) -> None:
    assert "No message has died" in page(admin_client).content.decode()
    assert "No message has died" in admin_client.get(url("poisonrecord", "matrix")).content.decode()


def test_records_of_one_cause_are_one_group(admin_client: Client, poisoned) -> None:
    poisoned("mail", error="ValueError: 1"), poisoned("mail", error="ValueError: 2")
    poisoned("ship")
    PoisonRecord.objects.filter(name="mail").update(exception="ValueError", frame="shop:send")

    response = page(admin_client)
    html = response.content.decode()

    assert lines(response) == [("ship", 1), ("mail", 2)]
    assert "ValueError" in html
    assert "shop:send" in html
    assert "ValueError: 2" in html
    fingerprint = PoisonRecord.objects.filter(name="mail")[0].fingerprint
    assert f"{url('poisonrecord', 'records')}?fingerprint={fingerprint}" in html


def test_a_group_says_how_many_streams_it_holds(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned(queue="ledger", stream="account-1")
    poisoned(queue="ledger", stream="account-2")

    assert "2 streams are halted" in page(admin_client).content.decode()


def test_a_count_is_capped_and_says_so(admin_client: Client, poisoned, monkeypatch) -> None:
    monkeypatch.setattr(operations.groups, "COUNTED", 1)
    poisoned(), poisoned()

    assert "<strong>1+</strong>" in page(admin_client).content.decode()


def test_groups_come_in_pages(admin_client: Client, poisoned, monkeypatch) -> None:
    monkeypatch.setattr(groups, "PER_PAGE", 1)
    poisoned("first"), poisoned("second")

    newest, older = page(admin_client), page(admin_client, p="2")

    assert lines(newest) == [("second", 1)]
    assert lines(older) == [("first", 1)]
    assert newest.context["older"] == 2
    assert (older.context["older"], older.context["newer"]) == (None, 1)
    assert lines(page(admin_client, p="x")) == lines(newest)


def test_a_group_is_retried_and_removed_by_those_who_may(login, poisoned) -> None:
    poisoned()
    html = page(login("view_poisonrecord", "retry_poison")).content.decode()

    assert "Retry group…" in html
    assert "Remove group…" not in html


def test_hostile_names_of_groups_are_text(admin_client: Client, poisoned) -> None:
    poisoned(error=SCRIPT)
    PoisonRecord.objects.update(exception=SCRIPT, frame=SCRIPT, name=SCRIPT)

    for view in (
        url("poisonrecord"),
        url("poisonrecord", "matrix"),
        url("poisonrecord", "matrix") + "?by=exception",
    ):
        html = admin_client.get(view).content.decode()
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


@pytest.mark.parametrize("by", ["name", "exception"])
def test_every_cell_of_the_matrix_leads_to_its_records(
    admin_client: Client, poisoned, by: str
) -> None:
    new, old = poisoned("mail"), poisoned("mail")
    PoisonRecord.objects.update(exception="ValueError")
    PoisonRecord.objects.filter(pk=old.pk).update(poisoned_at=old.poisoned_at - timedelta(days=2))

    response = admin_client.get(url("poisonrecord", "matrix"), {"by": by})

    (line,) = response.context["lines"]
    assert line["value"] == ("mail" if by == "name" else "ValueError")
    assert [cell["count"].n for cell in line["cells"]] == [1, 1, 1, 2, 2, 2]
    for cell in line["cells"]:
        records = admin_client.get(cell["url"]).context["page"].records
        assert len(records) == cell["count"].n
    assert admin_client.get(line["cells"][0]["url"]).context["page"].records[0].pk == new.pk


def test_a_matrix_of_many_lines_says_that_there_are_more(
    admin_client: Client, poisoned, monkeypatch
) -> None:
    monkeypatch.setattr(groups, "LINES", 1)
    poisoned("a"), poisoned("b")

    html = admin_client.get(url("poisonrecord", "matrix")).content.decode()

    assert "There are more lines than fit here" in html
