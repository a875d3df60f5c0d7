"""Each rule: raised once, told once, over when its condition has ended for long enough."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from deadletter import operations, send
from deadletter.lifecycle import Failure, claim, complete, fail
from deadletter.models import Alert, Breaker, PoisonRecord, Queue, WorkerProcess
from tests.operations.records import dead

from .conftest import notices, open_alerts, told

pytestmark = pytest.mark.slow


@pytest.fixture
def group(decide) -> Callable[[], str]:
    """Let a message die; return the key of its group's alert."""

    def die(name: str = "mail", **options: object) -> str:
        return f"new_group:{dead(name, **options).fingerprint}"

    return die


def test_nothing_is_decided_while_alerts_are_off(clock, settings, decide):
    dead()

    with pytest.raises(AssertionError):
        decide()

    assert not Alert.objects.exists()


def test_the_first_death_of_a_group_is_told_once_and_its_end_when_it_is_quiet(
    clock, rules, decide, group
):
    rules(new_group=True, digest=600, recover_after=300)
    decide()

    key = group(error="the disk is full")
    assert decide().raised == [key]
    assert decide().raised == []
    assert told() == [[("raised", key)]]
    [alert] = notices()[0]["alerts"]
    assert (alert["name"], alert["queue"], alert["count"]) == ("mail", "default", 1)
    assert alert["error"] == "the disk is full"

    assert decide(300).recovered == [key]
    assert decide().recovered == []
    assert told() == [[("raised", key)], [("recovered", key)]]
    assert open_alerts() == []


def test_groups_that_began_before_the_first_decision_are_not_new(clock, rules, decide, group):
    group()
    clock.advance(1)
    rules(new_group=True)

    decide()
    group()

    assert decide().raised == []


def test_a_group_that_was_emptied_and_dies_again_is_new_again(clock, rules, decide, group):
    rules(new_group=True, digest=1, recover_after=60)
    decide()
    key = group()
    decide()
    operations.remove_poison([PoisonRecord.objects.get().pk])
    assert decide(100).recovered == [key]
    clock.advance(1)

    assert group() == key

    assert decide().raised == [key]
    assert [event for notice in told() for event, _ in notice] == ["raised", "recovered", "raised"]


def test_the_end_says_how_many_died_though_somebody_tidied_up(clock, rules, decide, group):
    rules(new_group=True, recover_after=60)
    decide()
    key = group()
    group()
    decide()

    operations.remove_poison(PoisonRecord.objects.values_list("pk", flat=True))

    assert decide(100).recovered == [key]
    assert notices()[-1]["alerts"][0]["title"] == "mail dies of UNKNOWN (2 so far)"


def test_a_group_that_dies_again_after_its_alert_is_over_is_told_again(clock, rules, decide, group):
    rules(new_group=True, recover_after=60, digest=30)
    decide()
    key = group()
    group()
    decide()
    assert decide(100).recovered == [key]
    assert decide(100).raised == []

    group()

    assert decide().raised == [key]
    assert [alert["count"] for notice in notices() for alert in notice["alerts"]] == [2, 2, 1]


def test_a_record_that_commits_late_is_still_found(clock, rules, decide, group):
    """Its id and its time are lower than those of what was decided on before."""
    rules(new_group=True)
    decide()
    key = group("late")
    record = PoisonRecord.objects.get()
    fields = {f.attname: getattr(record, f.attname) for f in PoisonRecord._meta.concrete_fields}
    record.delete()
    clock.advance(3600)
    other = group("early")
    assert decide().raised == [other]

    PoisonRecord.objects.create(**fields)

    assert decide().raised == [key]


def test_a_death_that_commits_just_after_the_end_was_decided_is_told(clock, rules, decide, group):
    """Its time is that of the start of its transaction, before the alert was closed."""
    rules(new_group=True, recover_after=60)
    decide()
    key = group()
    decide()
    assert decide(100).recovered == [key]

    group()
    latest = PoisonRecord.objects.filter(poisoned_at=clock.now)
    latest.update(poisoned_at=clock.now - timedelta(seconds=1))

    assert decide().raised == [key]


def test_a_cause_that_was_over_for_long_is_told_though_its_old_records_are_there(
    clock, rules, decide, group
):
    rules(new_group=True, recover_after=60)
    decide()
    key = group()
    decide()
    decide(100)
    assert decide(timedelta(days=40).total_seconds()).raised == []
    assert decide().raised == []

    group()
    began = clock.now

    assert decide().raised == [key]
    assert (notices()[-1]["alerts"][0]["count"], Alert.objects.get().since) == (1, began)


def test_only_the_queue_asked_for_has_new_groups(clock, rules, decide, group, policy):
    policy("orders")
    rules(new_group={"queue": "orders"})
    decide()

    group("mail")
    key = group("ship", queue="orders")

    assert decide().raised == [key]


