"""Every page, in both themes and on a phone: no complaint of the browser, nothing cut off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter import clock, lifecycle, operations, send, start
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup, GroupHour, GroupTag, Queue, Result

from .rows import die

pytestmark = pytest.mark.process

PAGES = {
    "dashboard": "",
    "dashboard of the last day": "?window=day",
    "dashboard of the last week": "?window=week",
    "groups": "poisonrecord/",
    "groups that need a person": "poisonrecord/?state=open",
    "group": "poisonrecord/groups/{group}/",
    "group of the last day": "poisonrecord/groups/{group}/?window=day",
    **{
        f"{act} group": f"poisonrecord/groups/act/{act}/?group={{group}}"
        for act in ("acknowledge", "mute", "resolve", "assign", "ticket", "note", "merge")
    },
    "split group": "poisonrecord/groups/act/split/?group={merged}",
    "tag": "poisonrecord/tags/?key=customer.id&value={tag}",
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
        **_group(record.fingerprint, long),
        "message": blocked.pk,
        "queue": Queue.objects.get(name="ledger").pk,
        "entry": entry.pk,
        "result": _result(long).pk,
    }


def _group(fingerprint: str, long: str) -> dict[str, str]:
    """Fill a group with everything that its page shows, and merge another one into it."""
    fold_all_groups()
    now = clock.now("default")
    hour = now.replace(minute=0, second=0, microsecond=0)
    FailureGroup.objects.filter(fingerprint=fingerprint).update(
        first_failed_at=now - timedelta(hours=30),
        exception=long,
        frame=long,
        last_release=long[:100],
    )
    facts = {"fingerprint": fingerprint, "failures": 1_234_567}
    for n in range(30):
        release = f"2.{n // 5}.0-{long[:80]}"
        GroupHour.objects.create(at=hour - timedelta(hours=n), release=release, deaths=3, **facts)
        GroupTag.objects.create(
            key=long[:90] + str(n % 3), value=f"{n}{long}", last_at=now, **facts
        )
    tag = f"<b>{long}"[:200]
    GroupTag.objects.create(key="customer.id", value=tag, last_at=now, **facts)
    note = operations.write_note(fingerprint, "<b>because</b> " + long, by="somebody")
    operations.write_note(fingerprint, long, answers=note.note_id, by="somebody")
    operations.link_ticket(fingerprint, f"https://example.com/{long}", by="somebody", why=long)
    operations.resolve_group(fingerprint, in_release=long[:100], by="somebody", why=long)
    others = FailureGroup.objects.exclude(fingerprint=fingerprint)
    merged = others.values_list("fingerprint", flat=True)[0]
    operations.merge_groups(fingerprint, [merged], by="somebody")
    return {"group": fingerprint, "merged": merged, "tag": tag}


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
