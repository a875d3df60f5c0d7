"""Which poison is meant, and what cannot be meant."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from deadletter import FailureReason, operations
from deadletter.models import PoisonRecord
from deadletter.operations import PoisonFilter

from .records import dead, many_dead, pks


def matching(**wanted) -> list[int]:
    return pks(PoisonFilter(**wanted).records("default"))


def test_every_field_narrows(clock, policy):
    policy("other")
    plain = dead()
    there = dead("bill", queue="other", stream="a", error="shop.Full: disk 100% full")
    clock.advance(60)
    late = dead(error="late")
    PoisonRecord.objects.filter(pk=there.pk).update(
        kind="activity", instance="i1", exception="shop.Full", fingerprint="f" * 16
    )
    PoisonRecord.objects.filter(pk=late.pk).update(reason=FailureReason.EXPIRED)

    assert matching() == [plain.pk, there.pk, late.pk]
    for wanted in (
        {"queue": "other"},
        {"name": "bill"},
        {"kind": "activity"},
        {"instance": "i1"},
        {"exception": "shop.Full"},
        {"fingerprint": "f" * 16},
        {"stream": "a"},
        {"text": "DISK 100%"},
    ):
        assert matching(**wanted) == [there.pk], wanted
    assert matching(since=clock.now) == [late.pk]
    assert matching(until=clock.now) == [plain.pk, there.pk]
    assert matching(reason=FailureReason.EXPIRED) == [late.pk]
    assert matching(reason=FailureReason.UNKNOWN) == [plain.pk, there.pk, late.pk]
    assert matching(queue="other", name="mail") == []


@pytest.mark.parametrize("text", ["%", "_", "\\", "100%", "a_b", "*", "'; DROP TABLE x; --"])
def test_a_wildcard_in_the_text_is_a_character(clock, text):
    record = dead(error=f"before {text} after")
    dead(error="before 100x aXb after")

    assert matching(text=text) == [record.pk]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"queue": "a\x00"}, "queue: the NUL character"),
        ({"text": "\ud800"}, "text: a lone surrogate"),
        ({"text": "x" * 1_001}, "text: longer than 1,000"),
        ({"since": datetime(2026, 1, 1)}, "since: needs a time zone"),
    ],
)
def test_what_no_record_could_have_is_refused(wanted, problem):
    with pytest.raises(ValueError, match=problem):
        PoisonFilter(**wanted)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"colour": "red"}, "colour: there is no such filter"),
        ({"since": "yesterday"}, "since: expected a time"),
        ({"since": "2026-02-31T00:00:00+00:00"}, "since: expected a time"),
        ({"reason": "bad luck"}, "reason: 'bad luck' is none of"),
        ({"reason": "²"}, "reason"),
        ({"up_to": "x"}, "up_to: expected a number"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(given, problem):
    with pytest.raises(ValueError, match=problem):
        PoisonFilter.from_dict(given)


def test_a_filter_can_be_kept_as_json_and_read_back(clock):
    wanted = PoisonFilter(
        queue="a", reason=FailureReason.EXPIRED, since=clock.now, text="%", up_to=5
    )

    assert PoisonFilter.from_dict(wanted.as_dict()) == wanted
    assert PoisonFilter.from_dict({"reason": "worker-lost", "queue": ""}) == PoisonFilter(
        reason=FailureReason.WORKER_LOST
    )


def test_numbers_beyond_every_column_match_nothing(clock):
    dead()

    assert matching(reason=10**30) == []
    assert len(matching(up_to=10**30)) == 1
    for verb in (operations.retry_poison, operations.remove_poison, operations.retry_now):
        assert verb([10**30, -1, 0]).missing == [10**30, -1, 0]
    with pytest.raises(TypeError, match="an id is a whole number"):
        operations.retry_poison(["1"])


def test_what_dies_after_the_preview_is_not_touched(clock, counts):
    first, second = dead(), dead()
    seen = operations.preview(PoisonFilter(name="mail"))
    assert (seen.count, pks(seen.sample)) == (2, [first.pk, second.pk])
    # Between preview and confirmation: one is retried by somebody else, one more dies, and one
    # that was retried dies again.
    operations.retry_poison([first.pk])
    died_again = dead_again(first.message_id)
    late = dead()

    total = operations.retry_matching(seen.wanted)

    assert (total.done, total.refused, total.missing) == (1, 0, 0)
    assert sorted(PoisonRecord.objects.values_list("pk", flat=True)) == [died_again, late.pk]
    assert counts() == {"pending": 1, "dead": 2}


def dead_again(message_id: int) -> int:
    operations.poison([message_id], why="again")
    return PoisonRecord.objects.get(message_id=message_id).pk


def test_a_preview_counts_no_more_than_the_limit_and_says_what_halts(clock, policy):
    policy(stream_policy="halt")
    halting = dead(stream="a")
    many_dead(20)

    seen = operations.preview(PoisonFilter(queue="default"), limit=7)
    whole = operations.preview(PoisonFilter(queue="default"))

    assert (seen.count, len(seen.sample), whole.count, whole.halting) == (7, 5, 21, 1)
    assert seen.sample[0] == halting
    assert seen.sample[0].get_deferred_fields() >= {"payload", "history"}


def test_fixing_a_filter_asks_only_the_primary_key(clock, django_assert_num_queries):
    dead()

    with django_assert_num_queries(1) as asked:
        fixed = PoisonFilter(text="x", since=clock.now - timedelta(1)).fixed("default")

    assert fixed.up_to == PoisonRecord.objects.get().pk
    assert "WHERE" not in asked[0]["sql"]
