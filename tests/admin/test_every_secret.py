"""No address of the admin tells a text or a payload to a reader without the permission."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db.models import Model

from deadletter import lifecycle, operations, send
from deadletter.admin.messages.actions import ACTS
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    Act,
    Alert,
    AuditEntry,
    Breaker,
    BrokerStatus,
    Count,
    FailureGroup,
    GroupTag,
    Instance,
    Message,
    MessageTag,
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

from .every_page import every_page, pages_of_dead_queues
from .test_error_texts import SECRET, failure_of, rows  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow


@pytest.fixture
def secrets(rows: dict[str, Any], clock: Any) -> dict[str, Model]:  # noqa: F811
    """One row for every model, with the secret wherever data may be."""
    Message.objects.filter(name="order").delete()
    Queue.objects.filter(name="default").update(stream_policy="halt")
    record = _edited_and_dead_again()
    moved = _buried()
    job = operations.start_job(
        Act.RETRY, PoisonFilter(text=SECRET).fixed("default"), total=0, by="ada"
    )
    list(operations.export_poison(PoisonFilter(text=SECRET), by="ada"))
    for model in (Message, PoisonRecord):
        model.objects.update(progress={"done": 1, "total": 2, "note": SECRET})
    return {
        "buried": moved,
        "message": Message.objects.get(pk=rows["message"]),
        "poisonrecord": record,
        "failuregroup": _group(record, clock.now),
        "bulkjob": job,
        "auditentry": AuditEntry.objects.get(pk=rows["entry"]),
        "queue": Queue.objects.get(name="default"),
        "alert": Alert.objects.get(pk=rows["alert"]),
        "count": Count.objects.create(
            span=Span.MINUTE, at=clock.now, queue="default", name="pay", kind="message", sent=1
        ),
        "workerprocess": WorkerProcess.objects.create(
            name="w", host="h", pid=1, version="1", queues=["default"], concurrency=1,
            running=[], started_at=clock.now, seen_at=clock.now,
        ),
        "instance": Instance.objects.get(pk="order-1"),
        "result": _result(clock.now),
        "schedule": _schedule(clock.now),
        "publishedmessage": PublishedMessage.objects.create(
            id=10**8, broker="default", topic="orders.shipped", key="k", payload={"n": SECRET},
            headers={"x": SECRET}, created_at=clock.now, published_at=clock.now,
        ),
        "breaker": Breaker.objects.get(pk=rows["breaker"]),
        "brokerstatus": BrokerStatus.objects.create(
            name="default", error=f"refused: {SECRET}", unavailable_since=clock.now
        ),
    }  # fmt: skip


def _group(record: PoisonRecord, now: Any) -> FailureGroup:
    """Return the group of a record, with the secret in its tags."""
    fold_all_groups()
    group = FailureGroup.objects.get(fingerprint=record.fingerprint)
    assert SECRET in group.error
    for key in ("customer.id", SECRET):
        GroupTag.objects.create(
            fingerprint=group.fingerprint, key=key, value=SECRET, failures=1, last_at=now
        )
    MessageTag.objects.create(message_id=record.message_id, key="customer.id", value=SECRET, at=now)
    return group


def _edited_and_dead_again() -> PoisonRecord:
    """Return a record that halts its stream and has an earlier payload in its history."""
    message = send("pay", {"n": SECRET, "k": 1}, stream="s", headers={"x": SECRET})
    send("pay", {"n": SECRET}, stream="s")
    for edited in (False, True):
        batch = lifecycle.claim(limit=1, worker="w")
        assert batch.ids == [message.pk]
        lifecycle.fail(batch.token, [failure_of(message.pk, permanent=True)])
        record = PoisonRecord.objects.get(message_id=message.pk)
        if not edited:
            operations.retry_poison(record.pk, payload={"n": SECRET, "k": 2}, by="ada")
    assert "original_payload" in record.history[1]
    edit = AuditEntry.objects.get(payload_after__isnull=False)
    assert SECRET in edit.payload_before
    assert SECRET in edit.payload_after
    return record


def _result(now: Any) -> Result:
    """Return the result of a task that failed once."""
    history = [{"attempt": 1, "error": SECRET, "traceback": SECRET}]
    return Result.objects.create(
        message_id=10**9, queue="default", name="pay", kind="task", outcome="successful",
        payload={"kwargs": {"n": SECRET}}, headers={"x": SECRET}, value=SECRET, history=history,
        progress={"done": 1, "note": SECRET}, created_at=now, finished_at=now,
    )  # fmt: skip


def _schedule(now: Any) -> Schedule:
    """Return a schedule that cannot fire."""
    row = Schedule.objects.create(
        name="nightly", target="pay", payload={"n": SECRET}, headers={"x": SECRET},
        cron="0 3 * * *", created_at=now, next_at=now, due_at=now, failing_since=now,
        last_error=SECRET,
    )  # fmt: skip
    ScheduleRun.objects.create(schedule=row, fired_at=now, outcome="failed", why=SECRET)
    return row


def _buried() -> Message:
    """One message lies in a dead queue, one of the same group died there again."""
    queue = Queue.objects.create(name="dead")
    Queue.objects.create(name="moving", dead_queue=queue, on_poison="dead_queue")
    for _ in range(2):
        message = send("pay", {"n": SECRET}, queue="moving", headers={"x": SECRET})
        batch = lifecycle.claim(["moving"], limit=1, worker="w")
        lifecycle.fail(batch.token, [failure_of(message.pk, permanent=True)])
    operations.poison([queue.messages.earliest("pk").pk], why="looked at")
    # Its own error may be another by now; the death keeps the first.
    assert queue.messages.update(error=None) == 1
    assert SECRET in queue.messages.get().death["error"]
    assert SECRET in PoisonRecord.objects.get(queue="dead").death["error"]
    return queue.messages.get()


def _pages(secrets: dict[str, Model]) -> list[str]:
    poison = secrets["poisonrecord"].pk
    pages = every_page(secrets)
    pages += [f"/admin/deadletter/message/streams/{act}/{poison}/" for act in ("retry", "remove")]
    pages += [f"/admin/deadletter/message/act/{act}/?ids={secrets['message'].pk}" for act in ACTS]
    pages += [f"/admin/deadletter/poisonrecord/jobs/{secrets['bulkjob'].pk}/?part=1", "/admin/"]
    for model in (AuditEntry, Message, PoisonRecord):
        start = f"/admin/deadletter/{model._meta.model_name}"
        for key in model.objects.values_list("pk", flat=True):
            pages += [f"{start}/{key}/change/", f"{start}/{key}/history/"]
    return pages


def _body(answer: Any) -> str:
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return content.decode() + str(answer.headers)


def test_no_address_tells_a_secret_without_the_permission(secrets, login, admin_client) -> None:
    ours = Permission.objects.filter(content_type__app_label="deadletter")
    browser = login(*ours.exclude(codename="view_payload").values_list("codename", flat=True))
    pages = _pages(secrets)

    # With every right the secret is on many of them: these rows do hold it.
    edit = AuditEntry.objects.get(payload_after__isnull=False)
    assert SECRET in _body(admin_client.get(f"/admin/deadletter/auditentry/{edit.pk}/change/"))
    assert SECRET in _body(admin_client.get(pages_of_dead_queues(secrets["buried"])[0]))
    assert sum(SECRET in _body(admin_client.get(page)) for page in pages) > 25
    assert [page for page in pages if SECRET in _body(browser.get(page, follow=True))] == []
    asked = {"format": "jsonl", "why": "w"}
    assert [page for page in pages if SECRET in _body(browser.post(page, asked, follow=True))] == []
