"""Who did what, and what came of it."""

from __future__ import annotations

import pytest

from deadletter import Permanent, operations, send, testing
from deadletter.lifecycle import claim, sweep
from deadletter.models import AuditedMessage, AuditEntry, Message, PoisonRecord, Queue

from .records import dead, entries, failed

HOSTILE = "ann\x00\x1b[31m\ud800\u202e<b>\n" + "x" * 300


def test_the_end_of_every_retried_message_is_entered(clock, handles):
    def handle(message):
        if message.payload == "bad":
            raise Permanent("no")
        if message.payload == "other":
            raise LookupError("elsewhere")

    handles("mail", handle)
    Queue.objects.update(max_attempts=0)
    for payload in ("good", "good", "bad", "other"):
        send("mail", payload)
    # First, all die of the same.
    handles("mail", lambda message: (_ for _ in ()).throw(Permanent("no")))
    testing.drain()
    handles("mail", handle)
    removed = dead()
    records = list(PoisonRecord.objects.order_by("pk"))

    outcome = operations.retry_poison([r.pk for r in records], by="ann", why="fixed", rate=0.1)
    operations.remove([removed.message_id], by="bob")
    clock.advance(60)
    testing.drain()
    followed = sweep().followed

    entry = AuditEntry.objects.get(pk=outcome.entry_id)
    assert followed == 5
    assert (entry.done, entry.succeeded, entry.died_same + entry.died_other) == (5, 2, 2)
    ends = dict(AuditedMessage.objects.filter(entry=entry).values_list("message_id", "outcome"))
    assert list(ends.values())[:2] == [1, 1]
    assert ends[removed.message_id] == AuditedMessage.Outcome.REMOVED
    assert not AuditedMessage.objects.filter(is_open=True).exists()
    assert sweep().followed == 0


def test_the_same_cause_and_another_are_told_apart(clock):
    same, other = dead(), dead()
    ids = [same.message_id, other.message_id]
    operations.retry_poison([same.pk, other.pk])
    Message.objects.filter(pk=ids[1]).update(failure_reason=4, error="timeout")
    operations.poison(ids, why="by hand")
    sweep()

    entry = AuditEntry.objects.order_by("pk").first()
    assert (entry.died_same, entry.died_other, entry.open) == (1, 1, 0)


def test_a_message_that_still_waits_is_still_open(clock):
    record = dead()
    operations.retry_poison(record.pk)
    claim()

    assert sweep().followed == 0
    assert AuditEntry.objects.get().open == 1


def test_every_act_on_messages_is_entered(clock, counts):
    message = failed()
    operations.retry_now([message.pk, 10**15], by="ann", why="now")
    active = send("mail", stream="s")
    operations.release([active.pk, message.pk], by="ann")
    operations.poison([message.pk], by="ann", why="bad")
    operations.remove([active.pk], by="ann")

    assert entries() == [
        ("retry_now", "ann", "now", 1, 1, 0),
        ("release", "ann", "", 1, 0, 1),
        ("poison", "ann", "bad", 1, 0, 0),
        ("discard", "ann", "", 1, 0, 0),
    ]
    trail = operations.trail(message.pk)
    assert [item.entry.act for item in trail] == ["poison", "retry_now"]


def test_a_queue_says_from_what_to_what_and_nothing_when_nothing_changed(clock):
    operations.create_queue("new", by="ann", max_attempts=3)
    operations.set_queue("new", by="ann", why="busy", max_attempts=4, jitter=0.0)
    operations.set_queue("new", by="ann", max_attempts=4)
    operations.pause("new", by="ann")
    operations.pause("new", by="bob")
    operations.resume("new", by="bob")
    operations.resume("new", by="bob")

    found = list(AuditEntry.objects.order_by("pk").values_list("act", "by", "detail"))
    assert found == [
        ("edit_queue", "ann", {"created": "True", "max_attempts": "3"}),
        ("edit_queue", "ann", {"max_attempts": "3 → 4"}),
        ("pause", "ann", {}),
        ("resume", "bob", {}),
    ]


@pytest.mark.parametrize("verb", ["retry", "edit", "remove", "now", "release", "poison", "discard"])
def test_odd_names_and_reasons_are_kept_as_harmless_text(clock, verb):
    record, waiting = dead(), failed(stream="s")
    about = {"by": HOSTILE, "why": HOSTILE}
    match verb:
        case "retry":
            operations.retry_poison(record.pk, **about)
        case "edit":
            operations.retry_poison(record.pk, payload={"new": 1}, **about)
        case "remove":
            operations.remove_poison(record.pk, **about)
        case "now":
            operations.retry_now(waiting.pk, **about)
        case "release":
            operations.release(waiting.pk, **about)
        case "poison":
            operations.poison(waiting.pk, **about)
        case "discard":
            operations.remove(waiting.pk, **about)

    entry = AuditEntry.objects.get()
    assert entry.done == 1
    assert len(entry.by) <= 200
    assert entry.by.startswith("ann��[31m?")
    assert "\n" not in entry.by


def test_an_edited_payload_keeps_the_original_in_the_history(clock):
    record = dead("mail", {"to": "brokn", "password": "s3cret"})

    operations.retry_poison(record.pk, by="ann", payload={"to": "broken"})

    row = Message.objects.get()
    assert row.payload == {"to": "broken"}
    *_, edit = row.history
    assert edit["error"] == "payload edited by ann"
    assert "s3cret" in edit["original_payload"]
    shown = operations.redact_history(row.history)[-1]
    assert shown["original_payload"] == {"to": "brokn", "password": "[redacted]"}