def test_more_deaths_than_allowed_in_a_time_are_told_and_end_with_it(clock, rules, decide, policy):
    policy("orders")
    rules(poison_rate={"above": 2, "within": 300}, recover_after=60, digest=60)
    decide()

    dead()
    dead(queue="orders")
    assert decide().raised == []
    dead()
    assert decide().raised == ["poison_rate:"]
    assert notices()[-1]["alerts"][0]["count"] == 3
    assert decide().raised == []

    # The first two leave the window after 300 s; a minute later it counts as over.
    assert [decide().recovered for _ in range(19)] == [[]] * 19
    assert decide().recovered == ["poison_rate:"]
    assert told() == [[("raised", "poison_rate:")], [("recovered", "poison_rate:")]]


def test_a_queue_with_a_rule_of_its_own_is_not_judged_by_the_rule_for_each(
    clock, rules, decide, policy
):
    policy("orders")
    rules(poison_rate=[{"above": 0, "queue": "*"}, {"above": 1, "queue": "orders"}])
    decide()

    dead()
    dead(queue="orders")
    assert decide().raised == ["poison_rate:default"]

    dead(queue="orders")
    assert decide().raised == ["poison_rate:orders"]


def test_more_dead_letters_than_allowed_are_told_until_somebody_tidies_up(clock, rules, decide):
    rules(poison_depth={"above": 1, "queue": "default"}, recover_after=60, digest=60)
    first = dead()
    assert decide().raised == []
    dead()
    assert decide().raised == ["poison_depth:default"]

    assert decide(3600).recovered == []
    operations.remove_poison([first.pk])
    assert decide().recovered == []
    assert decide(60).recovered == ["poison_depth:default"]
    assert told() == [[("raised", "poison_depth:default")], [("recovered", "poison_depth:default")]]


def test_a_message_that_waits_too_long_is_told_until_it_is_handled(clock, rules, decide, policy):
    policy("later", paused=True)
    rules(oldest_age={"after": 120}, recover_after=60)
    send("mail", priority=5)
    send("mail", queue="later")
    assert decide(120).raised == []
    assert decide(1).raised == ["oldest_age:default"]
    assert decide().raised == []
    assert notices()[0]["alerts"][0]["title"] == "queue default: a message has been due for 2 min"

    batch = claim(["default"], limit=1)
    complete(batch.token, batch.ids)

    assert decide().recovered == []
    assert decide(60).recovered == ["oldest_age:default"]


def test_a_stream_that_stands_still_is_told_until_it_goes_on(clock, rules, decide, policy):
    policy("orders", stream_policy="halt")
    rules(halted_stream=True, digest=60, recover_after=60)
    decide()

    first = dead("ship", queue="orders", stream="customer-1")
    assert decide().raised == ["halted_stream:orders"]
    second = dead("ship", queue="orders", stream="customer-2")
    assert decide(60).raised == []
    assert told()[1:] == [[("continues", "halted_stream:orders")]]
    assert notices()[1]["alerts"][0]["count"] == 2
    assert notices()[1]["alerts"][0]["detail"]["streams"] == ["customer-1", "customer-2"]

    operations.retry_poison([first.pk, second.pk])

    assert decide().recovered == []
    assert decide(60).recovered == ["halted_stream:orders"]


def worker(clock, name: str = "w1", **fields: object) -> WorkerProcess:
    return WorkerProcess.objects.create(
        name=name,
        host="h",
        pid=1,
        version="1",
        concurrency=1,
        started_at=clock.now,
        seen_at=clock.now,
        **fields,
    )


def test_a_worker_that_was_lost_is_told_until_it_is_back(clock, rules, decide):
    rules(worker_lost={"after": 60}, recover_after=30)
    lost = worker(clock, running=[{"id": 1, "name": "mail", "queue": "default", "seconds": 1}])
    gone = worker(clock, "w2")
    assert decide(60).raised == []
    gone.delete()  # it said goodbye

    assert decide(1).raised == ["worker_lost:w1"]
    assert decide().raised == []
    assert notices()[0]["alerts"][0]["detail"]["running"] == ["mail"]

    WorkerProcess.objects.filter(pk=lost.pk).update(seen_at=clock.now)
    assert decide(1).recovered == []
    assert decide(29).recovered == ["worker_lost:w1"]


def test_an_open_breaker_is_told_until_it_closes(clock, rules, decide):
    rules(breaker_opened=True, recover_after=30)
    Breaker.objects.create(
        name="mail", failures=10, error="refused", opened_at=clock.now, until=clock.now
    )
    assert decide().raised == ["breaker_opened:mail"]
    assert decide().raised == []
    assert notices()[0]["alerts"][0]["error"] == "refused"

    Breaker.objects.all().delete()

    assert decide().recovered == []
    assert decide(30).recovered == ["breaker_opened:mail"]


