"""Counters equal the transitions that happened, and folding changes no sum."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from datetime import timedelta
from threading import Thread

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deadletter import FailureReason, Outgoing, operations, send, send_many
from deadletter.lifecycle import (
    Completion,
    Failure,
    abandon,
    claim,
    complete,
    fail,
    process_batch,
    release,
    sweep,
)
from deadletter.lifecycle.counters import writer
from deadletter.models import NO_REASON, Count, Message, PoisonRecord, Span

pytestmark = pytest.mark.slow

WHAT = ("sent", "completed", "failed", "deferred", "poisoned", "retried", "removed")


def totals(**which) -> dict[str, int]:
    """Everything that was counted, however it is folded; nothing is left out."""
    rows = Count.objects.filter(**which).values_list(*WHAT)
    sums = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(WHAT)
    return {what: n for what, n in zip(WHAT, sums, strict=True) if n}


def by_reason() -> dict[int, int]:
    found: Counter[int] = Counter()
    for reason, n in Count.objects.filter(failed__gt=0).values_list("reason", "failed"):
        found[reason] += n
    return dict(found)


def test_a_message_is_counted_when_it_is_sent_and_when_it_is_done(clock):
    send("mail", queue="default")
    batch = claim()
    complete(batch.token, batch.ids, seconds=0.25)

    row = Count.objects.get()
    assert (row.queue, row.name, row.kind, row.reason) == ("default", "mail", "message", NO_REASON)
    assert (row.span, row.at) == (60, clock.now.replace(second=0))
    assert (row.sent, row.completed, row.seconds, row.longest) == (1, 1, 0.25, 0.25)


def test_a_message_that_was_rolled_back_was_never_sent(clock):
    with transaction.atomic():
        send("mail")
        send_many([Outgoing("mail")])
        transaction.set_rollback(True)

    assert totals() == {}


def test_many_are_counted_by_name_and_what_holds_a_key_only_once(clock):
    send("mail", key="k")
    send("mail", key="k")
    send_many([Outgoing("mail", key="k"), Outgoing("mail"), Outgoing("bill"), Outgoing("bill")])

    assert totals(name="mail") == {"sent": 2}
    assert totals(name="bill") == {"sent": 2}


def test_failures_are_counted_by_reason_and_an_unknown_name_as_deferred(clock, policy):
    policy(max_attempts=2)
    ids = send_many([Outgoing("mail") for _ in range(3)])
    batch = claim()
    unknown = FailureReason.UNREGISTERED
    fail(
        batch.token,
        [
            Failure(ids[0], reason=FailureReason.TIMEOUT_EXCEEDED, seconds=2.0),
            Failure(ids[1], reason=FailureReason.TIMEOUT_EXCEEDED, seconds=3.0),
            Failure(ids[2], reason=unknown, deferred=True),
        ],
    )

    assert totals() == {"sent": 3, "failed": 2, "deferred": 1}
    assert by_reason() == {FailureReason.TIMEOUT_EXCEEDED: 2}
    row = Count.objects.get(reason=FailureReason.TIMEOUT_EXCEEDED)
    assert (row.seconds, row.longest) == (5.0, 3.0)


def test_a_death_a_retry_and_a_removal_are_counted(clock, policy):
    policy(max_attempts=1)
    first, second = send_many([Outgoing("mail"), Outgoing("mail")])
    batch = claim()
    fail(batch.token, [Failure(first), Failure(second)])
    one, two = PoisonRecord.objects.order_by("pk")
    operations.retry_poison([one.pk])
    operations.remove_poison([two.pk])

    assert totals() == {"sent": 2, "failed": 2, "poisoned": 2, "retried": 1, "removed": 1}


def test_what_its_retention_removes_is_counted_as_removed(clock, policy):
    policy(max_attempts=1, poison_retention=timedelta(days=1))
    send("mail")
    batch = claim()
    fail(batch.token, [Failure(batch.ids[0])])
    clock.advance(timedelta(days=2))
    sweep()

    assert totals() == {"sent": 1, "failed": 1, "poisoned": 1, "removed": 1}


@pytest.mark.parametrize("stream", [None, "s"])
def test_a_lease_that_ran_out_is_a_failure_once_somebody_notices(clock, policy, stream):
    policy(max_attempts=2)
    send("mail", stream=stream)
    claim(lease=10)
    clock.advance(11)
    claim(lease=10)
    assert by_reason() == {FailureReason.WORKER_LOST: 1}

    clock.advance(11)
    claim(lease=10)

    assert by_reason() == {FailureReason.WORKER_LOST: 2}
    assert totals() == {"sent": 1, "failed": 2, "poisoned": 1}


def test_what_was_given_back_is_not_counted(clock):
    ids = send_many([Outgoing("mail"), Outgoing("mail"), Outgoing("mail")])
    batch = claim()
    release(batch.token, ids[:1])
    complete(batch.token, ids[1:2], status=0)
    abandon(batch.token, ids[2], count=False)

    assert totals() == {"sent": 3}


def test_what_was_not_the_callers_is_not_counted(clock):
    send("mail")
    batch = claim(lease=10)
    clock.advance(11)
    again = claim()
    outcome = process_batch(worker="w", token=batch.token, completions=[Completion(batch.ids[0])])

    assert outcome.lost == batch.ids
    assert again.ids == batch.ids
    assert "completed" not in totals()


def test_nothing_is_written_when_counting_is_off(clock):
    with override_settings(DEADLETTER={"COUNTS": False}):
        send("mail")
        send_many([Outgoing("mail")])
        batch = claim()
        complete(batch.token, batch.ids)

    assert not Count.objects.exists()


def test_a_batch_writes_its_counts_once(clock, django_assert_max_num_queries):
    send_many([Outgoing(f"m{n % 5}") for n in range(100)])
    batch = claim(limit=100)
    before = Count.objects.count()
    with django_assert_max_num_queries(12) as asked:
        process_batch(
            worker="w", token=batch.token, completions=[Completion(id) for id in batch.ids]
        )

    written = [query for query in asked.captured_queries if "deadletter_count" in query["sql"]]
    assert len(written) == 1
    assert totals() == {"sent": 100, "completed": 100}
    assert Count.objects.count() == before


def test_minutes_become_hours_and_hours_days_and_no_sum_changes(clock):
    clock.set(clock.now.replace(hour=0, minute=0))
    for _minute in range(90):
        send_many([Outgoing("mail"), Outgoing("bill")])
        clock.advance(60)
    sweep()
    assert set(Count.objects.values_list("span", flat=True)) == {Span.MINUTE}
    assert Count.objects.filter(writer="").exists()

    clock.advance(timedelta(hours=4))
    sweep()
    assert set(Count.objects.values_list("span", flat=True)) == {Span.HOUR}
    assert Count.objects.count() == 4
    assert totals() == {"sent": 180}

    clock.advance(timedelta(days=16))
    sweep()
    assert sorted(Count.objects.values_list("span", "name", "sent")) == [
        (Span.DAY, "bill", 90),
        (Span.DAY, "mail", 90),
    ]

    with override_settings(DEADLETTER={"COUNTS_KEPT": timedelta(days=30)}):
        clock.advance(timedelta(days=30))
        sweep()
    assert sorted(Count.objects.values_list("span", "name", "sent")) == [
        (Span.EVER, "bill", 90),
        (Span.EVER, "mail", 90),
    ]


def test_what_arrives_late_is_folded_into_what_is_there(clock):
    send("mail")
    clock.advance(timedelta(minutes=5))
    sweep()
    row = Count.objects.get()
    assert (row.writer, row.sent) == ("", 1)
    # A transaction that lasted longer than its minute.
    fields = {"span": 60, "at": row.at, "queue": "default", "name": "mail", "kind": "message"}
    Count.objects.create(**fields, writer="late", sent=2, longest=4)
    sweep()

    row = Count.objects.get()
    assert (row.writer, row.sent, row.longest) == ("", 3, 4)


@pytest.mark.postgresql_only(reason="SQLite has one writer")
@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_being_written_is_folded_later():
    fields = {"span": 60, "queue": "default", "name": "mail", "kind": "message"}
    at = "2026-01-01T00:00:00Z"
    row = Count.objects.create(**fields, at=at, writer="busy", sent=1)
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE deadletter_count SET sent = sent + 1 WHERE id = %s", [row.pk])
        sweep()
        assert Count.objects.get().writer == "busy"
        cursor.execute("COMMIT")
    sweep()

    assert totals() == {"sent": 2}
    assert Count.objects.get().writer == ""


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "many", "claim", "done", "fail", "die", "back", "lose", "retry", "remove"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whatever_happens_the_counters_equal_it(clock, policy, steps):
    """The truth is kept by the test, from what the verbs answered, and compared at the end."""
    with transaction.atomic():
        policy(max_attempts=3)
        Story(clock).play(steps)
        transaction.set_rollback(True)


class Story:
    """Random verbs, and what came of them."""

    def __init__(self, clock) -> None:
        self.clock = clock
        self.truth: Counter[str] = Counter()
        self.held: list[tuple[str, int]] = []

    def play(self, steps) -> None:
        before = totals()
        for step, n in steps:
            getattr(self, step)(n)
            self.clock.advance(20)
        sweep()
        self.truth["poisoned"] = PoisonRecord.objects.count() + self.truth["retried"]
        self.truth["poisoned"] += self.truth["removed"]
        expected = {what: n for what, n in self.truth.items() if n}
        assert before == {}
        assert totals() == expected

    def send(self, n: int) -> None:
        send(f"m{n}", stream="s" if n == 3 else None)
        self.truth["sent"] += 1

    def many(self, n: int) -> None:
        self.truth["sent"] += len(send_many([Outgoing(f"m{k}") for k in range(n)]))

    def claim(self, n: int) -> None:
        expired = {
            id
            for id, token in Message.objects.values_list("pk", "lease_token")
            if token is not None
        } - {id for _, id in self.held}
        batch = claim(limit=n + 1, lease=10_000)
        self.held += [(batch.token, id) for id in batch.ids]
        self.truth["failed"] += len(expired & {*batch.ids, *batch.dead})

    def done(self, n: int) -> None:
        for token, id in self._take(n):
            complete(token, [id])
            self.truth["completed"] += 1

    def fail(self, n: int) -> None:
        for token, id in self._take(n):
            fail(token, [Failure(id, delay=1)])
            self.truth["failed"] += 1

    def die(self, n: int) -> None:
        for token, id in self._take(n):
            fail(token, [Failure(id, permanent=True)])
            self.truth["failed"] += 1

    def back(self, n: int) -> None:
        for token, id in self._take(n):
            release(token, [id])

    def lose(self, n: int) -> None:
        """The worker dies: its lease runs out, nobody reports."""
        for _token, id in self._take(n):
            Message.objects.filter(pk=id).update(available_at=self.clock.now)

    def retry(self, n: int) -> None:
        ids = list(PoisonRecord.objects.order_by("pk").values_list("pk", flat=True)[:n])
        self.truth["retried"] += len(operations.retry_poison(ids).retried)

    def remove(self, n: int) -> None:
        ids = list(PoisonRecord.objects.order_by("pk").values_list("pk", flat=True)[:n])
        self.truth["removed"] += len(operations.remove_poison(ids).removed)

    def _take(self, n: int) -> list[tuple[str, int]]:
        taken, self.held = self.held[:n], self.held[n:]
        return taken


def test_each_thread_has_rows_of_its_own(clock):
    names: list[str | None] = [writer(connections["default"])]
    thread = Thread(target=lambda: names.append(writer(connections["default"])))
    thread.start()
    thread.join()

    assert len(set(names)) == 2


@pytest.mark.postgresql_only(reason="SQLite has one writer")
@pytest.mark.django_db(transaction=True)
def test_a_thread_with_two_connections_to_one_database_does_not_wait_for_itself():
    """One alias through a pool and one around it, for example."""
    connections["direct"] = connection.copy(alias="direct")
    with closing(connections["direct"]) as direct, transaction.atomic():
        send("mail")
        with direct.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        send("mail", using="direct")
        send_many([Outgoing("mail")], using="direct")
    del connections["direct"]

    assert totals() == {"sent": 3}
