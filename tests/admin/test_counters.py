"""The page of the counters: only shown, by time, queue, name, reason and what was counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deadletter.admin import counters
from deadletter.models import Count, Span

from .conftest import SCRIPT, url

PAGE = "/admin/deadletter/count/"


@pytest.fixture
def counted(clock):
    clock.set(datetime(2026, 3, 4, 12, 30, 20, tzinfo=UTC))

    def count(*, ago: timedelta = timedelta(0), span: int = Span.MINUTE, **given) -> Count:
        at = (clock.now - ago).replace(second=0)
        return Count.objects.create(
            **{"queue": "default", "name": "mail", "kind": "message", **given}, span=span, at=at
        )

    return count


def sums(browser, **query) -> dict[str, int]:
    """What the page says of the rows it lists; nothing that is 0."""
    response = browser.get(PAGE, query)
    assert response.status_code == 200
    found = response.context["cl"].sums
    rows = response.context["cl"].result_list
    assert found == {key: sum(getattr(row, key) for row in rows) for key in found}
    return {key: n for key, n in found.items() if n}


def test_the_last_hour_is_listed_unless_told_otherwise(admin_client, counted) -> None:
    counted(sent=1)
    counted(sent=10, ago=timedelta(minutes=59))
    counted(sent=100, ago=timedelta(minutes=60))
    counted(sent=1_000, ago=timedelta(hours=24), span=Span.HOUR)
    counted(sent=10_000, ago=timedelta(days=6), span=Span.HOUR)
    counted(sent=100_000, ago=timedelta(days=300), span=Span.DAY)
    Count.objects.create(
        span=Span.EVER, at=datetime(1970, 1, 1, tzinfo=UTC), queue="default", name="mail", sent=5
    )

    assert sums(admin_client) == sums(admin_client, time="hour") == {"sent": 11}
    assert sums(admin_client, time="day") == {"sent": 111}
    assert sums(admin_client, time="week") == {"sent": 11_111}
    assert sums(admin_client, time="ever") == {"sent": 111_116}


def test_a_time_may_be_given_by_its_ends(admin_client, counted) -> None:
    for minutes in (1, 2, 3):
        counted(sent=10**minutes, ago=timedelta(minutes=minutes))

    assert sums(admin_client, since="2026-03-04T12:28Z") == {"sent": 110}
    given = {"since": "2026-03-04T12:28Z", "until": "2026-03-04T12:29Z"}
    assert sums(admin_client, **given) == {"sent": 100}
    html = admin_client.get(PAGE, given).content.decode()
    assert "03/04/2026 12:28 p.m. – 03/04/2026 12:29 p.m." in html  # noqa: RUF001 - a range


@pytest.mark.slow
def test_every_filter_narrows(admin_client, counted) -> None:
    counted(sent=1)
    counted(failed=2, reason=2)
    counted(failed=3, reason=4)
    counted(failed=4, reason=99)
    counted(failed=5, reason=12_345)  # of a later version
    counted(completed=6, name="book", queue="deleted since")

    assert sums(admin_client, what="failed") == {"failed": 14}
    assert sums(admin_client, what="sent") == {"sent": 1}
    assert sums(admin_client, reason="handler_exception") == {"failed": 2}
    assert sums(admin_client, reason="handler_exception,timeout_exceeded") == {"failed": 5}
    assert sums(admin_client, reason="unknown") == {"failed": 9}
    assert sums(admin_client, reason="unknown,timeout_exceeded") == {"failed": 12}
    assert sums(admin_client, queue="deleted since") == {"completed": 6}
    assert sums(admin_client, name="book") == sums(admin_client, q="book") == {"completed": 6}
    assert sums(admin_client, reason="nonsense") == sums(admin_client, what="pk") == {}


@pytest.mark.parametrize(
    "query",
    [
        {"time": "century"},
        {"since": "yesterday"},
        {"since": "2026-13-13T00:00Z"},
        {"until": "0001-01-01T00:00:00+12:00"},
        {"sent__gt": "x"},
    ],
)
def test_what_cannot_be_asked_is_refused(admin_client, counted, query: dict[str, str]) -> None:
    assert admin_client.get(PAGE, query).status_code == 400


def test_too_many_rows_are_not_added_up(admin_client, counted, monkeypatch) -> None:
    monkeypatch.setattr(counters, "SUMMED", 2)
    for name in ("a", "b"):
        counted(sent=1, name=name)
    assert sums(admin_client) == {"sent": 2}

    counted(sent=1, name="c")

    response = admin_client.get(PAGE)
    assert response.context["cl"].sums is None
    assert "Too many rows to sum." in response.content.decode()


def test_the_newest_are_first_whatever_time_they_cover(admin_client, counted) -> None:
    counted(name="day", ago=timedelta(days=20), span=Span.DAY)
    counted(name="minute")
    counted(name="hour", ago=timedelta(hours=20), span=Span.HOUR)

    rows = admin_client.get(PAGE, {"time": "ever"}).context["cl"].result_list

    assert [row.name for row in rows] == ["minute", "hour", "day"]


def test_times_are_shown_for_each_attempt(admin_client, counted) -> None:
    counted(completed=3, failed=1, seconds=2.0, longest=1.5)

    html = admin_client.get(PAGE).content.decode()

    assert '<td class="field-mean">0.500</td>' in html
    assert '<td class="field-longest_shown">1.500</td>' in html


def test_names_cannot_deceive_or_break_the_page(admin_client, counted) -> None:
    counted(name=f"a\u202eb{SCRIPT}", queue=SCRIPT, sent=1)

    html = admin_client.get(PAGE).content.decode()

    assert SCRIPT not in html
    assert "a[U+202E]b" in html


def test_an_empty_table_is_a_page(admin_client, db) -> None:
    assert "Nothing was counted." in admin_client.get(PAGE).content.decode()


def test_counters_are_only_shown(admin_client, login, counted) -> None:
    row = counted(sent=1)

    assert admin_client.get(url("count", "change", row.pk)).status_code == 200
    assert admin_client.post(url("count", "change", row.pk), {"sent": 5}).status_code == 403
    assert admin_client.get(url("count", "add")).status_code == 403
    assert admin_client.get(url("count", "delete", row.pk)).status_code == 403
    browser = login("view_message")
    assert browser.get(PAGE).status_code == 403
    row.refresh_from_db()
    assert row.sent == 1
