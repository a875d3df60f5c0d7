"""The page of a failure group: what happened, what its messages share, and what is hidden."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.http import urlencode

from deadletter import lifecycle, operations, send
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    ApplicationRelease,
    FailureGroup,
    GroupEvent,
    GroupHour,
    PoisonRecord,
    Queue,
    WorkerProcess,
)

from ..conftest import SCRIPT, url

SECRET = "s3cr3t-4111"
VIEW = ("view_poisonrecord", "view_failuregroup")


@pytest.fixture
def group(poisoned) -> FailureGroup:
    """A group of three deaths with everything that a page shows."""
    failed = {
        "exception": "shop.Refused",
        "frame": "shop/orders.py:ship",
        "release": "2.7.0",
        "tags": [("customer.id", SECRET), ("tenant", "acme")],
    }
    for n in range(3):
        payload = {"order": n, "note": SECRET, "country": "DE"}
        poisoned("ship", payload, error=f"Refused: {SECRET}", failed=failed)
    found = FailureGroup.objects.get()
    operations.write_note(found.fingerprint, "Ask the carrier.", by="ada")
    return found


def page(browser: Client, group: FailureGroup, **query: Any) -> Any:
    return browser.get(url("poisonrecord", "group", group.fingerprint), query)


def test_it_begins_with_the_state_the_error_and_what_is_left(admin_client, group) -> None:
    operations.assign_group(group.fingerprint, "admin", by="admin")
    operations.link_ticket(group.fingerprint, "https://tickets.example.com/7", by="ada")

    response = page(admin_client, group)
    html = response.content.decode()

    assert response.context["label"] == "shop.Refused"
    assert response.context["state"].label == "new"
    assert response.context["numbers"].records.n == 3
    assert f"Refused: {SECRET}" in html
    assert "shop/orders.py:ship" in html
    assert 'href="https://tickets.example.com/7"' in html
    assert "<strong><bdi>admin</bdi></strong>" in html


def test_its_records_are_one_click_away_with_their_acts(admin_client, group) -> None:
    record = PoisonRecord.objects.order_by("-pk")[0]

    html = page(admin_client, group).content.decode()

    given = f"?fingerprint={group.fingerprint}"
    assert url("poisonrecord", "records") + given in html
    assert url("poisonrecord", "bulk", "retry") + given in html
    assert url("poisonrecord", "bulk", "remove") + given in html
    assert url("poisonrecord", "change", record.pk) in html


def test_the_chart_has_a_mark_where_a_release_began(admin_client, group, clock) -> None:
    hour = clock.now.replace(minute=0, second=0, microsecond=0)
    FailureGroup.objects.update(first_failed_at=clock.now - timedelta(hours=10))
    GroupHour.objects.create(
        fingerprint=group.fingerprint, at=hour - timedelta(hours=9), release="2.6", failures=5
    )
    ApplicationRelease.objects.create(
        name="2.7.0", first_seen_at=hour - timedelta(hours=4), last_seen_at=clock.now
    )

    response = page(admin_client, group)
    figure = response.context["figure"]

    died, failed = figure.legend
    assert (died.label, died.total) == ("died", "3")
    assert (failed.label, failed.total) == ("failed", "8")
    assert [mark.title for mark in figure.chart.marks] == ["2.6", "2.7.0"]
    assert response.content.decode().count('class="dl-mark"') == 2
    assert [release.name for release in response.context["releases"]] == ["2.7.0", "2.6"]


@pytest.mark.parametrize(("window", "steps"), [("day", 25), ("days", 73), ("month", 31)])
def test_a_reader_chooses_the_length_of_the_chart(admin_client, group, window, steps) -> None:
    response = page(admin_client, group, window=window)

    assert len(response.context["figure"].steps) == steps


def test_the_traceback_of_the_latest_death_begins_with_the_application(
    admin_client, poisoned
) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/dist-packages/requests/api.py", line 7, in get',
        "    return session()",
        '  File "/srv/shop/orders.py", line 3, in ship',
        "    refuse()",
        "shop.Refused: no",
    ]
    poisoned(failed={"traceback": "\n".join(lines), "exception": "shop.Refused"})

    html = page(admin_client, FailureGroup.objects.get()).content.decode()

    assert "Traceback of the latest death" in html
    assert "refuse()" in html
    assert "Whole traceback, with 1 frame of libraries" in html


def test_what_its_messages_share_and_what_differs(admin_client, group) -> None:
    comparison = page(admin_client, group).context["comparison"]

    assert comparison.sampled == 3
    shared = [(one.source, one.path) for one in comparison.shared]
    assert shared[:2] == [("payload", "country"), ("payload", "note")]
    assert ("message", "release") in shared
    assert ("payload", "order") in [(one.source, one.path) for one in comparison.varying]


def test_tags_lead_to_their_page(admin_client, group) -> None:
    html = page(admin_client, group).content.decode()

    tag = f"{url('poisonrecord', 'tag')}?key=customer.id&amp;value={SECRET}"
    assert tag in html
    found = admin_client.get(tag.replace("&amp;", "&"))
    assert [line["failures"] for line in found.context["lines"]] == [3]
    assert found.context["records"].n == 3
    records = admin_client.get(found.context["records_url"])
    assert len(records.context["page"].records) == 3


def test_halted_streams_are_named(admin_client, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned("book", queue="ledger", stream="account-1")
    send("book", queue="ledger", stream="account-1")
    assert lifecycle.claim(["ledger"], limit=1, worker="w").ids == []
    group = FailureGroup.objects.get()

    response = page(admin_client, group)

    ((stream, waiting),) = response.context["streams"]
    assert (stream.stream, waiting.n) == ("account-1", 1)
    assert "1 stream is halted" in response.content.decode()


def test_the_timeline_tells_acts_notes_and_outcomes(admin_client, group) -> None:
    note = GroupEvent.objects.get(kind="note")
    operations.write_note(group.fingerprint, "I did.", answers=note.pk, by="grace")
    operations.acknowledge_group(group.fingerprint, by="ada", why="looking at it")
    record = PoisonRecord.objects.order_by("pk")[0]
    operations.retry_poison(record.pk, by="linus", why="after the repair")

    response = page(admin_client, group)

    entries = response.context["timeline"].entries
    # The sample's clock stands still: what happened at one moment has no order.
    assert {entry.title for entry in entries} == {
        "Retried 1 message",
        "Acknowledged",
        "Note",
        "Release 2.7.0 began",
    }
    (talk,) = [entry for entry in entries if entry.is_note]
    assert [(reply.by, reply.text) for reply in talk.replies] == [("grace", "I did.")]
    (retry,) = [entry for entry in entries if entry.kind == "retry"]
    assert (retry.by, retry.text, retry.outcomes) == ("linus", "after the repair", "1 wait or run")
    answer = f"{url('poisonrecord', 'group_note')}?group={group.fingerprint}&amp;answers={note.pk}"
    assert answer in response.content.decode()


def test_a_long_timeline_has_pages(admin_client, group, clock) -> None:
    for n in range(25):
        clock.advance(60)
        operations.write_note(group.fingerprint, f"note {n}", by="ada")

    newest = page(admin_client, group)
    older = admin_client.get(newest.context["timeline"].older.partition("#")[0])

    texts = [entry.text for entry in newest.context["timeline"].entries]
    texts += [entry.text for entry in older.context["timeline"].entries if entry.is_note]
    assert texts == [*(f"note {n}" for n in reversed(range(25))), "Ask the carrier."]
    assert older.context["timeline"].older == ""


def test_advice_is_given_before_a_retry(admin_client, group, clock) -> None:
    for n, release in enumerate(("2.7.1", "2.7.1", "2.7.0")):
        WorkerProcess.objects.create(
            name=f"w{n}", host="h", pid=1, version="1", queues=["*"], concurrency=1, running=[],
            handlers=[["message", "ship"]], release=release, started_at=clock.now,
            seen_at=clock.now,
        )  # fmt: skip
    advice = "Failed only in 2.7.0; 2 of 3 workers run 2.7.1."
    record = PoisonRecord.objects.order_by("pk")[0]
    pages = (
        url("poisonrecord", "group", group.fingerprint),
        f"{url('poisonrecord', 'bulk', 'retry')}?fingerprint={group.fingerprint}",
        url("poisonrecord", "retry", record.pk),
    )

    assert [advice in admin_client.get(place).content.decode() for place in pages] == [True] * 3
    removal = f"{url('poisonrecord', 'bulk', 'remove')}?fingerprint={group.fingerprint}"
    assert advice not in admin_client.get(removal).content.decode()


def test_a_group_lives_on_without_its_records(admin_client, group) -> None:
    operations.remove_matching(operations.PoisonFilter(name="ship"), by="ada")

    response = page(admin_client, group)
    html = response.content.decode()

    assert response.status_code == 200
    assert response.context["sample"] is None
    assert "Retry group…" not in html
    assert "No message of this group is here any more." in html


def test_a_merged_group_is_shown_in_the_main_one(admin_client, group, poisoned) -> None:
    other = poisoned("other").fingerprint
    operations.merge_groups(group.fingerprint, [other], by="ada")

    moved = admin_client.get(url("poisonrecord", "group", other))
    response = page(admin_client, group)

    assert moved.headers["Location"] == url("poisonrecord", "group", group.fingerprint)
    (merged,) = response.context["merged"]
    assert (merged["group"].fingerprint, merged["count"].n) == (other, 1)
    assert response.context["group"].failures == 4
    assert merged["split_url"] in response.content.decode()


def test_a_group_that_is_not_known_leads_to_its_records(admin_client, db) -> None:
    response = admin_client.get(url("poisonrecord", "group", "0" * 16), follow=True)

    assert response.redirect_chain == [
        (f"{url('poisonrecord', 'records')}?fingerprint={'0' * 16}", 302)
    ]
    assert "There is no group" in response.content.decode()


def test_a_fingerprint_is_found_also_when_its_records_are_gone(admin_client, group) -> None:
    operations.remove_matching(operations.PoisonFilter(name="ship"), by="ada")

    response = admin_client.get(url("poisonrecord", "records"), {"q": group.fingerprint})

    assert response.headers["Location"] == url("poisonrecord", "group", group.fingerprint)


def test_a_record_leads_to_its_group(admin_client, login, group) -> None:
    record = PoisonRecord.objects.order_by("pk")[0]
    place = url("poisonrecord", "group", group.fingerprint)

    for change in (url("poisonrecord", "change", record.pk), group_records(group)):
        assert place in admin_client.get(change).content.decode()
    reader = login("view_poisonrecord")
    for change in (url("poisonrecord", "change", record.pk), group_records(group)):
        assert place not in reader.get(change).content.decode()


def test_a_message_in_a_dead_queue_leads_to_its_group(admin_client, login, db) -> None:
    dead = Queue.objects.create(name="dead")
    Queue.objects.create(name="moving", dead_queue=dead, on_poison="dead_queue")
    send("ship", queue="moving")
    batch = lifecycle.claim(["moving"], limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(batch.ids[0], error="no", permanent=True)])
    fold_all_groups()
    (moved,) = dead.messages.all()
    place = url("poisonrecord", "group", moved.fingerprint)
    pages = (
        url("message", "change", moved.pk),
        f"{url('message')}?group={moved.fingerprint}",
    )

    reader = login("view_message", "view_poisonrecord")
    for page_of_message in pages:
        assert place in admin_client.get(page_of_message).content.decode()
        assert place not in reader.get(page_of_message).content.decode()
    assert admin_client.get(place).context["numbers"].in_dead_queues.n == 1


def group_records(group: FailureGroup) -> str:
    return f"{url('poisonrecord', 'records')}?fingerprint={group.fingerprint}"


@pytest.mark.parametrize("query", ["x=1", "window=1&older=2&p=3"])
def test_unknown_parameters_are_refused(admin_client, group, query) -> None:
    assert page(admin_client, group).status_code == 200
    place = url("poisonrecord", "group", group.fingerprint)
    assert admin_client.get(f"{place}?{query}").status_code == 400


def test_a_reader_without_the_permission_sees_no_payload_and_no_text(login, group) -> None:
    browser = login(*VIEW, "triage_group", "note_group", "merge_group", "retry_poison")

    response = page(browser, group)
    html = response.content.decode()

    assert response.status_code == 200
    assert SECRET not in html
    assert "DE" not in [value for one in response.context["comparison"].shared
                        for value, _ in one.values]  # fmt: skip
    assert {one.source for one in response.context["comparison"].shared} == {"message"}
    assert response.context["tags"] is None
    assert browser.get(url("poisonrecord", "tag"), {"key": "tenant"}).status_code == 403
    assert SECRET not in browser.get(url("poisonrecord")).content.decode()


def test_hostile_text_is_text(admin_client, poisoned) -> None:
    failed = {"exception": SCRIPT, "frame": SCRIPT, "release": SCRIPT, "tags": [(SCRIPT, SCRIPT)]}
    poisoned("mail", {SCRIPT: SCRIPT}, error=SCRIPT, failed=failed)
    group = FailureGroup.objects.get()
    operations.write_note(group.fingerprint, SCRIPT, by=SCRIPT)
    operations.resolve_group(group.fingerprint, in_release=SCRIPT, by=SCRIPT, why=SCRIPT)
    FailureGroup.objects.update(owner=SCRIPT, name=SCRIPT)

    for place in (
        url("poisonrecord"),
        url("poisonrecord", "group", group.fingerprint),
        f"{url('poisonrecord', 'tag')}?{urlencode({'key': SCRIPT, 'value': SCRIPT})}",
        f"{url('poisonrecord', 'group_resolve')}?group={group.fingerprint}",
        f"{url('poisonrecord', 'group_merge')}?group={group.fingerprint}",
    ):
        html = admin_client.get(place).content.decode()
        assert "<script>alert" not in html, place
        assert "&lt;script&gt;alert" in html, place


def test_the_pages_have_a_bounded_number_of_statements(admin_client, group, poisoned) -> None:
    def statements(place: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(place).status_code == 200
        return len(captured)

    places = [
        url("poisonrecord", "group", group.fingerprint),
        url("poisonrecord"),
        f"{url('poisonrecord', 'tag')}?key=tenant&value=acme",
    ]
    before = [statements(place) for place in places]
    for n in range(12):
        failed = {"exception": f"E{n}", "release": f"3.{n}", "tags": [("tenant", "acme")]}
        poisoned(f"m{n}", failed=failed)
        again = {"exception": "shop.Refused", "frame": "shop/orders.py:ship", "release": f"4.{n}"}
        again["tags"] = [("tenant", f"t{n}"), (f"key{n}", "1")]
        poisoned("ship", failed=again)
        operations.write_note(group.fingerprint, f"note {n}", by="ada")

    after = [statements(place) for place in places]

    assert after == before
    assert max(after) <= 70  # PostgreSQL counts its settings of the planner as well


def test_acts_on_its_messages_cost_a_bounded_number_of_statements(admin_client, group) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert page(admin_client, group).status_code == 200
        return len(captured)

    def die_again() -> None:
        record = PoisonRecord.objects.order_by("pk")[0]
        operations.retry_poison(record.pk, by="ada")
        batch = lifecycle.claim(limit=1, worker="w")
        again = Failure(batch.ids[0], error="no", permanent=True)
        lifecycle.fail(batch.token, [again])
        fold_all_groups()

    die_again()
    before = statements()
    for _ in range(10):
        die_again()

    assert statements() <= before + 10
