"""Groups are the first page of poison; the matrix says when each began."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from deadletter.admin.poison import groups
from deadletter.models import FailureGroup, GroupChange, GroupState, PoisonRecord, Queue

from ..conftest import SCRIPT, url


def page(browser: Client, **query):
    return browser.get(url("poisonrecord"), query)


def lines(response) -> list[tuple[str, int]]:
    return [(line.group.name, line.count.n) for line in response.context["groups"]]


def test_an_empty_page_says_so(admin_client: Client) -> None:
    assert "No message has died" in page(admin_client).content.decode()
    assert "No message has died" in admin_client.get(url("poisonrecord", "matrix")).content.decode()


def test_records_of_one_cause_are_one_group(admin_client: Client, poisoned) -> None:
    failed = {"exception": "ValueError", "frame": "shop:send"}
    poisoned("mail", error="ValueError: 1", failed=failed)
    poisoned("mail", error="ValueError: 2", failed=failed)
    poisoned("ship")

    response = page(admin_client)
    html = response.content.decode()

    assert lines(response) == [("ship", 1), ("mail", 2)]
    assert "ValueError" in html
    assert "shop:send" in html
    assert "ValueError: 2" in html
    fingerprint = PoisonRecord.objects.filter(name="mail")[0].fingerprint
    assert f"{url('poisonrecord', 'records')}?fingerprint={fingerprint}" in html
    assert url("poisonrecord", "group", fingerprint) in html


def test_a_group_says_how_many_streams_it_holds(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned(queue="ledger", stream="account-1")
    poisoned(queue="ledger", stream="account-2")

    assert "2 streams are halted" in page(admin_client).content.decode()


def test_a_count_is_capped_and_says_so(admin_client: Client, poisoned, monkeypatch) -> None:
    monkeypatch.setattr(groups, "COUNTED", 1)
    poisoned(), poisoned()

    assert "<strong>1+</strong>" in page(admin_client).content.decode()


def test_groups_come_in_pages(admin_client: Client, poisoned, monkeypatch) -> None:
    monkeypatch.setattr(groups, "PER_PAGE", 1)
    poisoned("first"), poisoned("second")

    newest, older = page(admin_client), page(admin_client, p="2")

    assert lines(newest) == [("second", 1)]
    assert lines(older) == [("first", 1)]
    assert newest.context["older"] == "?p=2"
    assert (older.context["older"], older.context["newer"]) == ("", "?p=1")
    assert lines(page(admin_client, p="x")) == lines(newest)


def test_a_group_is_retried_and_removed_by_those_who_may(login, poisoned) -> None:
    poisoned()
    html = page(login("view_poisonrecord", "retry_poison")).content.decode()

    assert "Retry group…" in html
    assert "Remove group…" not in html


def test_hostile_names_of_groups_are_text(admin_client: Client, poisoned) -> None:
    poisoned(error=SCRIPT)
    PoisonRecord.objects.update(exception=SCRIPT, frame=SCRIPT, name=SCRIPT)
    FailureGroup.objects.update(exception=SCRIPT, frame=SCRIPT, name=SCRIPT, owner=SCRIPT)

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


def set_state(record: PoisonRecord, state: str, **more) -> None:
    rows = FailureGroup.objects.filter(fingerprint=record.fingerprint)
    assert rows.update(state=state, **more) == 1


def test_what_needs_a_person_comes_first(admin_client: Client, poisoned) -> None:
    for name in ("done", "quiet", "known", "fresh", "back"):
        poisoned(name)
    for name, state in (
        ("done", GroupState.RESOLVED),
        ("quiet", GroupState.MUTED),
        ("known", GroupState.ACKNOWLEDGED),
        ("back", GroupState.REGRESSED),
    ):
        set_state(PoisonRecord.objects.get(name=name), state)

    response = page(admin_client)

    assert [name for name, _ in lines(response)] == ["back", "fresh", "known", "quiet", "done"]
    assert [(one["label"], one["n"]) for one in response.context["states"]] == [
        ("all", 5),
        ("needs a person", 3),
        ("regressed", 1),
        ("new", 1),
        ("acknowledged", 1),
        ("muted", 1),
        ("resolved", 1),
    ]


def test_the_list_is_narrowed_by_every_field(admin_client: Client, poisoned) -> None:
    Queue.objects.create(name="ledger")
    failed = {"release": "2.7.1", "tags": [("customer.id", "1041")]}
    record = poisoned("ship", queue="ledger", error="ValueError: at the depot", failed=failed)
    set_state(record, GroupState.ACKNOWLEDGED, owner="ada")
    poisoned("mail")

    for query in (
        {"state": "acknowledged"},
        {"owner": "ada"},
        {"release": "2.7.1"},
        {"queue": "ledger"},
        {"name": "ship"},
        {"tag": "customer.id=1041"},
        {"text": "depot"},
        {"state": "open", "owner": "ada", "queue": "ledger", "release": "2.7.1"},
    ):
        assert lines(page(admin_client, **query)) == [("ship", 1)], query
    assert lines(page(admin_client, nobody="on")) == [("mail", 1)]
    assert lines(page(admin_client, state="open", p="1")) == [("mail", 1), ("ship", 1)]


@pytest.mark.parametrize(
    "query", [{"state": "lost"}, {"tag": "customer"}, {"name": "\x00"}, {"release": "x" * 2_000}]
)
def test_a_bad_filter_is_told_and_matches_nothing(admin_client: Client, poisoned, query) -> None:
    poisoned()

    response = page(admin_client, **query)

    assert response.status_code == 400
    assert response.context["groups"] == []
    assert "The filter cannot be read" in response.content.decode()


def test_an_unknown_parameter_is_refused(admin_client: Client) -> None:
    assert page(admin_client, error__contains="a").status_code == 400


@pytest.mark.parametrize("query", [{"text": "depot"}, {"tag": "customer.id=1041"}])
def test_what_quotes_payloads_is_searched_with_the_permission_only(login, poisoned, query) -> None:
    failed = {"tags": [("customer.id", "1041")]}
    poisoned(error="ValueError: at the depot", failed=failed)

    response = page(login("view_poisonrecord", "view_failuregroup"), **query)

    assert response.status_code == 400
    assert response.context["groups"] == []
    assert "depot" not in response.content.decode().replace('value="depot"', "")


def test_without_the_permission_to_see_groups_a_line_leads_to_its_records(login, poisoned) -> None:
    record = poisoned()
    html = page(login("view_poisonrecord", "triage_group", "merge_group")).content.decode()

    assert url("poisonrecord", "group", record.fingerprint) not in html
    assert f"?fingerprint={record.fingerprint}" in html
    assert "Acknowledge…" not in html
    assert "Merge…" not in html


def test_the_acts_on_a_selection_are_those_that_are_allowed(login, poisoned) -> None:
    poisoned()

    html = page(login("view_poisonrecord", "view_failuregroup", "triage_group")).content.decode()

    assert f'formaction="{url("poisonrecord", "group_acknowledge")}"' in html
    assert "Assign…" in html
    assert "Merge…" not in html


def test_the_page_says_so_when_nobody_adds_failures_up(
    admin_client: Client, poisoned, clock
) -> None:
    poisoned()
    values = {"name": "mail", "queue": "default", "exception": "", "frame": "", "error": ""}
    change = GroupChange.objects.create(
        fingerprint="ab" * 8, reason=1, release="", failures=1, at=clock.now, **values
    )
    assert page(admin_client).context["behind"] == ""

    change.at = clock.now - timedelta(minutes=5)
    change.save()

    assert "are not counted here yet" in page(admin_client).content.decode()


def test_records_that_are_in_no_group_yet_are_no_empty_page(admin_client: Client, poisoned) -> None:
    poisoned()
    FailureGroup.objects.all().delete()

    html = page(admin_client).content.decode()

    assert "The records are not in groups yet" in html
    assert "No message has died" not in html
