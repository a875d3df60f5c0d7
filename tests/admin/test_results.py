"""The results: the list, the page of each, and the permanent address of an ended message."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import operations, testing
from deadletter.admin import base, results
from deadletter.models import PoisonRecord, Queue, Result
from tests.sample import tasks

from .conftest import SCRIPT, url

NAME = "tests.sample.tasks.add"
#: JSON that is no call, no history and no progress.
DAMAGED = (
    "null", "7", '"text"', "[]", '{"args": 1}', "[1, null, {}]", "9" * 5_000,
    '{"done": "x", "total": []}', '{"done": 1e308, "total": 1e-308}',
)  # fmt: skip


def ended(task=tasks.add, *args, **kwargs) -> int:
    """Run a task and return the id of its message."""
    result = task.enqueue(*(args or (() if kwargs else (1,))), **kwargs)
    testing.drain()
    return int(result.id)


def cancelled() -> int:
    id = int(tasks.add.enqueue(1).id)
    operations.cancel(id, by="ada", why="sent twice")
    return id


def many(n: int, **given) -> None:
    now = given.pop("now")
    about = {"queue": "default", "name": NAME, "kind": "task", "outcome": "successful", **given}
    Result.objects.bulk_create(
        Result(message_id=10**12 + i, payload={}, created_at=now, finished_at=now, **about)
        for i in range(n)
    )


def write(id: int, column: str, text: object, *, value: str = "%s") -> None:
    """Write to a column what no verb would write."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE deadletter_task_result SET {column} = {value} WHERE message_id = %s",
            [text, id],
        )


def listed(client: Client, **query) -> list[int]:
    answer = client.get(url("result"), query)
    assert answer.status_code == 200
    return [row.pk for row in answer.context["cl"].result_list]


def page_of(client: Client, model: str, id: object, status: int = 200) -> str:
    answer = client.get(url(model, "change", id))
    assert answer.status_code == status
    return " ".join(answer.content.decode().split())


def test_the_list_shows_the_newest_first_with_call_and_outcome(admin_client: Client, clock) -> None:
    first = ended(tasks.add, 2, b=3)
    second = cancelled()

    answer = admin_client.get(url("result"))

    html = answer.content.decode()
    assert [row.pk for row in answer.context["cl"].result_list] == [second, first]
    assert "add(2, b=3)" in html
    assert '<span class="dl-state dl-state-due">successful</span>' in html
    assert '<span class="dl-state dl-state-waiting">cancelled</span>' in html


def test_a_page_says_when_its_result_will_be_deleted(admin_client: Client, clock) -> None:
    html = page_of(admin_client, "result", ended()).replace("\xa0", " ")

    assert "Result deleted" in html
    assert "(in 1 week)" in html


def test_the_list_is_narrowed_by_name_queue_and_outcome(admin_client: Client, clock) -> None:
    Queue.objects.create(name="mail")
    plain, other, gone = ended(), ended(tasks.answer, 1), cancelled()
    mailed = int(tasks.add.using(queue_name="mail").enqueue(1).id)
    testing.drain()

    assert listed(admin_client, name=NAME) == [mailed, gone, plain]
    assert listed(admin_client, queue="mail") == [mailed]
    assert listed(admin_client, outcome="cancelled") == [gone]
    assert listed(admin_client, name=NAME, outcome="successful", queue="default") == [plain]
    assert listed(admin_client, outcome="nonsense") == listed(admin_client, queue="gone") == []
    assert other in listed(admin_client)


def test_a_result_is_found_by_its_id_and_by_its_whole_name(admin_client: Client, clock) -> None:
    first, second = ended(), ended(tasks.answer, 1)

    assert listed(admin_client, q=str(first)) == [first]
    assert listed(admin_client, q="tests.sample.tasks.answer") == [second]
    assert listed(admin_client, q="tests.sample.tasks") == listed(admin_client, q="9" * 30) == []


