"""Every address of the admin, found in the site's urls so that none can be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Model
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.http import urlencode

from deadletter import lifecycle, operations, send
from deadletter.admin.messages.actions import ACTS
from deadletter.admin.poison.group_acts import GROUP_ACTS
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    Act,
    Alert,
    AuditEntry,
    Breaker,
    BrokerStatus,
    BulkJob,
    Count,
    FailureGroup,
    GroupEvent,
    GroupHour,
    GroupTag,
    Instance,
    InstanceEvent,
    Message,
    OutboxPause,
    PoisonRecord,
    PublishedMessage,
    Queue,
    Result,
    Schedule,
    ScheduleRun,
    Span,
    WorkerProcess,
)
from deadletter.operations import PoisonFilter

#: Text that would do something if it were taken for HTML, a template or a link.
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}javascript:"
MODELS = (
    Alert, AuditEntry, Breaker, BrokerStatus, BulkJob, Count, FailureGroup, GroupEvent, GroupHour,
    GroupTag, Instance, InstanceEvent, Message, OutboxPause, PoisonRecord, PublishedMessage, Queue,
    Result, Schedule, ScheduleRun, WorkerProcess,
)  # fmt: skip


def hostile_rows(now: Any) -> dict[str, Model]:
    """One row for every model of the admin; whatever may hold text holds bad text."""
    send("mail", {"to": HOSTILE}, stream=HOSTILE, headers={"x": HOSTILE})
    batch = lifecycle.claim(limit=1, worker=HOSTILE)
    failure = Failure(batch.ids[0], error=HOSTILE, traceback=HOSTILE, exception=HOSTILE)
    lifecycle.fail(batch.token, [failure])
    message = Message.objects.get()
    Message.objects.filter(pk=message.pk).update(worker=HOSTILE, name=HOSTILE[:100])
    send("mail", {"to": HOSTILE}, stream=HOSTILE + "2")
    batch = lifecycle.claim(limit=1, worker=HOSTILE)
    lifecycle.fail(
        batch.token,
        [Failure(batch.ids[0], error=HOSTILE, traceback=HOSTILE, frame=HOSTILE, permanent=True)],
    )
    PoisonRecord.objects.update(halts=True, name=HOSTILE[:100], kind=HOSTILE[:16], instance=None)
    record = PoisonRecord.objects.get()
    wanted = PoisonFilter(name="nothing").fixed("default")
    job = operations.start_job(Act.RETRY, wanted, total=0, by=HOSTILE)
    entry = AuditEntry.objects.create(
        at=now, by=HOSTILE, act=Act.REMOVE, why=HOSTILE, detail={"ids": HOSTILE}, done=1
    )
    progress = {"done": 1, "total": 2, "note": HOSTILE, "at": now.isoformat()}
    Message.objects.update(progress=progress)
    PoisonRecord.objects.update(progress=progress)
    OutboxPause.objects.create(
        broker="default", topic=HOSTILE, paused_at=now, by=HOSTILE, why=HOSTILE
    )
    return {
        "buried": _buried(),
        "message": message,
        "poisonrecord": record,
        "failuregroup": _group(record, now),
        "bulkjob": job,
        "auditentry": entry,
        "queue": Queue.objects.get(name="default"),
        "alert": Alert.objects.create(
            key=HOSTILE, rule="oldest", subject=HOSTILE, detail={"seconds": 1}, error=HOSTILE,
            since=now, opened_at=now, last_at=now,
        ),
        "count": Count.objects.create(
            span=Span.MINUTE, at=now, queue=HOSTILE, name=HOSTILE, kind=HOSTILE[:16], sent=1
        ),
        "workerprocess": WorkerProcess.objects.create(
            name=HOSTILE, host=HOSTILE, pid=1, version=HOSTILE[:50], queues=[HOSTILE],
            concurrency=1, running=[], started_at=now, seen_at=now,
        ),
        "instance": _instance(now),
        "result": _result(now),
        "brokerstatus": BrokerStatus.objects.create(
            name="default", error=HOSTILE, unavailable_since=now, confirmed_at=now
        ),
        "publishedmessage": PublishedMessage.objects.create(
            id=10**8, broker="default", topic=HOSTILE, key=HOSTILE, payload={"to": HOSTILE},
            headers={"x": HOSTILE}, created_at=now, published_at=now,
        ),
        "schedule": _schedule(now),
        "breaker": Breaker.objects.create(
            name=HOSTILE, failures=3, error=HOSTILE, opened_by=HOSTILE,
            opened_at=now, until=now + timedelta(minutes=1),
        ),
    }  # fmt: skip


def _group(record: PoisonRecord, now: Any) -> FailureGroup:
    """A failure group with bad text wherever people and applications write, and a merged one."""
    fold_all_groups()
    FailureGroup.objects.filter(fingerprint=record.fingerprint).update(
        name=HOSTILE, queue=HOSTILE, exception=HOSTILE, frame=HOSTILE, error=HOSTILE, owner=HOSTILE,
        state_by=HOSTILE, resolved_in=HOSTILE, first_release=HOSTILE, last_release=HOSTILE,
        state="resolved", ticket="https://example.com/" + HOSTILE,
    )  # fmt: skip
    group = FailureGroup.objects.get(fingerprint=record.fingerprint)
    facts = {"fingerprint": group.fingerprint, "failures": 1}
    GroupHour.objects.create(at=now, release=HOSTILE, **facts)
    for key in ("k", HOSTILE):
        GroupTag.objects.create(key=key, value=HOSTILE, last_at=now, **facts)
    note = operations.write_note(group.fingerprint, HOSTILE, by=HOSTILE)
    operations.write_note(group.fingerprint, HOSTILE, answers=note.note_id, by=HOSTILE)
    for kind in GroupEvent.Kind.values:
        detail = dict.fromkeys(
            ("state", "until", "owner", "ticket", "release", "into", "merged", "from"), HOSTILE
        )
        GroupEvent.objects.create(
            fingerprint=group.fingerprint,
            at=now,
            by=HOSTILE,
            kind=kind,
            text=HOSTILE,
            detail=detail,
        )
    FailureGroup.objects.create(
        fingerprint="m" * 16, name=HOSTILE, exception=HOSTILE, frame=HOSTILE, first_failed_at=now,
        last_failed_at=now, state_at=now, merged_into=group.fingerprint,
    )  # fmt: skip
    return group


def _buried() -> Message:
    """A message in a dead queue, and one that died there again."""
    queue = Queue.objects.create(name="dead")
    Queue.objects.create(name="moving", dead_queue=queue, on_poison="dead_queue")
    for _ in range(2):
        message = send("mail", {"to": HOSTILE}, queue="moving")
        batch = lifecycle.claim(["moving"], limit=1, worker=HOSTILE)
        failure = Failure(
            message.pk, error=HOSTILE, exception=HOSTILE, frame=HOSTILE, permanent=True
        )
        lifecycle.fail(batch.token, [failure])
    operations.poison([Message.objects.filter(queue=queue).earliest("pk").pk], why=HOSTILE)
    moved = Message.objects.get(queue=queue)
    death = {**moved.death, "queue": HOSTILE, "verdict": HOSTILE, "by": HOSTILE}
    Message.objects.filter(pk=moved.pk).update(death=death)
    PoisonRecord.objects.filter(queue="dead").update(death=death)
    return moved


def _result(now: Any) -> Result:
    history = [{"attempt": 1, "error": HOSTILE, "traceback": HOSTILE, "worker": HOSTILE}]
    return Result.objects.create(
        message_id=10**9, queue=HOSTILE, name=HOSTILE, kind="task", outcome="successful",
        payload={"kwargs": {"to": HOSTILE, HOSTILE: 1}}, headers={"x": HOSTILE}, value=HOSTILE,
        history=history, workers=[HOSTILE], progress={"done": 1, "total": 2, "note": HOSTILE},
        created_at=now, attempted_at=now, finished_at=now,
    )  # fmt: skip


def _schedule(now: Any) -> Schedule:
    row = Schedule.objects.create(
        name=HOSTILE, target=HOSTILE, payload={"to": HOSTILE}, headers={"x": HOSTILE}, cron=HOSTILE,
        time_zone=HOSTILE[:64], queue=HOSTILE, stream=HOSTILE, key=HOSTILE, created_at=now,
        next_at=now, due_at=now, last_error=HOSTILE, failing_since=now, declaration="x",
    )  # fmt: skip
    ScheduleRun.objects.create(
        schedule=row, fired_at=now, outcome="failed", why=HOSTILE, by=HOSTILE, message_id=7
    )
    return row


def _instance(now: Any) -> Instance:
    InstanceEvent.objects.create(
        instance="17", execution_id=1, at=now, event="failed", name=HOSTILE, data={"why": HOSTILE}
    )
    return Instance.objects.create(
        id="17", name=HOSTILE, version=HOSTILE[:60], queue=HOSTILE, parent=HOSTILE,
        input={"a": HOSTILE}, state={"b": HOSTILE}, output=HOSTILE,
        pending={"1": {"name": HOSTILE}},
        error={"category": "application", "message": HOSTILE}, created_at=now, updated_at=now,
    )  # fmt: skip


def every_page(rows: dict[str, Model]) -> list[str]:
    """Return every address below the admin's app, with the keys of these rows filled in."""
    found = sorted(set(_walk(get_resolver(), "/")))
    pages = ["/admin/deadletter/", *(_filled(path, rows) for path in found)]
    if "result" in rows:
        # The permanent address of a message that has ended.
        pages.append(f"/admin/deadletter/message/{rows['result'].pk}/change/")
    if isinstance(message := rows.get("message"), Message):
        query = {"queue": message.queue.name, "name": message.stream or "none"}
        pages.append(f"/admin/deadletter/message/stream/?{urlencode(query)}")
    if isinstance(group := rows.get("failuregroup"), FailureGroup):
        pages += pages_of_groups(group)
    if isinstance(moved := rows.get("buried"), Message):
        pages += pages_of_dead_queues(moved)
    return pages