def test_a_breaker_that_nothing_closes_is_over_some_time_after_its_time(clock, rules, decide):
    rules(breaker_opened=True, recover_after=30)
    Breaker.objects.create(
        name="mail", failures=10, error="refused", opened_at=clock.now, until=clock.now
    )
    assert decide().raised == ["breaker_opened:mail"]
    assert decide(284).recovered == []  # the probe may fail, and it is held again

    assert decide(31).recovered == ["breaker_opened:mail"]


def test_work_in_a_queue_that_no_worker_serves_is_told(clock, rules, decide, policy):
    policy("orders")
    rules(unserved_queue={"after": 60}, recover_after=30)
    served = worker(clock, queues=["default"])
    send("mail")
    send("ship", queue="orders")
    WorkerProcess.objects.update(seen_at=clock.advance(61))

    assert decide(0).raised == ["unserved_queue:orders"]

    served.queues = ["default", "orders"]
    served.seen_at = clock.now
    served.save()
    assert decide(15).recovered == []
    served.seen_at = clock.now
    served.save()
    assert decide(15).recovered == ["unserved_queue:orders"]


def test_nothing_on_the_own_queue_ever_raises_an_alert(clock, rules, decide, policy):
    """Whatever dies, waits, stands still or is held back there."""
    policy("deadletter", stream_policy="halt")
    rules(
        new_group=True,
        poison_rate=[{"above": 0}, {"above": 0, "queue": "*"}],
        poison_depth=[{"above": 0}, {"above": 0, "queue": "*"}],
        oldest_age={"after": 1},
        halted_stream=True,
        breaker_opened=True,
        unserved_queue={"after": 1},
    )
    decide()

    dead("deadletter.alert", queue="deadletter", stream="s")
    dead("anything", queue="deadletter")
    dead("deadletter.alert")  # an operator moved it
    send("deadletter.bulk", queue="deadletter")
    Breaker.objects.create(
        name="deadletter.alert", failures=1, error="", opened_at=clock.now, until=clock.now
    )

    assert decide(100).raised == []
    assert notices() == []


def test_a_rule_that_was_taken_out_closes_its_alerts_without_a_word(clock, rules, decide):
    rules(new_group=True, poison_depth={"above": 0})
    decide()
    dead()
    decide()
    before = len(notices())

    rules(new_group=True)
    decide()

    assert [key.split(":")[0] for key in open_alerts()] == ["new_group"]
    assert len(notices()) == before


def test_a_failed_attempt_is_no_death(clock, rules, decide):
    rules(new_group=True, poison_rate={"above": 0}, poison_depth={"above": 0})
    decide()
    id = send("mail").pk
    batch = claim(limit=1)
    fail(batch.token, [Failure(id, error="boom")])

    assert decide().raised == []
    assert timedelta(0) < Queue.objects.get(name="default").backoff_base


def test_a_worker_that_serves_by_pattern_serves_queues_made_since(clock, rules, decide, policy):
    for name in ("tenant-a/mail", "tenant-b/mail"):
        policy(name)
    rules(unserved_queue={"after": 60})
    worker(clock, queues=["tenant-a/*"])
    for name in ("tenant-a/mail", "tenant-b/mail"):
        send("mail", queue=name)
    WorkerProcess.objects.update(seen_at=clock.advance(61))

    assert decide(0).raised == ["unserved_queue:tenant-b/mail"]


def test_a_rule_about_a_pattern_judges_each_queue_that_it_matches(clock, rules, decide, policy):
    dead_queue = policy("tenant-a/dead")
    policy("tenant-a/mail", dead_queue=dead_queue, on_poison="dead_queue")
    for name in ("tenant-a/sms", "tenant-a/own", "tenant-b/mail"):
        policy(name)
    rules(
        poison_depth=[
            {"above": 0, "queue": "tenant-a/*"},
            {"above": 5, "queue": "*"},
            {"above": 5, "queue": "tenant-a/own"},
        ],
        new_group={"queue": "tenant-b/*"},
    )
    decide()
    for name in ("tenant-a/sms", "tenant-a/own", "tenant-a/dead", "tenant-b/mail"):
        dead(name, queue=name)

    raised = decide().raised

    assert [key for key in raised if key.startswith("poison_depth")] == [
        "poison_depth:tenant-a/sms"
    ]
    [group] = [key for key in raised if key.startswith("new_group")]
    record = PoisonRecord.objects.get(queue="tenant-b/mail")
    assert group == f"new_group:{record.fingerprint}"
