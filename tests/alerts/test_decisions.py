"""Once, at once, then in digests; nothing lost by a crash, nothing told twice."""

from __future__ import annotations

from datetime import datetime, timedelta

import hypothesis
import pytest
from django.db import transaction
from hypothesis import strategies as st

from deadletter import alerts, signals
from deadletter.alerts import new_groups
from deadletter.models import Alert, Message, PoisonRecord
from tests.operations.records import dead, many_dead

from .conftest import notices, open_alerts, told

pytestmark = pytest.mark.slow


def many_groups(count: int, at: datetime) -> list[str]:
    """Let one message of each of so many groups die; return the fingerprints."""
    many_dead(count, poisoned_at=at)
    records = list(PoisonRecord.objects.order_by("id"))
    for n, record in enumerate(records):
        record.fingerprint = f"{n:016d}"
    PoisonRecord.objects.bulk_update(records, ["fingerprint"], batch_size=200)
    return [record.fingerprint for record in records]


def test_a_decision_is_made_once_an_interval_whoever_asks(clock, rules, decide):
    rules(new_group=True, interval=15)

    assert alerts.decide_when_due() is not None
    assert alerts.decide_when_due() is None
    clock.advance(14)
    assert alerts.decide_when_due() is None
    clock.advance(1)
    assert alerts.decide_when_due() is not None


def test_asking_too_early_costs_one_read(clock, rules, django_assert_num_queries):
    rules(new_group=True)
    alerts.decide_when_due()

    # With a frozen clock nobody asks the database for the time.
    with django_assert_num_queries(1):
        assert alerts.decide_when_due() is None


