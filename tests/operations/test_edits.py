"""An edit of a payload can be proven: what it was, what it became, who did it, for how long."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from deadletter import operations
from deadletter.lifecycle import sweep, sweeps
from deadletter.models import AuditedMessage, AuditEntry, Message, PoisonRecord

from .records import dead


def edited(before, after, **options) -> AuditEntry:
    Message.objects.all().delete()  # out of the way of the next
    record = dead("mail", before)
    outcome = operations.retry_poison(record.pk, by="ann", payload=after, **options)
    return AuditEntry.objects.get(pk=outcome.entry_id)


def test_an_entry_keeps_the_payload_before_and_after_as_they_were_stored(clock):
    entry = edited({"to": "bróken", "n": 1.0}, {"to": "fixed"}, why="typo")

    assert (entry.by, entry.why, entry.detail) == ("ann", "typo", {"edited": True})
    assert entry.payload_before == '{"to":"bróken","n":1.0}'
    assert entry.payload_after == '{"to":"fixed"}'
    assert Message.objects.get().payload == {"to": "fixed"}


def test_an_edit_of_nothing_and_to_nothing_is_kept(clock):
    assert (edited(None, {"a": 1}).payload_after) == '{"a":1}'
    entry = edited({"a": 1}, None)

    assert (entry.payload_before, entry.payload_after) == ('{"a":1}', "null")


def test_a_retry_without_an_edit_keeps_no_payload(clock):
    record = dead("mail", {"a": 1})
    operations.retry_poison(record.pk)

    entry = AuditEntry.objects.get()
    assert (entry.payload_before, entry.payload_after) == (None, None)


def test_a_damaged_payload_is_kept_as_the_text_it_was(clock):
    record = dead("mail", {"a": 1})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_poison SET payload = %s", ['{"a": '])

    outcome = operations.retry_poison(record.pk, payload={"a": 1})

    assert AuditEntry.objects.get(pk=outcome.entry_id).payload_before == '{"a": '


def test_each_edit_of_several_has_an_entry_of_its_own(clock):
    records = [dead("mail", {"n": n}) for n in range(3)]
    ids = [record.pk for record in records]

    outcome = operations.retry_poison([*ids, 10**9], by="ann", payload={"n": "x"}, rate=0.1)

    assert (outcome.retried, outcome.missing, outcome.refused) == (ids, [10**9], {})
    entries = list(AuditEntry.objects.order_by("pk"))
    assert [entry.payload_before for entry in entries] == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert [entry.done for entry in entries] == [1, 1, 1]
    assert outcome.entry_id == entries[-1].pk
    touched = AuditedMessage.objects.order_by("entry_id").values_list("message_id", flat=True)
    assert list(touched) == [record.message_id for record in records]
    times = Message.objects.order_by("pk").values_list("available_at", flat=True)
    assert [(at - clock.now).total_seconds() for at in times] == [0, 10, 20]


def test_an_edit_that_is_refused_keeps_nothing_and_changes_nothing(clock):
    record = dead("mail", {"a": 1})

    outcome = operations.retry_poison(record.pk, queue="nowhere", payload={"a": 2})

    assert list(outcome.refused) == [record.pk]
    entry = AuditEntry.objects.get()
    assert (entry.done, entry.refused, entry.payload_after) == (0, 1, None)
    assert PoisonRecord.objects.get().payload == {"a": 1}


def test_the_payloads_are_cleared_after_their_time_and_the_entry_stays(clock, monkeypatch):
    monkeypatch.setattr(sweeps, "SMALL_CHUNK", 2)
    old = [edited({"n": n}, {"n": -n}).pk for n in range(5)]
    clock.advance(timedelta(days=89))
    young = edited({"n": 9}, {"n": -9}).pk
    assert sweep().cleared == 0

    clock.advance(timedelta(days=1))

    assert sweep().cleared == 5
    assert sweep().cleared == 0
    assert AuditEntry.objects.count() == 6
    cleared = AuditEntry.objects.filter(payload_before=None, payload_after=None)
    assert sorted(cleared.values_list("pk", flat=True)) == old
    assert [entry.detail for entry in cleared] == [{"edited": True}] * 5
    assert AuditEntry.objects.get(pk=young).payload_before == '{"n":9}'


@pytest.mark.parametrize(("kept", "cleared"), [(None, 0), (3600, 1), (timedelta(days=30), 0)])
def test_how_long_payloads_are_kept_is_a_setting(clock, settings, kept, cleared):
    settings.DEADLETTER = {**settings.DEADLETTER, "AUDIT_PAYLOADS_KEPT": kept}
    edited({"n": 1}, {"n": 2})
    clock.advance(timedelta(days=10))

    assert sweep().cleared == cleared


def test_the_trail_of_a_message_reads_no_payloads(clock, django_assert_num_queries):
    entry = edited({"n": 1}, {"n": 2})
    [row] = operations.trail(Message.objects.get().pk)

    assert row.entry == entry
    assert row.entry.get_deferred_fields() == {"payload_before", "payload_after"}
