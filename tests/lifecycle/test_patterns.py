"""A claim takes patterns where it takes names, and matches them each time."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, lifecycle, operations, send, send_many, testing
from deadletter.exceptions import UnknownQueue
from deadletter.lifecycle import ClaimRequest, Levels, claim, process_batch
from deadletter.lifecycle.internal_queue import ensure_internal_queue
from deadletter.lifecycle.levels import FEW, read_levels
from deadletter.models import AuditEntry, Message, PoisonRecord, Queue


@pytest.fixture
def tenants(policy) -> list[str]:
    names = ["tenant-b/mail", "tenant-a/sms", "tenant-a/mail"]
    for name in names:
        policy(name)
    return names


def queues(batch) -> list[str]:
    return [message.queue for message in batch]


def bury(queue: str, n: int = 1) -> None:
    ids = send_many([Outgoing("m") for _ in range(n)], queue=queue)
    operations.poison(ids, why="a test")


def test_a_pattern_matches_across_slashes_in_the_order_of_names(clock, tenants):
    for name in [*tenants, "default"]:
        send_many([Outgoing("m", priority=5), Outgoing("m", priority=-5)], queue=name)

    batch = claim(["tenant-a/*"])

    assert queues(batch) == ["tenant-a/mail"] * 2 + ["tenant-a/sms"] * 2
    assert [Message.objects.get(pk=id).priority for id in batch.ids] == [-5, 5, -5, 5]
    assert Message.objects.filter(lease_token=None).count() == 4


def test_names_and_patterns_keep_the_order_given(clock, tenants):
    for name in [*tenants, "default"]:
        send("m", queue=name)

    batch = claim(["default", "*mail", "tenant-a/*"])

    assert queues(batch) == ["default", "tenant-a/mail", "tenant-b/mail", "tenant-a/sms"]


def test_a_pattern_never_matches_a_dead_queue_or_our_own(clock, policy):
    dead = policy("tenant/dead")
    policy("tenant/mail", dead_queue=dead, on_poison="dead_queue")
    ensure_internal_queue("default")
    for name in ("tenant/dead", "deadletter", "tenant/mail"):
        send("m", queue=name)

    assert queues(claim(["*"])) == ["tenant/mail"]
    assert queues(claim(["tenant/*", "dead*"])) == []
    assert queues(claim(["tenant/*", "tenant/dead", "deadletter"])) == ["tenant/dead", "deadletter"]


def test_a_queue_that_became_a_dead_queue_since_is_not_matched_by_the_levels_known(clock, policy):
    dead = policy("tenant/dead")
    send("m", queue="tenant/dead")
    known = Levels(tuple(read_levels("default")), 0.0)
    Queue.objects.filter(name="default").update(dead_queue=dead, on_poison="dead_queue")

    request = ClaimRequest(["tenant/*"], levels=known, rediscover=False)
    by_pattern = process_batch(worker="w", claim=request)
    request = ClaimRequest(["tenant/*", "tenant/dead"], levels=known, rediscover=False)
    by_name = process_batch(worker="w", claim=request)

    assert (len(by_pattern), len(by_name)) == (0, 1)


def test_a_queue_made_later_is_found_by_the_next_claim(clock, tenants):
    request = ClaimRequest(["tenant-a/*"], 10)
    assert queues(process_batch(worker="w", claim=request)) == []

    Queue.objects.create(name="tenant-a/new")
    send("m", queue="tenant-a/new")

    assert queues(process_batch(worker="w", claim=request)) == ["tenant-a/new"]


def test_levels_of_queues_that_a_pattern_does_not_match_are_passed_over(clock, tenants):
    for name in tenants:
        send("m", queue=name)
    known = Levels(tuple(read_levels("default")), 0.0)

    request = ClaimRequest(["tenant-a/*"], levels=known, rediscover=False)

    assert sorted(queues(process_batch(worker="w", claim=request))) == [
        "tenant-a/mail",
        "tenant-a/sms",
    ]


@pytest.mark.slow
def test_many_names_and_a_pattern_come_in_their_order(clock, policy):
    names = [f"n{n}" for n in range(FEW + 5)]
    for name in [*reversed(names), "tenant/x"]:
        policy(name)
        send("m", queue=name)

    assert queues(claim([*names[:-1], "tenant/*", "n*"], limit=1_000)) == [
        *names[:-1],
        "tenant/x",
        names[-1],
    ]


def test_a_paused_queue_is_not_claimed_by_a_pattern(clock, tenants):
    for name in tenants:
        send("m", queue=name)

    paused = operations.pause_matching("tenant-a/*", by="ann")

    assert [queue.name for queue in paused] == ["tenant-a/mail", "tenant-a/sms"]
    assert queues(claim(["tenant-*"])) == ["tenant-b/mail"]
    entries = AuditEntry.objects.order_by("pk").values_list("act", "by", "selection")
    assert list(entries) == [
        ("pause", "ann", {"queue": "tenant-a/mail"}),
        ("pause", "ann", {"queue": "tenant-a/sms"}),
    ]
    operations.resume_matching("*/mail")
    assert queues(claim(["tenant-*"])) == ["tenant-a/mail"]
    with pytest.raises(UnknownQueue):
        operations.pause_matching("nobody/*")


def test_drain_takes_patterns(clock, tenants, handles):
    handles("m", lambda message: None)
    for name in tenants:
        send("m", queue=name)

    assert testing.drain(queues=["tenant-a/*"]).completed == 2
    assert Message.objects.get().queue.name == "tenant-b/mail"


def test_filters_of_poison_and_of_messages_take_patterns(clock, tenants):
    for name in tenants:
        send("m", queue=name)
        bury(name)

    assert {r.queue for r in operations.list_poison(queue="tenant-a/*")} == {
        "tenant-a/mail",
        "tenant-a/sms",
    }
    assert [r.queue for r in operations.list_poison(queue="tenant-b/mail")] == ["tenant-b/mail"]
    assert operations.list_poison(queue="tenant") == []
    found = operations.list_messages("pending", queue="*/mail")
    assert [message.queue.name for message in found] == ["tenant-b/mail", "tenant-a/mail"]
    counted = operations.stats(queue="tenant-a/*")
    assert list(counted.queues) == ["tenant-a/mail", "tenant-a/sms"]
    assert (counted.total.pending, counted.total.dead) == (2, 2)
    assert counted.kinds == {"message": {"waiting": 2, "dead": 2}}


def test_poison_that_outlived_its_queue_is_matched_too(clock, tenants):
    bury("tenant-a/sms")
    operations.delete_queue("tenant-a/sms")

    assert [r.queue for r in operations.list_poison(queue="tenant-a/*")] == ["tenant-a/sms"]


def test_an_act_by_pattern_touches_what_it_matched_and_the_trail_names_it(clock, policy, tenants):
    for name in tenants:
        bury(name, 2)
    wanted = operations.PoisonFilter(queue="tenant-a/*").fixed("default")
    policy("tenant-a/new")
    bury("tenant-a/new")

    total = operations.retry_matching(wanted, by="ann")

    assert total.done == 4
    left = PoisonRecord.objects.order_by("queue").values_list("queue", flat=True)
    assert list(left) == ["tenant-a/new", "tenant-b/mail", "tenant-b/mail"]
    selection = AuditEntry.objects.latest("pk").selection
    assert selection["queue"] == "tenant-a/*"
    assert selection["queues"] == ["tenant-a/mail", "tenant-a/sms"]
    assert operations.PoisonFilter.from_dict(wanted.as_dict()) == wanted


def test_a_destination_is_never_a_pattern(clock, tenants):
    bury("tenant-a/mail")
    record = PoisonRecord.objects.get()

    with pytest.raises(ValueError, match=r"queue: 'tenant-\*' is not the name of a queue"):
        operations.retry_matching(operations.PoisonFilter(), queue="tenant-*")
    with pytest.raises(ValueError, match=r"queue: 'tenant-\*' is not the name of a queue"):
        operations.retry_poison([record.pk], queue="tenant-*")
    with pytest.raises(UnknownQueue):
        operations.require_queue("tenant-*")
    assert PoisonRecord.objects.count() == 1


def test_a_claim_by_name_is_still_an_equality(clock, policy):
    policy("a.b")
    policy("axb")
    send("m", queue="axb")

    assert queues(lifecycle.claim(["a.b"])) == []
