"""manage.py deadletter alerts."""

from __future__ import annotations

from django.core import mail

from deadletter import testing
from deadletter.models import Message
from tests.cli.conftest import *  # noqa: F403
from tests.operations.records import dead

from .conftest import told


def test_open_alerts_are_listed(clock, rules, decide, cli):
    rules(poison_depth={"above": 0}, digest=60, recover_after=60)
    dead(error="boom\x1b[2J")
    decide()

    result = cli("alerts")

    assert result.code == 0
    assert result.lines[1].split()[:4] == ["poison_depth", "all", "queues", "1"]
    assert "\x1b" not in result.out
    [alert] = cli("alerts", "--format", "json").json
    assert (alert["key"], alert["closed_at"]) == ("poison_depth:", None)


def test_alerts_that_are_over_are_listed_when_asked_for(clock, rules, decide, cli):
    rules(new_group=True, recover_after=60)
    decide()
    dead()
    decide()
    decide(100)

    assert cli("alerts", "--format", "json").json == []
    assert len(cli("alerts", "--all", "--format", "json").json) == 1


def test_check_decides_now(clock, rules, cli):
    rules(poison_depth={"above": 0})
    dead()

    result = cli("alerts", "--check")

    assert result.code == 0
    assert "1 raised, 0 over, 1 messages" in result.err
    assert "poison_depth" in result.out
    assert told() == [[("raised", "poison_depth:")]]


def test_test_tells_every_channel_and_warns_when_nobody_carries_it(clock, rules, cli):
    channels = {
        "ops": {"type": "email", "to": ["ops@example.org"]},
        "team": {"type": "email", "to": ["team@example.org"]},
    }
    rules(channels=channels)

    result = cli("alerts", "--test")

    assert result.out == "a test notice is on its way to: ops, team\n"
    assert "no live worker serves the queue deadletter" in result.err
    assert testing.drain().completed == 2
    assert [message.subject for message in mail.outbox] == ["deadletter: test of the alerts"] * 2
    assert "This is a test" in mail.outbox[0].body
    assert not Message.objects.exists()


def test_a_rule_about_a_queue_that_is_not_there_is_named(clock, rules, cli):
    rules(
        poison_rate=[{"above": 0, "queue": "paymnts"}, {"above": 0, "queue": "default"}],
        poison_depth={"above": 0, "queue": "*"},
    )

    result = cli("alerts")

    assert result.code == 0
    [line] = result.err.splitlines()
    assert line.startswith("the rule poison_rate is about the queue paymnts, which does not exist")


def test_what_needs_settings_says_so(clock, rules, cli):
    assert cli("alerts").code == 0
    for option in ("--check", "--test"):
        result = cli("alerts", option)
        assert result.code == 2
        assert 'DEADLETTER["ALERTS"] is not set' in result.err

    rules(new_group=True, channels={})
    assert cli("alerts", "--test").code == 2
    assert cli("alerts", "--check", "--test").code == 2
