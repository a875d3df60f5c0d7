"""Every page, in both themes and on a phone: no complaint of the browser, nothing cut off."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import clock, lifecycle, operations, send, start
from deadletter.lifecycle import Failure
from deadletter.models import Queue, Result

from .rows import die

pytestmark = pytest.mark.process

PAGES = {
    "dashboard": "",
    "dashboard of the last day": "?window=day",
    "dashboard of the last week": "?window=week",
    "groups": "poisonrecord/",
    "records": "poisonrecord/records/",
    "matrix": "poisonrecord/matrix/",
    "jobs": "poisonrecord/jobs/",
    "record": "poisonrecord/{poison}/change/",
    "edit": "poisonrecord/{poison}/edit/",
    "retry": "poisonrecord/{poison}/retry/",
    "messages": "message/",
    "message": "message/{message}/change/",
    "act": "message/act/remove/?ids={message}",
    "streams": "message/streams/",
    "stream": "message/stream/?queue=default&name=slow",
    "queues": "queue/",
    "queue": "queue/{queue}/change/",
    "pause": "queue/{queue}/pause/",
    "instances": "instance/",
    "instance": "instance/order-1/change/",
    "cancel": "instance/order-1/cancel/",
    "workers": "workerprocess/",
    "breakers": "breaker/",
    "hold": "breaker/hold/",
    "schedules": "schedule/",
    "calendar": "schedule/calendar/",
    "new schedule": "schedule/add/",
    "schedule": "schedule/{schedule}/change/",
    "schedule form": "schedule/{schedule}/edit/",
    "run": "schedule/{schedule}/run/",
    "counters": "count/",
    "audit": "auditentry/",
    "act of the audit": "auditentry/{entry}/change/",
    "results": "result/",
    "result": "result/{result}/change/",
    "message that has ended": "message/{result}/change/",
}


@pytest.fixture
def rows(site: str) -> dict[str, Any]:
    """One of everything, with names as long and as hostile as a table can hold."""
    long = "a-name-without-any-place-to-break-it-" * 5
    Queue(name="ledger", stream_policy="halt").save()
    record = die("sample.work", {"text": "<script>alert(1)</script>", "long": "x" * 300})
    die("sample.work", {}, queue="ledger", stream=long)
    send("sample.work", {}, queue="ledger", stream=long)
    send("sample.work", {}, stream="slow")
    blocked = send("sample.work", {"n": 1}, stream="slow")
    batch = lifecycle.claim(limit=1, worker="w1", queues=["default"])
    lifecycle.fail(batch.token, [Failure(batch.ids[0], error="no")])
    lifecycle.claim(limit=5, worker="w1")
    start("a-flow", instance="order-1", input={"sku": "A1"})
    start("a-flow", instance="order-" + "9" * 180)
    removed = send("sample.work")
    operations.remove(removed.pk, by="somebody", why="<b>because</b>")
    entry = operations.trail(removed.pk)[0].entry
    schedule = operations.create_schedule(long[:180], message="sample.work", interval="1h")
    operations.create_schedule("nightly", message="sample.work", cron="0 3 * * *", queue="ledger")
    operations.run_schedule(schedule.name, by="somebody")
    operations.hold_breaker(long[:180], by="somebody", why="<b>because</b> " + long)
    return {
        "schedule": schedule.pk,
        "poison": record.pk,
        "message": blocked.pk,
        "queue": Queue.objects.get(name="ledger").pk,
        "entry": entry.pk,
        "result": _result(long).pk,
    }


def _result(long: str) -> Result:
    now = clock.now("default")
    history = [{"attempt": 1, "error": long, "traceback": long, "worker": long}]
    return Result.objects.create(
        message_id=10**9, queue="ledger", name=f"shop.tasks.{long}", kind="task",
        outcome="successful", payload={"kwargs": {"name": "x" * 300, "text": "<b>"}},
        value={"text": "y" * 300}, history=history, workers=[long],
        progress={"done": 3, "total": 4, "note": long}, created_at=now, finished_at=now,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
        {"color_scheme": "dark", "viewport": {"width": 400, "height": 800}},
    ],
    ids=["desk", "phone"],
)
def test_every_page_fits_and_the_browser_has_no_complaint(
    open_page, rows: dict[str, Any], options: dict[str, Any]
) -> None:
    page = open_page(superuser=True, **options)
    wide = []

    for name, place in PAGES.items():
        answer = page.goto("/admin/deadletter/" + place.format(**rows))
        assert (name, answer.status) == (name, 200)
        unlabelled = page.evaluate(UNLABELLED)
        assert (name, unlabelled) == (name, [])
        if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            wide.append(name)

    assert wide == []


#: Fields that a screen reader could not name.
UNLABELLED = """() => [...document.querySelectorAll(
  "#content input:not([type=hidden]):not([type=submit]), #content select, #content textarea"
)].filter(field => !field.hidden && !field.closest("[hidden]")
  && !(field.labels && field.labels.length)
  && !field.getAttribute("aria-label") && !field.getAttribute("aria-labelledby")
).map(field => field.outerHTML.slice(0, 120))"""
