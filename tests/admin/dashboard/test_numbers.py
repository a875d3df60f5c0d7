"""Every number on the dashboard leads to the rows behind it, and there are as many of them."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest

from deadletter import FailureReason, lifecycle, send
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import Breaker, Count, Queue, WorkerProcess

pytestmark = pytest.mark.slow

HOME = "/admin/deadletter/"
#: Names and headings may have digits, and drawings have labels: none of these is a number of rows.
SKIPPED = {"svg", "bdi", "th", "script"}
#: Without an end tag.
VOID = {"input", "br", "img", "link", "meta"}


class Walk(HTMLParser):
    """Collects, inside the board, the text of every link and every number outside of links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.bare: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs) -> None:
        given = dict(attrs)
        if tag == "a" and self._inside("dl-board"):
            self.links.append((given.get("href") or "", ""))
        if tag not in VOID:
            self._open.append((tag, given.get("id") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self._open}
        if not self._inside("dl-board") or self._inside("dl-now"):
            return
        if "a" in tags and "svg" not in tags:
            href, text = self.links[-1]
            self.links[-1] = (href, text + data)
        elif re.search(r"\d", data) and not tags & SKIPPED:
            self.bare.append(data.strip())

    def _inside(self, id: str) -> bool:
        return any(found == id for _, found in self._open)


def claim_and(
    end: str, *, reason: FailureReason = FailureReason.HANDLER_EXCEPTION, **given
) -> None:
    batch = lifecycle.claim(limit=1, worker="w1", queues=["default", "ledger"])
    if end == "complete":
        lifecycle.complete(batch.token, batch.ids, seconds=0.5)
    else:
        failure = Failure(batch.ids[0], error=f"{end}: no", reason=reason, **given)
        lifecycle.fail(batch.token, [failure])


@pytest.fixture
def story(clock) -> None:
    """A day in which a bit of everything happened, at several times."""
    clock.set(clock.now.replace(minute=30, second=20))
    Queue.objects.create(name="ledger", stream_policy="halt")
    for queue in ("default", "ledger"):
        send("mail", queue=queue), send("mail", queue=queue)
        claim_and("complete"), claim_and("complete")
    send("mail"), claim_and("Old", permanent=True)
    clock.advance(timedelta(hours=5))
    for reason in (2, 2, 4, 6, 1, 3, 5, 99):
        send("mail"), claim_and("Boom", reason=FailureReason(reason), permanent=True)
        clock.advance(61)
    send("book", queue="ledger", stream="account-7"), claim_and("Boom", permanent=True)
    send("book", queue="ledger", stream="account-7")
    lifecycle.claim(["ledger"], limit=5, worker="w1")
    for attempts in (1, 3):
        send("shaky")
        for _ in range(attempts):
            claim_and("Shaky", delay=timedelta(0))
            clock.advance(1)
        # Out of the way of the next.
        lifecycle.claim(limit=1, worker="w2", lease=timedelta(days=1))
    send("later", delay=60), send("now"), send("now")
    fold_all_groups()
    now = clock.now
    ahead = now.replace(second=0) + timedelta(minutes=2)  # by a clock that is not ours
    Count.objects.create(span=60, at=ahead, queue="default", name="mail", kind="message", sent=3)
    WorkerProcess.objects.create(
        name="w1",
        host="h",
        pid=1,
        version="1",
        queues=["default"],
        concurrency=8,
        started_at=now,
        seen_at=now,
        running=[{"id": 1}],
    )
    Breaker.objects.create(
        name="mail",
        failures=5,
        error="no",
        opened_at=now,
        until=now + timedelta(minutes=1),
        opened_by="w1",
    )


def count(text: str) -> float | None:
    """The number a text begins with, None where it is a name."""
    found = re.match(r"\s*([\d,.]+)", text)
    return float(found[1].replace(",", "")) if found else None


def rows_behind(response, href: str) -> float | None:
    """How many there are on the page a link leads to; None for pages of one thing."""
    place = urlsplit(href)
    query = parse_qs(place.query)
    context = response.context
    if "/count/" in place.path and "what" in query:
        return context["cl"].sums[query["what"][0]]
    if place.path.endswith("/records/"):
        return len(context["page"].records)
    return context["cl"].result_count if place.path.endswith("/message/") and query else None


def test_no_number_is_without_a_link(admin_client, story) -> None:
    for window in ("hour", "day", "week"):
        walk = Walk(admin_client.get(HOME, {"window": window}).content.decode())

        assert {text for text in walk.bare if count(text)} == set()
        assert len(walk.links) > 60
        assert [text for href, text in walk.links if not href] == []


@pytest.mark.parametrize("window", ["hour", "week"])
def test_every_link_leads_to_as_many_rows_as_it_says(
    admin_client, story, clock, window: str
) -> None:
    walk = Walk(admin_client.get(HOME, {"window": window}).content.decode())
    checked = set()

    for href, text in dict.fromkeys(walk.links):
        n = count(text)
        is_age = re.fullmatch(r"\d+ (s|min|h|d)", text)
        assert n != 0 or is_age, (text, href)
        response = admin_client.get(href)
        assert response.status_code == 200, (text, href)
        behind = rows_behind(response, href)
        if n is None or behind is None or is_age:
            continue  # a name, a page of one thing, or an age
        if "queue=" in href and "what=" in href:  # a rate: five minutes and twenty-odd seconds
            seconds = 300 + clock.now.second
            assert n == pytest.approx(behind * 60 / seconds, abs=0.06), (text, href)
        else:
            assert n == behind, (text, href)
        checked.add(urlsplit(href).path.removeprefix(HOME))

    assert checked == {"count/", "message/", "poisonrecord/records/"}


def test_what_may_not_be_seen_is_not_linked(login, story) -> None:
    walk = Walk(login("view_message").get(HOME).content.decode())

    assert {urlsplit(href).path for href, _ in walk.links if not href.startswith("?")} == {
        f"{HOME}message/",
        f"{HOME}message/streams/",
    }
    # Totals and rates are still shown.
    assert "2.4" in walk.bare


def test_who_may_see_counters_alone_is_led_to_them(login, story) -> None:
    walk = Walk(login("view_count").get(HOME).content.decode())

    assert {text for text in walk.bare if count(text)} == set()
    assert {urlsplit(href).path for href, _ in walk.links} == {f"{HOME}count/", ""}
