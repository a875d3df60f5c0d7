"""What is moved to a dead queue raises the alerts of a death, once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import operations, send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Alert, Message, Queue

from .conftest import notices, open_alerts


@pytest.fixture
def dead_queue(policy) -> Queue:
    queue = policy("dead")
    policy(on_poison="dead_queue", dead_queue=queue)
    policy("other", on_poison="dead_queue", dead_queue=queue)
    return queue


def die(name: str = "mail", *, queue: str = "default", error: str = "boom") -> str:
    """Let a message die into its dead queue; return the key of its group's alert."""
    message = send(name, queue=queue)
    batch = claim(queues=[queue])
    fail(batch.token, [Failure(message.id, permanent=True, error=error)])
    return f"new_group:{Message.objects.get(source_id=message.id).fingerprint}"


def die_there() -> None:
    batch = claim(queues=["dead"])
    fail(batch.token, [Failure(id, permanent=True, error="other") for id in batch.ids])


def test_a_new_group_is_told_with_a_link_to_the_dead_queue(clock, rules, decide, dead_queue):
    rules(new_group=True, base_url="https://site.example")
    decide()

    key = die(error="the disk is full")
    die()
    assert decide().raised == [key]

    [alert] = notices()[0]["alerts"]
    assert (alert["name"], alert["queue"], alert["count"]) == ("mail", "default", 2)
    assert alert["error"] == "boom"
    group = Message.objects.filter(queue=dead_queue)[0].fingerprint
    assert alert["url"].endswith(f"/poisonrecord/groups/{group}/")
    assert alert["detail"]["buried_as"] == Message.objects.filter(queue=dead_queue).last().pk


def test_a_group_of_a_queue_that_no_rule_asks_for_is_not_told(clock, rules, decide, dead_queue):
    rules(new_group={"queue": "default"})
    decide()

    die("bill", queue="other")
    assert decide().raised == []
    key = die()
    assert decide().raised == [key]


def test_what_dies_again_in_its_dead_queue_is_not_new(clock, rules, decide, dead_queue):
    rules(new_group=True, poison_rate={"above": 0, "within": 60}, digest=1, recover_after=60)
    decide()
    key = die()
    assert decide().raised == [key, "poison_rate:"]
    assert decide(100).recovered == [key, "poison_rate:"]

    die_there()

    assert decide().raised == []
    assert decide(100).raised == []
    assert open_alerts() == []


def test_the_rate_counts_what_was_moved_in_the_queue_it_died_in(clock, rules, decide, dead_queue):
    rules(poison_rate={"above": 1, "within": 60, "queue": "*"})
    decide()
    die(queue="other")
    die()
    since = clock.now
    clock.advance(1)
    die()

    assert decide().raised == ["poison_rate:default"]

    [alert] = notices()[0]["alerts"]
    assert (alert["queue"], alert["count"]) == ("default", 2)
    assert Alert.objects.get().since == since


def test_the_depth_counts_what_lies_in_dead_queues_until_it_is_retried(
    clock, rules, decide, dead_queue
):
    rules(poison_depth={"above": 2}, recover_after=1)
    decide()
    for _ in range(3):
        die()
    clock.advance(timedelta(days=2).total_seconds())

    assert decide().raised == ["poison_depth:"]
    die_there()
    assert decide().recovered == []
    records = operations.list_poison()
    operations.retry_poison([record.pk for record in records])
    operations.retry_dead_queue(operations.DeadQueueFilter(dead_queue="dead"))
    assert decide(60).recovered == ["poison_depth:"]


def test_health_counts_what_was_moved(clock, dead_queue):
    die()
    die()

    found = operations.health(max_poison=1)

    assert found.poison == 2
    assert any("more than 1 dead letters of the last" in problem for problem in found.problems)
    clock.advance(timedelta(days=2).total_seconds())
    assert operations.health().poison == 0
