"""The dashboard shows what is wrong and since when, and every number links to its rows."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from xml.etree import ElementTree

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from deadletter import FailureReason, lifecycle, send
from deadletter.admin import counts
from deadletter.admin.counts import count_states
from deadletter.admin.dashboard import attempt_bars, queue_table
from deadletter.admin.messages import filters
from deadletter.lifecycle import Failure
from deadletter.models import (
    Breaker,
    Count,
    FailureGroup,
    PoisonRecord,
    Queue,
    WorkerProcess,
)

from ..conftest import SCRIPT, url

pytestmark = pytest.mark.slow

HOME = "/admin/deadletter/"
DEAD = "1 dead letter of the last hour is still there"


@pytest.fixture
def works(clock):
    """Let a worker be seen so many seconds ago."""

    def work(name: str = "w1", *, queues: list[str] | None = None, seen: float = 1, **fields):
        return WorkerProcess.objects.create(
            name=name,
            host="here",
            pid=1,
            version="1",
            queues=queues or ["default"],
            concurrency=8,
            started_at=clock.now,
            seen_at=clock.now - timedelta(seconds=seen),
            **fields,
        )

    return work


@pytest.fixture
def counted(clock):
    def count(queue: str = "default", *, ago: float = 0, name: str = "mail", **sums) -> None:
        at = (clock.now - timedelta(seconds=ago)).replace(second=0)
        Count.objects.create(span=60, at=at, queue=queue, name=name, kind="message", **sums)

    return count


def board(browser: Client, **query):
    response = browser.get(HOME, query)
    assert response.status_code == 200
    return response.context["board"], response.content.decode()


def findings(browser: Client) -> list[tuple[str, str, str]]:
    verdict = board(browser)[0].verdict
    return [(finding.level, finding.text, finding.since) for finding in verdict.findings]


def numbers(found, queue: str) -> dict[str, str]:
    (line,) = [line for line in found.queues.lines if line.name == queue]
    return {cell.state: str(cell.n) for cell in line.cells}


def state(name: str, value: str) -> None:
    """Give the group of a message name a state."""
    assert FailureGroup.objects.filter(name=name).update(state=value) == 1


def fail(message, **given) -> None:
    batch = lifecycle.claim(limit=1, worker="w1")
    assert batch.ids == [message.pk]
    lifecycle.fail(batch.token, [Failure(message.pk, error="no", **given)])


def test_the_index_of_the_app_is_the_dashboard_and_leads_to_every_model(admin_client) -> None:
    html = board(admin_client)[1]

    assert "<h1>Dashboard</h1>" in html
    for model in ("queue", "message", "poisonrecord", "workerprocess", "breaker", "auditentry"):
        assert f'href="/admin/deadletter/{model}/"' in html
    for model in ("count", "alert"):
        assert f'href="/admin/deadletter/{model}/"' in html
    assert 'href="/admin/deadletter/message/streams/"' in html


def test_an_empty_app_says_what_to_do(admin_client, clock) -> None:
    found, html = board(admin_client)

    assert findings(admin_client) == [("warn", "No worker is running", "")]
    assert "manage.py run_worker" in html
    assert "Nothing was sent or handled in this time." in html
    assert "No stream is blocked or halted." in html
    assert "There is no queue yet." not in html
    assert (found.queues.lines, found.queues.empty.n) == ([], 1)
    assert "1 empty queue</a>" in html
    assert "No cause needs a person." in html


def test_all_is_well_while_work_is_done(admin_client, works) -> None:
    works(), works("w2")
    send("mail")

    found, html = board(admin_client)

    assert (found.verdict.level, found.verdict.findings) == ("good", [])
    assert "All is well. 2 workers are running." in html


def test_the_verdict_names_what_stands_still_first(admin_client, clock, works, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned("book", queue="ledger", stream="account-7")
    send("mail", queue="default")
    clock.advance(timedelta(minutes=20))
    works(queues=["ledger"])
    works("gone", seen=600)
    Breaker.objects.create(
        name="mail",
        failures=5,
        error="no",
        opened_at=clock.now,
        until=clock.now + timedelta(minutes=1),
        opened_by="w1",
    )

    assert findings(admin_client) == [
        ("bad", "1 stream halted: account-7", "for 20\xa0minutes"),
        ("bad", "no worker serves queue default", "for 20\xa0minutes"),
        ("bad", "circuit breaker open for mail", ""),
        ("warn", f"{DEAD}, among them HANDLER_EXCEPTION (book)", ""),
        ("warn", "1 worker lost", "for 10\xa0minutes"),
    ]


def test_messages_due_without_any_worker_are_bad(admin_client, clock) -> None:
    send("mail")
    clock.advance(120)

    assert findings(admin_client) == [("bad", "No worker is running", "for 2\xa0minutes")]


def test_a_queue_that_is_served_and_late_or_paused_is_named(admin_client, clock, works) -> None:
    Queue.objects.create(name="slow")
    Queue.objects.create(name="stopped", paused=True)
    send("mail", queue="slow"), send("mail", queue="stopped")
    clock.advance(301)
    works(queues=["slow", "default"])

    assert findings(admin_client) == [
        ("warn", "Queue slow is behind", "for 5\xa0minutes"),
        ("warn", "queue stopped is paused with 1 message due", ""),
    ]


def test_nobody_need_serve_a_dead_queue(admin_client, clock, works) -> None:
    dead = Queue.objects.create(name="dead")
    Queue.objects.create(name="mail", dead_queue=dead, on_poison="dead_queue")
    send("mail", queue="dead")
    clock.advance(3600)
    works()

    assert findings(admin_client) == []


def test_a_death_in_a_dead_queue_is_as_much_news_as_a_record(
    admin_client, clock, works, poisoned
) -> None:
    dead = Queue.objects.create(name="dead", paused=True)
    Queue.objects.create(name="pay", dead_queue=dead, on_poison="dead_queue", max_attempts=1)
    works(queues=["default", "pay"])
    for _ in range(3):
        fail(send("pay", queue="pay"))

    verdict = board(admin_client)[0].verdict
    assert [finding.text for finding in verdict.findings] == [
        "3 dead letters of the last hour are still there"
    ]
    # The list of records would be empty.
    assert verdict.findings[0].url == "/admin/deadletter/poisonrecord/"

    poisoned()
    text = "4 dead letters of the last hour are still there"
    assert findings(admin_client)[0][1].startswith(text)

    clock.advance(3601)
    works("w2", queues=["default", "pay"])
    assert [one for one in findings(admin_client) if text in one[1]] == []


@pytest.mark.parametrize(
    ("failed", "completed", "said"), [(12, 0, True), (9, 0, False), (12, 1, False)]
)
def test_a_queue_that_only_fails_is_not_well(
    admin_client, clock, works, counted, failed, completed, said
) -> None:
    Queue.objects.create(name="gateway")
    for _ in range(failed):
        fail(send("charge", queue="gateway"), reason=FailureReason.TRANSPORT_UNAVAILABLE)
    counted("gateway", failed=failed, completed=completed)
    works(queues=["default", "gateway"])

    verdict = board(admin_client)[0].verdict

    text = "Queue gateway completes nothing, and 12 of its messages have failed"
    assert [finding.text for finding in verdict.findings] == ([text] if said else [])
    if said:
        assert "state=failed" in verdict.findings[0].url


def test_without_counters_nothing_is_known_of_what_a_queue_completes(
    admin_client, clock, works, settings
) -> None:
    settings.DEADLETTER = {"COUNTS": False}
    for _ in range(12):
        fail(send("charge"))
    works()

    assert findings(admin_client) == []


def test_an_hour_later_a_death_is_no_news(admin_client, clock, works, poisoned) -> None:
    poisoned()
    clock.advance(3601)
    works()

    assert findings(admin_client) == []


def test_every_state_of_a_queue_is_counted_as_its_own_page_does(
    admin_client, clock, poisoned, works
) -> None:
    queue = Queue.objects.get(name="default")
    poisoned("mail")
    fail(send("failed"))
    send("active", stream="s"), send("blocked", stream="s")
    assert len(lifecycle.claim(limit=1, worker="w1")) == 1
    lifecycle.claim(limit=5, worker="w1")
    send("later", delay=60), send("later", delay=60)
    for _ in range(3):
        send("now")

    found, html = board(admin_client)

    shown = numbers(found, "default")
    states = count_states(queue, now=clock.now, limit=1_000, using="default")
    assert shown == {str(state): str(n) for state, n in states.items()}
    assert shown == {
        "pending": "3",
        "scheduled": "2",
        "failed": "1",
        "active": "1",
        "blocked": "1",
        "dead": "1",
    }
    for state in ("pending", "scheduled", "failed", "active", "blocked"):
        assert f'href="/admin/deadletter/message/?queue={queue.pk}&amp;state={state}"' in html
    assert 'href="/admin/deadletter/poisonrecord/records/?queue=default"' in html


def test_a_number_stops_at_its_limit_and_says_so(admin_client, clock, monkeypatch) -> None:
    monkeypatch.setattr(queue_table, "IN_A_LIST", 2)
    for _ in range(3):
        send("now"), send("later", delay=60)

    shown = numbers(board(admin_client)[0], "default")

    assert (shown["pending"], shown["scheduled"], shown["failed"]) == ("2+", "2+", "0")
    assert (shown["blocked"], shown["dead"]) == ("0", "0")


def test_the_oldest_due_of_all_priorities_and_the_rates_are_shown(
    admin_client, clock, counted
) -> None:
    clock.set(clock.now.replace(second=0))
    send("mail", priority=9)
    clock.advance(180)
    send("mail", priority=0)
    Count.objects.all().delete()
    counted(ago=60, sent=50, completed=25)
    counted(ago=120, failed=5, reason=2)

    (line,) = board(admin_client)[0].queues.lines

    assert line.due_since == clock.now - timedelta(seconds=180)
    assert [(rate.what, rate.text) for rate in line.rates] == [
        ("sent", "10.0"),
        ("completed", "5.0"),
        ("failed", "1.0"),
    ]


def test_charts_show_the_hour_and_on_request_the_day_or_the_week(admin_client, counted) -> None:
    counted(ago=30, sent=4)
    counted(ago=7_200, sent=10)
    counted(ago=172_800, sent=100)

    def sent(**query):
        throughput = board(admin_client, **query)[0].charts[0]
        return len(throughput.steps), throughput.legend[0].total

    assert sent() == sent(window="nonsense") == (60, "4")
    assert sent(window="day") == (24, "14")
    assert sent(window="week") == (42, "114")


def test_failures_have_a_colour_for_each_of_the_frequent_reasons(admin_client, counted) -> None:
    for n, reason in enumerate(FailureReason, start=1):
        counted(ago=60, failed=n, reason=reason)

    failures = board(admin_client)[0].charts[1]

    assert [entry.label for entry in failures.legend][:2] == ["unknown", "operator"]
    assert failures.legend[-1].label == "others"
    assert sum(int(entry.total) for entry in failures.legend) == sum(range(1, 13))
    assert len({entry.colour for entry in failures.legend}) == 6


def test_a_bar_of_the_dead_leads_to_its_records_and_its_number_to_what_was_counted(
    admin_client, clock, counted, poisoned
) -> None:
    poisoned()
    Count.objects.all().delete()
    counted(poisoned=3)

    step = board(admin_client)[0].charts[2].steps[-1]
    (href,) = re.findall(r'<a href="([^"]+)" tabindex', step.slot)
    records = admin_client.get(unescape(href))

    assert len(records.context["page"].records) == 1
    (counters,) = re.findall(r'<a href="([^"]+)">3</a></td></tr>$', step.row)
    assert unescape(counters).startswith("/admin/deadletter/count/?what=poisoned")


def test_each_chart_is_well_formed_and_named_and_has_a_table(admin_client, counted) -> None:
    counted(ago=60, sent=1234567, completed=3, poisoned=1)
    counted(ago=60, failed=2, reason=2)

    with translation.override("de"):  # a comma instead of a point would break every coordinate
        html = admin_client.get(HOME, headers={"accept-language": "de"}).content.decode()

    plots = re.findall(r'<svg viewBox="0 0 360 150".*?</svg>', html, re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        root = ElementTree.fromstring(plot)
        image, slots = root
        assert image.attrib["role"] == "img"
        names = image.attrib["aria-labelledby"].split()
        assert [child.attrib["id"] for child in image[:2]] == names
        # Links are no part of an image; these are for the mouse, the table has them for all.
        assert slots.attrib["aria-hidden"] == "true"
        assert [link for link in image.iter() if link.tag.endswith("a")] == []
        for element in root.iter():
            for key in {"x", "y", "x1", "x2", "y1", "y2", "width", "height"} & set(element.attrib):
                float(element.attrib[key])
    assert len(re.findall(r"<details id=\"dl-\w+-table\">", html)) == 3


def test_nothing_is_inline_and_hostile_text_is_escaped(
    admin_client, clock, works, counted, poisoned
) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    poisoned("mail", stream=SCRIPT, queue="ledger")
    PoisonRecord.objects.update(name=SCRIPT, exception=SCRIPT, frame=f"a\u202eb{SCRIPT}")
    hostile = {"owner": SCRIPT, "error": SCRIPT, "last_release": SCRIPT, "state": "regressed"}
    FailureGroup.objects.update(name=SCRIPT, exception=SCRIPT, frame=f"a\u202eb{SCRIPT}", **hostile)
    works(SCRIPT, queues=[SCRIPT, "default"])
    Breaker.objects.create(
        name=SCRIPT,
        failures=5,
        error=SCRIPT,
        opened_at=clock.now,
        until=clock.now + timedelta(minutes=1),
        opened_by="x",
    )
    Queue.objects.filter(name="default").update(name=f"{SCRIPT}\u202e")
    Count.objects.update(queue=SCRIPT, name=SCRIPT)

    html = board(admin_client)[1]

    assert SCRIPT not in html
    assert html.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;") >= 6
    assert "a[U+202E]b" in html
    assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", html)
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", html) == []


def test_causes_are_listed_by_what_needs_a_person_first(admin_client, clock, poisoned) -> None:
    poisoned("old"), clock.advance(timedelta(hours=30))
    poisoned("old"), clock.advance(timedelta(hours=5))
    poisoned("quiet"), poisoned("over"), poisoned("mail"), poisoned("mail")
    state("old", "acknowledged"), state("quiet", "muted"), state("over", "resolved")
    poisoned("back"), state("back", "regressed")

    groups = board(admin_client)[0].groups

    assert [(line.group.name, line.day, str(line.dead)) for line in groups.lines] == [
        ("back", 1, "1"),
        ("mail", 2, "2"),
        ("old", 1, "2"),
    ]
    old = groups.lines[2]
    assert len(old.spark.bars.bars) == 1
    assert old.url == url("poisonrecord", "group", old.group.fingerprint)
    assert admin_client.get(old.url).status_code == 200
    records = admin_client.get(old.dead_url)
    assert [record.name for record in records.context["page"].records] == ["old", "old"]


def test_a_merged_group_counts_in_the_one_that_shows_it(admin_client, clock, poisoned) -> None:
    main, other = poisoned("mail").fingerprint, poisoned("letter").fingerprint
    FailureGroup.objects.filter(fingerprint=other).update(merged_into=main)

    (line,) = board(admin_client)[0].groups.lines

    assert (line.group.name, line.day, line.group.failures) == ("mail", 2, 2)


def test_a_cause_that_came_back_is_loud(admin_client, clock, works, poisoned) -> None:
    works()
    record = poisoned("mail")
    state("mail", "regressed")
    clock.advance(timedelta(hours=2))
    works("w2")

    verdict = board(admin_client)[0].verdict

    assert [(finding.level, finding.text, finding.url) for finding in verdict.findings][:1] == [
        (
            "bad",
            "1 resolved cause came back: HANDLER_EXCEPTION (mail)",
            url("poisonrecord", "group", record.fingerprint),
        )
    ]


def test_causes_that_are_not_listed_are_counted(admin_client, clock, poisoned) -> None:
    for n in range(10):
        poisoned(f"mail-{n}")
    FailureGroup.objects.update(state="regressed")

    found, html = board(admin_client)

    assert (len(found.groups.lines), found.groups.more.n) == (8, 2)
    assert "2 more causes</a>" in html
    text = found.verdict.findings[0].text
    assert text.startswith("10 resolved causes came back: HANDLER_EXCEPTION (mail-9), ")
    assert text.endswith(" and 7 more")
    groups = admin_client.get(found.verdict.findings[0].url)
    assert len(groups.context["groups"]) == 10


def test_failures_that_no_worker_adds_up_are_told(admin_client, clock) -> None:
    fail(send("mail"), permanent=True)
    clock.advance(120)

    html = board(admin_client)[1]

    assert "are not counted here yet" in html


def test_every_open_breaker_is_counted(admin_client, clock, works) -> None:
    works()
    for n in range(12):
        Breaker.objects.create(
            name=f"mail-{n:02}",
            failures=5,
            error="no",
            opened_at=clock.now,
            until=clock.now + timedelta(minutes=1),
            opened_by="w1",
        )

    found, html = board(admin_client)

    assert [finding.text for finding in found.verdict.findings][3:] == ["9 more breakers open"]
    assert len(found.workers.breakers_shown) == 8
    assert "4 more breakers</a>" in html


def test_halted_streams_are_named(admin_client, clock, works, poisoned) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    for n in range(5):
        poisoned("book", queue="ledger", stream=f"account-{n}")
    works(queues=["default", "ledger"])

    assert findings(admin_client)[0] == (
        "bad",
        "5 streams halted: account-0, account-1, account-2 and 2 more",
        "",
    )


def test_empty_queues_are_one_line_and_late_ones_are_always_shown(
    admin_client, clock, works
) -> None:
    for n in range(25):
        Queue.objects.create(name=f"a-{n:02}", paused=n < 2)
    for n in range(22):
        Queue.objects.create(name=f"b-{n:02}")
        send("mail", queue=f"b-{n:02}", delay=3_600)
    Queue.objects.create(name="z")
    send("mail", queue="z")
    clock.advance(600)
    works(queues=["*"])

    found, html = board(admin_client)

    names = [line.name for line in found.queues.lines]
    assert names == [f"b-{n:02}" for n in range(19)] + ["z"]
    assert (found.queues.more, found.queues.empty.n, found.queues.empty_paused) == (3, 26, 2)
    assert "26 empty queues</a>, 2 of them paused" in html
    assert [finding.text for finding in found.verdict.findings] == ["Queue z is behind"]


def test_a_queue_that_is_empty_and_busy_stays_on_the_page(admin_client, counted) -> None:
    counted("default", sent=10, completed=10)

    (line,) = board(admin_client)[0].queues.lines

    assert line.name == "default"


def test_zeros_are_text_and_not_links(admin_client, clock, poisoned) -> None:
    poisoned()
    send("mail")

    html = board(admin_client)[1]
    inside = html[html.index('id="dl-board"') :]

    assert re.findall(r"<a [^>]*>\s*0(?:\.0)?\s*</a>", inside) == []
    assert '<span class="dl-zero">0</span>' in inside


def test_the_pages_are_in_the_order_of_tasks(admin_client, login) -> None:
    def tasks(browser: Client) -> dict[str, list[str]]:
        return {task.label: [page.label for page in task.pages] for task in board(browser)[0].pages}

    assert tasks(admin_client) == {
        "What is wrong": ["Poison records", "Circuit breakers", "Alerts"],
        "Work": ["Queues", "Messages", "Instances", "Results", "Published messages", "Counts"],
        "Streams": ["Blocked and halted"],
        "Workers": ["Workers"],
        "Settings": ["Schedules", "Brokers", "Audit entries"],
    }
    assert tasks(login("view_queue")) == {"Work": ["Queues"]}


def test_a_chart_with_a_spike_is_cut_and_tells_the_value(admin_client, clock, counted) -> None:
    clock.set(clock.now.replace(second=0))
    for minute in range(2, 30):
        counted(ago=60 * minute, failed=3, reason=2)
    counted(ago=600, failed=4_000, reason=2, name="other")

    found, html = board(admin_client)

    failures = found.charts[1]
    assert [n for _, n in failures.chart.above] == [4_003]
    assert "above the axis: 4,003 at" in failures.description
    assert ">4k</text>" in html


def test_retries_are_counted_by_attempts(admin_client, clock) -> None:
    for _ in range(2):
        fail(send("mail"))
    send("never.failed")

    retries = board(admin_client)[0].retries

    assert [(bar.label, str(bar.n)) for bar in retries.bars if bar.n] == [("1", "2")]


def test_attempts_are_looked_for_among_the_newest_that_failed(
    admin_client, clock, monkeypatch
) -> None:
    monkeypatch.setattr(filters, "REACH", 3)
    monkeypatch.setattr(attempt_bars, "REACH", 3)
    for _ in range(4):
        fail(send("mail"))

    (bar, *_) = board(admin_client)[0].retries.bars

    assert (bar.label, str(bar.n)) == ("1", "3+")
    assert admin_client.get(bar.url).context["cl"].result_count == 3
    assert admin_client.get("/admin/deadletter/message/?attempts=x").context["cl"].result_count == 0


def test_halted_and_blocked_streams_are_listed_with_what_holds_them(
    admin_client, clock, poisoned
) -> None:
    Queue.objects.create(name="ledger", stream_policy="halt")
    record = poisoned("book", queue="ledger", stream="account-7")
    send("book", queue="ledger", stream="account-7")
    lifecycle.claim(["ledger"], limit=5, worker="w1")

    found, html = board(admin_client)

    (line,) = found.streams.lines
    assert (line.held.stream, line.held.why, str(line.waiting)) == ("account-7", "halted", "1")
    assert f'href="/admin/deadletter/poisonrecord/{record.pk}/change/"' in html


def test_live_workers_are_listed_and_lost_ones_are_not(admin_client, works) -> None:
    for n in range(10):
        works(f"w{n}", running=[{"id": 1}] * n)
    works("lost", seen=31)

    workers = board(admin_client)[0].workers

    assert [line.name for line in workers.shown] == [f"w{n}" for n in range(8)]
    assert (workers.shown[3].running, workers.more, workers.lost) == (3, 2, ["lost"])


@pytest.mark.parametrize("window", ["hour", "day", "week"])
def test_no_counter_at_all_is_no_trouble(admin_client, works, poisoned, window: str) -> None:
    works(), poisoned(), send("mail")
    Count.objects.all().delete()

    found, html = board(admin_client, window=window)

    assert [entry.total for chart in found.charts for entry in chart.legend] == ["0"] * 4
    assert [chart.quiet for chart in found.charts] == [True] * 3
    assert "Nothing new is counted" not in html


def test_the_page_says_when_nothing_is_counted(admin_client, settings) -> None:
    settings.DEADLETTER = {**settings.DEADLETTER, "COUNTS": False}

    assert "Nothing new is counted" in board(admin_client)[1]


def test_many_queues_cost_no_more_statements_than_one(admin_client, clock, works) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            board(admin_client)
        return len(queries)

    send("mail")
    board(admin_client)
    one = statements()
    for n in range(30):
        Queue.objects.create(name=f"queue-{n}")
        send("mail", queue=f"queue-{n}")
    assert statements() == one
    assert one <= 38
    found = board(admin_client)[0]
    assert (len(found.queues.lines), found.queues.more) == (20, 11)
    assert counts.IN_A_LIST == 1_000