def test_asking_while_alerts_are_off_costs_nothing(clock, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert alerts.decide_when_due() is None


def test_a_clock_that_was_set_back_does_not_silence_the_rules(clock, rules):
    rules(new_group=True, interval=15)
    alerts.decide_when_due()

    clock.advance(-3600)

    assert alerts.decide_when_due() is not None


def test_a_thousand_deaths_are_one_notice_and_digests(clock, rules, decide):
    rules(new_group=True, poison_rate={"above": 10}, digest=900)
    decide()
    for start in range(0, 1_000, 100):
        many_dead(100, first=1_000_000 + start, poisoned_at=clock.now)
        decide(60)

    # Everything after the first minute waits for the digest.
    assert told() == [[("raised", "new_group:" + "0" * 16), ("raised", "poison_rate:")]]

    decide(360)
    assert len(notices()) == 2
    last = {alert["rule"]: alert for alert in notices()[1]["alerts"]}
    assert last["new_group"]["event"] == "continues"
    assert (last["new_group"]["count"], last["new_group"]["new"]) == (1_000, 900)

    decide(900)
    assert [[event for event, _ in notice] for notice in told()[2:]] == [["recovered", "recovered"]]
    assert Message.objects.filter(name="deadletter.alert").count() == 3


def test_a_thousand_groups_at_once_are_one_notice(clock, rules, decide):
    rules(new_group=True, recover_after=3600)
    decide()
    many_groups(1_000, clock.now)

    decide()
    while len(open_alerts()) < 1_000:
        decide(1)

    assert len(notices()) == 1
    assert len(notices()[0]["alerts"]) == 20
    assert notices()[0]["omitted"] == {"raised": 480}

    # The others are in the digest.
    decide(900)
    assert len(notices()) == 2
    assert notices()[1]["omitted"] == {"raised": 480}


def test_a_second_alert_of_a_rule_waits_for_the_digest_one_of_another_does_not(
    clock, rules, decide, policy
):
    rules(new_group=True, poison_depth={"above": 2}, digest=900, recover_after=3600)
    decide()
    first = f"new_group:{dead('first').fingerprint}"
    decide()

    second = f"new_group:{dead('second').fingerprint}"
    decide()
    dead("second")
    decide()

    assert told() == [[("raised", first)], [("raised", "poison_depth:")]]
    decide(900)
    assert told()[2:] == [[("raised", second)]]


def test_what_came_and_went_before_it_could_be_told_is_told_as_over(clock, rules, decide):
    rules(new_group=True, digest=3600, recover_after=60)
    decide()
    first = f"new_group:{dead('first').fingerprint}"
    decide()
    second = f"new_group:{dead('second').fingerprint}"
    decide(5)

    decide(100)

    assert told() == [[("raised", first)], [("recovered", first), ("recovered", second)]]
    decide(3600)
    assert len(notices()) == 2


def test_a_value_around_its_threshold_raises_once(clock, rules, decide):
    rules(poison_depth={"above": 0}, recover_after=120, digest=1)
    decide()
    for _ in range(10):
        record = dead()
        decide(30)
        PoisonRecord.objects.filter(pk=record.pk).delete()
        decide(30)

    assert told() == [[("raised", "poison_depth:")]]
    decide(120)
    assert told()[1:] == [[("recovered", "poison_depth:")]]


def test_what_goes_on_without_news_is_repeated_only_as_a_reminder(clock, rules, decide):
    rules(poison_depth={"above": 0}, digest=60, remind=3600)
    dead()
    for _ in range(59):
        decide(60)
    assert len(notices()) == 1

    decide(120)

    assert told()[1:] == [[("continues", "poison_depth:")]]


def test_a_crash_before_the_commit_leaves_everything_to_the_next_decision(
    clock, rules, decide, monkeypatch
):
    rules(new_group=True)
    decide()
    key = f"new_group:{dead().fingerprint}"
    clock.advance(15)

    with monkeypatch.context() as broken:
        broken.setattr("deadletter.alerts.decisions._announce_changes", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            alerts.decide()
    assert (open_alerts(), notices()) == ([], [])

    assert decide().raised == [key]
    assert told() == [[("raised", key)]]


def test_a_crash_after_the_commit_loses_the_signal_but_not_the_notice(
    clock, rules, decide, django_capture_on_commit_callbacks
):
    rules(new_group=True)
    decide()
    key = f"new_group:{dead().fingerprint}"

    with django_capture_on_commit_callbacks(execute=False):
        decide()

    assert told() == [[("raised", key)]]
    assert decide().raised == []


def test_listeners_are_told_after_commit_and_one_that_raises_undoes_nothing(
    clock, rules, decide, django_capture_on_commit_callbacks
):
    rules(new_group=True, recover_after=60, channels={})
    decide()
    heard = []

    def listen(alert, using, **kwargs):
        heard.append((alert["event"], alert["title"], using))
        raise RuntimeError("deaf")

    signals.alert_raised.connect(listen)
    signals.alert_recovered.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            dead("mail")
            decide()
        with django_capture_on_commit_callbacks(execute=True):
            decide(60)
    finally:
        signals.alert_raised.disconnect(listen)
        signals.alert_recovered.disconnect(listen)

    title = "mail dies of UNKNOWN (1 so far)"
    assert heard == [("raised", title, "default"), ("recovered", title, "default")]
    assert open_alerts() == []
    assert not Message.objects.exists()


def test_more_groups_than_one_look_reaches_are_found_in_turn(clock, rules, decide, monkeypatch):
    monkeypatch.setattr(new_groups, "GROUPS", 3)
    rules(new_group=True, recover_after=600)
    decide()
    keys = many_groups(8, clock.now)

    raised = [decide(1).raised for _ in range(4)]

    assert [len(found) for found in raised] == [3, 3, 2, 0]
    assert open_alerts() == [f"new_group:{key}" for key in keys]
    # What the cursor has not reached is neither grown nor over.
    recovered = [key for _ in range(6) for key in decide(300).recovered]
    assert sorted(recovered) == [f"new_group:{key}" for key in keys]


def test_old_alerts_are_forgotten_and_what_they_told_is_not_told_again(clock, rules, decide):
    rules(new_group=True, recover_after=60, digest=1)
    decide()
    dead()
    decide()
    decide(100)
    assert Alert.objects.count() == 1

    for _ in range(4):
        decide(timedelta(days=10).total_seconds())

    assert Alert.objects.count() == 0
    assert [event for notice in told() for event, _ in notice] == ["raised", "recovered"]


def test_the_database_refuses_a_second_open_alert_of_a_condition(clock, rules, decide):
    rules(poison_depth={"above": 0})
    dead()
    decide()
    alert = Alert.objects.get()

    with pytest.raises(Exception, match=r"(?i)unique"), transaction.atomic():
        Alert.objects.create(
            key=alert.key, rule=alert.rule, since=clock.now, opened_at=clock.now, last_at=clock.now
        )


def test_a_notice_is_cut_to_the_sites_limit_for_payloads(clock, rules, decide, settings):
    rules(new_group=True)
    settings.DEADLETTER = {**settings.DEADLETTER, "PAYLOAD_LIMIT": 4_000}
    decide()
    for n in range(10):
        dead(f"name.{n}", error="x" * 1_000)

    decide()

    [notice] = notices()
    assert 0 < len(notice["alerts"]) < 10
    assert notice["omitted"] == {"raised": 10 - len(notice["alerts"])}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("die"), st.integers(0, 3)),
        st.tuples(st.just("tidy"), st.integers(0, 3)),
        st.tuples(st.just("decide"), st.sampled_from([1, 20, 61, 400])),
    ),
    max_size=25,
)


@hypothesis.given(steps=STEPS)
@hypothesis.settings(
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_whatever_happens_each_alert_is_told_in_order_and_at_most_once(clock, rules, decide, steps):
    """Raised, then news, then over; never two in one digest, never a death that nobody hears of."""
    with transaction.atomic():
        rules(new_group=True, digest=60, recover_after=60, remind=None)
        decide(1)
        for what, n in steps:
            if what == "die":
                clock.advance(1)
                dead(f"name.{n}")
            elif what == "tidy":
                PoisonRecord.objects.filter(name=f"name.{n}").delete()
            else:
                decide(n)
        for _ in range(4):
            decide(61)

        events: dict[str, list[str]] = {}
        for notice in told():
            assert len({key for _, key in notice}) == len(notice)
            for event, key in notice:
                events.setdefault(key, []).append(event)
        assert set(events) == set(Alert.objects.values_list("key", flat=True))
        for key, story in events.items():
            assert story[-1] == "recovered", (key, story)
            # Between two ends it is raised once at most, and then only continues.
            for part in " ".join(story).split("recovered"):
                assert part.split()[1:] == ["continues"] * (len(part.split()) - 1), (key, story)
        transaction.set_rollback(True)
