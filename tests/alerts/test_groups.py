"""Alerts follow the state of failure groups: muted is quiet, regressed is loud."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter import operations
from deadletter.alerts.notice import link_to
from deadletter.lifecycle import sweep
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import Alert, ApplicationRelease, FailureGroup, Message, PoisonRecord
from tests.operations.records import dead

from .conftest import SECRET, notices, open_alerts, told

pytestmark = pytest.mark.slow

HOOK = {"hook": {"type": "webhook", "url": "https://example.org/x", "secret": SECRET}}


def die(name: str = "mail", **options: Any) -> str:
    """Let a message die and fold; return the fingerprint."""
    found = dead(name, **options).fingerprint
    fold_all_groups()
    return found


def state(fingerprint: str) -> str:
    return FailureGroup.objects.get(fingerprint=fingerprint).state


def test_a_muted_group_raises_nothing_and_speaks_again_when_its_mute_ends(clock, rules, decide):
    rules(new_group=True)
    decide()
    group = die()
    operations.mute_group(group, grows_by=2, by="ann")

    clock.advance(1)
    die()
    decide()
    assert (notices(), open_alerts(), state(group)) == ([], [], "muted")

    clock.advance(1)
    die()
    decide()
    assert (state(group), told()) == ("new", [[("raised", f"new_group:{group}")]])
    assert notices()[0]["alerts"][0]["count"] == 3


def test_a_mute_that_ends_by_time_speaks_of_what_died_meanwhile(clock, rules, decide):
    rules(new_group=True)
    decide()
    group = die()
    operations.mute_group(group, duration="1h", by="ann")
    clock.advance(60)
    die()
    decide()
    assert told() == []

    clock.advance(3600)
    sweep()
    decide()

    assert told() == [[("raised", f"new_group:{group}")]]


def test_a_mute_that_a_person_ends_speaks_of_the_next_death_only(clock, rules, decide):
    rules(new_group=True)
    decide()
    group = die()
    operations.mute_group(group, by="ann")
    clock.advance(60)
    die()
    clock.advance(60)
    operations.reopen_group(group, by="ann")
    decide()
    assert told() == []

    die()
    decide()

    assert told() == [[("raised", f"new_group:{group}")]]


@pytest.mark.parametrize("act", ["mute", "resolve"])
def test_an_open_alert_of_a_group_that_is_muted_or_resolved_ends_without_a_word_to_people(
    clock, rules, decide, act
):
    rules(new_group=True, digest=1, recover_after=60)
    decide()
    group, other = die("mail"), die("other")
    decide()
    {"mute": operations.mute_group, "resolve": operations.resolve_group}[act](group, by="ann")

    decide()
    assert open_alerts() == [f"new_group:{other}"]
    decide(120)

    assert told()[1:] == [[("recovered", f"new_group:{other}")]]
    assert Alert.objects.get(subject=group).settled_at is not None


def test_programs_are_told_of_a_quiet_end_at_once(clock, rules, decide):
    rules(
        new_group=True,
        channels=HOOK | {"ops": {"type": "email", "to": ["ops@example.org"]}},
    )
    decide()
    group = die()
    decide()
    operations.mute_group(group, by="ann")

    decide()

    sent = [
        (message.payload["channel"], [one["event"] for one in message.payload["notice"]["alerts"]])
        for message in Message.objects.order_by("id")
    ]
    assert sent == [("hook", ["raised"]), ("ops", ["raised"]), ("hook", ["recovered"])]
    [end] = notices()[-1]["alerts"]
    assert end["detail"]["closed_as"] == "muted"


def test_an_end_that_waits_for_its_digest_becomes_quiet_when_the_group_is_muted(
    clock, rules, decide
):
    rules(new_group=True, digest=3600, recover_after=60)
    decide()
    first = die("first")
    decide()
    decide(100)
    second = die("second")
    decide(100)
    decide(100)
    assert Alert.objects.get(subject=second, settled_at=None)
    operations.mute_group(second, by="ann")

    decide(3600)

    assert all(key != f"new_group:{second}" for notice in told()[1:] for _, key in notice)
    assert told()[1] == [("recovered", f"new_group:{first}")]


def test_an_acknowledged_group_is_not_quiet(clock, rules, decide):
    rules(new_group=True, digest=1)
    decide()
    group = die()
    decide()
    operations.acknowledge_group(group, by="ann")
    clock.advance(10)
    die()

    decide()

    assert told()[1:] == [[("continues", f"new_group:{group}")]]


def test_merged_groups_speak_as_their_main_group(clock, rules, decide):
    rules(new_group=True)
    decide()
    main, other = die("main"), die("other")
    operations.merge_groups(main, [other], by="ann")

    decide()

    assert told() == [[("raised", f"new_group:{main}")]]
    assert notices()[0]["alerts"][0]["count"] == 2


def test_a_merge_ends_the_alert_of_the_other_group_and_reports_nothing_twice(clock, rules, decide):
    rules(new_group=True, digest=1)
    decide()
    main, other = die("main"), die("other")
    decide()
    assert open_alerts() == sorted(f"new_group:{one}" for one in (main, other))
    operations.merge_groups(main, [other], by="ann")

    decide()
    assert open_alerts() == [f"new_group:{main}"]
    assert len(told()) == 1

    clock.advance(60)
    die("other")
    decide()
    assert told()[1:] == [[("continues", f"new_group:{main}")]]


def test_what_dies_in_a_merged_group_keeps_the_alert_of_its_main_group_open(
    clock, rules, decide, monkeypatch
):
    # Each decision reads one group.
    monkeypatch.setattr("deadletter.alerts.new_groups.GROUPS", 1)
    rules(new_group=True, recover_after=60, digest=1)
    decide()
    groups = sorted([die("a"), die("b")])
    operations.merge_groups(groups[1], [groups[0]], by="ann")
    while open_alerts() != [f"new_group:{groups[1]}"]:
        decide(1)

    for _ in range(3):
        clock.advance(40)
        die({g: n for n in ("a", "b") for g in groups if _name(g) == n}[groups[0]])
        decide(1)
        decide(1)
        decide(1)

    assert open_alerts() == [f"new_group:{groups[1]}"]
    assert "recovered" not in [event for notice in told() for event, _ in notice]


def _name(group: str) -> str:
    return FailureGroup.objects.get(fingerprint=group).name


def test_a_group_that_comes_back_fires_once_with_its_release(clock, rules, decide):
    rules(new_group=True, regressed_group=True, digest=1, remind=None)
    decide()
    group = die()
    decide()
    operations.resolve_group(group, by="ann", why="fixed")
    decide()
    clock.advance(60)
    die(failure={"release": "2.7.1"})
    for _ in range(3):
        decide()

    assert told()[1:] == [[("raised", f"regressed_group:{group}")]]
    [alert] = notices()[-1]["alerts"]
    assert alert["detail"]["release"] == "2.7.1"
    assert alert["count"] == 1
    assert alert["title"] == ("mail fails with UNKNOWN again after it was resolved (release 2.7.1)")


def test_a_failure_alone_brings_a_group_back(clock, rules, decide):
    rules(regressed_group=True)
    decide()
    group = die()
    operations.resolve_group(group, by="ann")
    clock.advance(60)
    FailureGroup.objects.update(state="regressed", state_at=clock.now, state_by="")

    decide()

    [alert] = notices()[0]["alerts"]
    assert (alert["count"], alert["name"]) == (0, "mail")
    assert alert["title"] == "mail fails with UNKNOWN again after it was resolved"
    assert open_alerts() == [f"regressed_group:{group}"]


@pytest.mark.parametrize(
    ("act", "events"),
    [("acknowledge", ["acknowledged"]), ("resolve", []), ("mute", [])],
)
def test_an_act_on_a_regressed_group_closes_its_alert(clock, rules, decide, act, events):
    rules(regressed_group=True, digest=1)
    decide()
    group = die()
    operations.resolve_group(group, by="ann")
    clock.advance(60)
    die()
    decide()
    assert open_alerts() == [f"regressed_group:{group}"]
    acts = {
        "acknowledge": operations.acknowledge_group,
        "resolve": operations.resolve_group,
        "mute": operations.mute_group,
    }

    acts[act](group, by="ben")
    decide()

    assert open_alerts() == []
    ends = [one["detail"]["closed_as"] for notice in notices()[1:] for one in notice["alerts"]]
    assert ends == events


def test_a_regressed_alert_stays_open_until_a_person_acts(clock, rules, decide):
    rules(regressed_group=True, recover_after=60, digest=1, remind=None)
    decide()
    group = die()
    operations.resolve_group(group, by="ann")
    clock.advance(60)
    die()
    decide()

    decide(10_000)

    assert open_alerts() == [f"regressed_group:{group}"]
    assert told() == [[("raised", f"regressed_group:{group}")]]


def test_without_its_rule_a_regressed_group_is_reported_as_a_new_one(clock, rules, decide):
    rules(new_group=True, digest=1)
    decide()
    group = die()
    decide()
    operations.resolve_group(group, by="ann")
    decide()
    clock.advance(60)
    die()

    decide()

    assert told()[1:] == [[("raised", f"new_group:{group}")]]


def test_a_failure_in_an_older_release_does_not_wake_a_resolved_group(clock, rules, decide):
    rules(new_group=True, regressed_group=True)
    decide()
    group = die(failure={"release": "1.0"})
    ApplicationRelease.objects.create(name="1.0", first_seen_at=clock.now, last_seen_at=clock.now)
    operations.resolve_group(group, in_release="2.0", by="ann")
    clock.advance(60)
    die(failure={"release": "1.0"})

    decide()

    assert (told(), state(group)) == ([], "resolved")


def test_a_rule_for_one_queue_says_nothing_of_other_queues(clock, rules, decide, policy):
    policy("bulk")
    rules(regressed_group={"queue": "bulk"})
    decide()
    group, quiet = die(queue="bulk"), die("other")
    operations.resolve_group([group, quiet], by="ann")
    clock.advance(60)
    die(queue="bulk")
    die("other")

    decide()

    assert open_alerts() == [f"regressed_group:{group}"]


def test_a_regressed_group_whose_queue_has_no_rule_is_reported_as_a_new_one(
    clock, rules, decide, policy
):
    policy("bulk")
    rules(new_group=True, regressed_group={"queue": "bulk"}, digest=1)
    decide()
    group = die()
    operations.resolve_group(group, by="ann")
    clock.advance(60)
    die()

    decide()

    assert told() == [[("raised", f"new_group:{group}")]]


def test_the_own_messages_of_alerts_never_regress(clock, rules, decide):
    rules(regressed_group=True)
    decide()
    FailureGroup.objects.create(
        fingerprint="f" * 16,
        name="deadletter.alert",
        queue="deadletter",
        state="regressed",
        state_at=clock.now,
        first_failed_at=clock.now,
        last_failed_at=clock.now + timedelta(seconds=1),
    )

    decide()

    assert open_alerts() == []


def test_the_link_of_a_group_leads_to_its_page_or_to_its_records(clock, rules, decide):
    rules(new_group=True)
    decide()
    group = die()
    decide()
    alert = Alert.objects.get()

    assert group in link_to("https://shop.example.org", alert)
    assert PoisonRecord.objects.get().fingerprint == group
    assert link_to("", alert) == ""