def pages_of_groups(group: FailureGroup) -> list[str]:
    """Return the pages of groups that are asked for by parameters."""
    start, found = "/admin/deadletter/poisonrecord", group.fingerprint
    merged = FailureGroup.objects.exclude(merged_into="").values_list("fingerprint", flat=True)
    tags = GroupTag.objects.filter(fingerprint=found).values_list("key", "value")
    return [
        f"{start}/groups/{found}/?window=day",
        *(f"{start}/groups/act/{act}/?group={found}" for act in GROUP_ACTS),
        *(f"{start}/groups/act/split/?group={one}" for one in merged),
        *(f"{start}/tags/?{urlencode({'key': key, 'value': value})}" for key, value in tags),
        f"{start}/?state=resolved",
    ]


def pages_of_dead_queues(moved: Message) -> list[str]:
    """Return what shows a message in a dead queue, and what died there again."""
    messages, records = "/admin/deadletter/message", "/admin/deadletter/poisonrecord"
    again = PoisonRecord.objects.get(queue=moved.queue.name)
    return [
        f"{messages}/?queue={moved.queue_id}",
        f"{messages}/?group={moved.fingerprint}",
        f"{messages}/?q={moved.source_id}",
        f"{messages}/{moved.pk}/change/",
        *(f"{messages}/act/{act}/?ids={moved.pk}" for act in ACTS),
        # The ids that they had before.
        *(f"{messages}/{row.source_id}/change/" for row in (moved, again)),
        f"{records}/{again.pk}/change/",
        *(f"{records}/records/?q={row.source_id}" for row in (moved, again)),
        f"{records}/records/?fingerprint={moved.fingerprint}",
    ]


def _walk(resolver: URLResolver, start: str) -> Iterator[str]:
    for entry in resolver.url_patterns:
        path = start + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _walk(entry, path)
        elif isinstance(entry, URLPattern) and path.startswith("/admin/deadletter/"):
            yield path


def _filled(path: str, rows: dict[str, Model]) -> str:
    model = path.split("/")[3]
    key = str(rows[model].pk)
    act = "retry-now" if "message/act" in path else "retry"
    for variable, value in {
        "<path:object_id>": key,
        "<int:object_id>": key,
        "<int:pk>": key,
        "<int:job_id>": str(rows["bulkjob"].pk),
        "<int:poison_id>": str(rows["poisonrecord"].pk),
        "<slug:act>": act,
        "<str:fingerprint>": str(getattr(rows["failuregroup"], "fingerprint", "")),
        "<slug:slug>": act,
    }.items():
        path = path.replace(variable, value)
    assert "<" not in path, f"an address with an unknown variable: {path}"
    return path


def state() -> dict[str, list[Any]]:
    """Everything in the tables that pages show."""
    return {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in MODELS
    }