def test_the_list_reads_short_payloads_in_one_statement(admin_client: Client, clock) -> None:
    def statements() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(url("result"))
        return [query["sql"] for query in captured if "deadletter_task_result" in query["sql"]]

    ended()
    statements()
    before = statements()
    for _ in range(5):
        ended()
    after = statements()

    assert len(after) == len(before)
    assert sum('"payload"' in sql for sql in after) == 1
    for column in ("value", "headers", "history", "workers", "progress"):
        assert not [sql for sql in after if f'"{column}"' in sql]


def test_the_list_counts_no_further_than_the_limit(admin_client: Client, clock) -> None:
    ended()

    with CaptureQueriesContext(connection) as queries:
        admin_client.get(url("result"))

    counts = [q["sql"] for q in queries if "COUNT(" in q["sql"] and "deadletter_" in q["sql"]]
    assert len(counts) == 1
    assert f"LIMIT {base.COUNT_LIMIT + 1}" in counts[0]


def test_a_filter_without_an_index_searches_the_newest_results(
    admin_client: Client, clock, monkeypatch
) -> None:
    monkeypatch.setattr(results, "REACH", 3)
    old_of_another_name, old = ended(tasks.answer, 1), cancelled()
    many(3, now=clock.now)

    found = admin_client.get(url("result"), {"outcome": "cancelled"})
    by_name = admin_client.get(
        url("result"), {"queue": "default", "name": "tests.sample.tasks.answer"}
    )
    everything = admin_client.get(url("result"))

    assert [row.pk for row in found.context["cl"].result_list] == []
    assert "The newest 3 results were searched." in found.content.decode()
    assert [row.pk for row in by_name.context["cl"].result_list] == [old_of_another_name]
    assert "results were searched" not in by_name.content.decode()
    assert old in [row.pk for row in everything.context["cl"].result_list]


def test_a_search_that_ends_with_the_oldest_result_is_complete(
    admin_client: Client, clock, monkeypatch
) -> None:
    monkeypatch.setattr(results, "REACH", 3)
    many(3, now=clock.now)

    answer = admin_client.get(url("result"), {"outcome": "successful"})

    assert len(answer.context["cl"].result_list) == 3
    assert "results were searched" not in answer.content.decode()


def test_the_page_shows_call_value_attempts_and_workers(admin_client: Client, clock) -> None:
    id = ended(tasks.sign_in, user="ada", password="s3cret")
    Result.objects.filter(pk=id).update(
        progress={"done": 3, "total": 4, "note": "nearly", "at": clock.now.isoformat()},
        history=[{"attempt": 1, "error": "ValueError: not yet", "worker": "w-before"}],
        workers=["w-before", "w-last"],
    )

    page = page_of(admin_client, "result", id)

    assert "sign_in(user=&#x27;ada&#x27;, password=[redacted])" in page
    assert "It succeeded." in page
    assert "&quot;user&quot;: &quot;ada&quot;" in page
    assert "s3cret" not in page
    assert "ValueError: not yet" in page
    assert "w-before</bdi>, <bdi>w-last" in page
    assert "3 of 4 (75 %)" in page
    assert f'href="{url("message", "change", id)}"' in page
    assert f"manage.py deadletter results {id}" in page


def test_the_page_of_a_removed_task_shows_why_it_died(admin_client: Client, clock) -> None:
    id = int(tasks.fail_for_good.enqueue().id)
    testing.drain()
    operations.remove_poison([PoisonRecord.objects.get().pk], by="ada", why="known bug")

    page = page_of(admin_client, "result", id)

    assert "It died, and its poison record was removed or discarded." in page
    assert "never" in page
    assert "known bug" in page
    assert "Return value" not in page


def test_the_address_of_an_ended_message_shows_its_result(admin_client: Client, clock) -> None:
    id = ended(tasks.answer, "forty-two")

    page = page_of(admin_client, "message", id)

    assert "It succeeded." in page
    assert "answer(&#x27;forty-two&#x27;)" in page
    assert "&quot;forty-two&quot;" in page
    # No link to itself.
    assert f'href="{url("message", "change", id)}"' not in page


def test_a_dead_task_leads_to_its_poison_record(admin_client: Client, clock) -> None:
    result = tasks.fail_for_good.enqueue()
    testing.drain()

    page = page_of(admin_client, "message", result.id)

    assert "It is dead: it is stored as a poison record." in page
    assert page_of(admin_client, "result", result.id, status=404)


def test_who_may_not_see_results_learns_only_how_a_message_ended(login, clock) -> None:
    id = ended(tasks.answer, "forty-two")
    browser = login("view_message", "view_payload")

    page = page_of(browser, "message", id)

    assert "It succeeded." in page
    assert "forty-two" not in page
    assert browser.get(url("result", "change", id)).status_code == 403
    assert browser.get(url("result")).status_code == 403


def test_without_the_permission_no_page_shows_payload_value_or_error(login, clock) -> None:
    id = ended(tasks.answer, "forty-two")
    history = [{"attempt": 1, "error": "ValueError: forty-two", "traceback": "forty-two"}]
    Result.objects.filter(pk=id).update(
        history=history, headers={"x": "forty-two"}, progress={"done": 1, "note": "forty-two"}
    )
    browser = login("view_result", "view_message")

    pages = [
        browser.get(url("result")).content.decode(),
        page_of(browser, "result", id),
        page_of(browser, "message", id),
    ]

    assert ["forty-two" in page for page in pages] == [False, False, False]
    assert "tests.sample.tasks.answer" in pages[0]
    assert "You may not see payloads." in pages[1]
    assert "ValueError" in pages[1]


@pytest.mark.parametrize(
    "column", ["payload", "headers", "value", "history", "workers", "progress"]
)
def test_a_damaged_column_breaks_neither_page_nor_list(
    admin_client: Client, clock, column: str
) -> None:
    id = ended()
    is_text = column in ("payload", "headers", "value")

    for text in [*DAMAGED, *(["{", "", "[" * 5_000] if is_text else [])]:
        write(id, column, text)
        assert listed(admin_client) == [id], text
        assert page_of(admin_client, "result", id), text
        assert page_of(admin_client, "message", id), text


@pytest.mark.sqlite_only(reason="PostgreSQL holds no text that cannot be decoded")
@pytest.mark.parametrize("column", ["payload", "value", "headers"])
def test_text_that_cannot_be_decoded_breaks_neither_page_nor_list(
    admin_client: Client, clock, column: str
) -> None:
    other, id = ended(), ended()
    write(id, column, b"\xff{", value="CAST(%s AS TEXT)")

    assert listed(admin_client) == [id, other]
    assert page_of(admin_client, "result", id)


def test_an_outcome_kind_and_names_of_another_release_are_shown(
    admin_client: Client, clock
) -> None:
    many(1, now=clock.now, outcome="vanished", kind="robot", name=SCRIPT, queue=SCRIPT)

    page = page_of(admin_client, "result", 10**12)

    assert "It ended: vanished." in page
    assert SCRIPT not in page
    assert listed(admin_client) == [10**12]


def test_the_number_of_statements_of_a_page_does_not_depend_on_its_result(
    admin_client: Client, clock
) -> None:
    def statements(id: int) -> int:
        with CaptureQueriesContext(connection) as captured:
            page_of(admin_client, "result", id)
        return len(captured)

    small, large = ended(), ended(tasks.answer, list(range(500)))
    Result.objects.filter(pk=large).update(
        history=[{"attempt": n, "error": "no"} for n in range(25)], workers=["w"] * 1_000
    )
    statements(small)

    assert statements(small) == statements(large) <= 14


def test_a_result_cannot_be_changed(admin_client: Client, clock) -> None:
    id = ended()

    for page in ("change", "delete", "history"):
        answer = admin_client.post(url("result", page, id), {"outcome": "removed"})
        assert answer.status_code in (403, 405) or page == "history"

    assert Result.objects.get().outcome == "successful"
