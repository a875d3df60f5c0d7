"""manage.py deadletter breakers."""

from __future__ import annotations

import pytest

from deadletter import operations, send
from deadletter.models import AuditEntry, Breaker, WorkerProcess


@pytest.fixture
def worker(clock):
    return WorkerProcess.objects.create(
        name="w1", host="h", pid=1, version="1", concurrency=1, handlers=[["message", "mail.send"]],
        started_at=clock.now, seen_at=clock.now,
    )  # fmt: skip


def test_a_name_is_held_listed_and_reset(cli, clock, worker):
    send("mail.send")
    send("mail.send")

    held = cli("breakers", "hold", "mail.send", "--yes", "--by", "ann", "--why", "provider down")

    assert (held.code, held.out, held.err) == (0, "held mail.send\n", "")
    listed = cli("breakers")
    assert listed.code == 0
    assert listed.lines[0].split() == [
        "name", "is", "since", "until", "holds", "failures", "by", "why",
    ]  # fmt: skip
    assert listed.lines[1].split() == [
        "mail.send", "held", "0", "s", "ago", "reset", "2", "0", "ann", "provider", "down",
    ]  # fmt: skip
    reset = cli("breakers", "reset", "mail.send", "--yes", "--by", "bob")
    assert (reset.code, reset.out) == (0, "reset mail.send\n")
    assert not Breaker.objects.exists()
    assert [(e.act, e.by, e.why) for e in AuditEntry.objects.order_by("id")] == [
        ("hold_breaker", "ann", "provider down"),
        ("reset_breaker", "bob", ""),
    ]


def test_a_hold_ends_after_its_time(cli, clock, worker):
    cli("breakers", "hold", "mail.send", "--for", "2h", "--yes")

    found = cli("breakers", "--format", "json").json

    assert [(one["name"], one["state"], one["waiting"]) for one in found] == [
        ("mail.send", "held", 0)
    ]
    assert found[0]["until"] is not None
    clock.advance(7_201)
    nothing = cli("breakers", "--format", "json")
    assert (nothing.code, nothing.json) == (1, [])


def test_a_dry_run_changes_nothing(cli, clock, worker):
    operations.hold_breaker("other", by="ann")

    hold = cli("breakers", "hold", "mail.send", "--dry-run")
    reset = cli("breakers", "reset", "other", "--dry-run", "--format", "json")

    assert (hold.code, hold.out) == (0, "mail.send would be held; nothing was changed\n")
    assert reset.code == 0
    assert (reset.json["act"], reset.json["done"], reset.json["dry_run"]) == ("reset", False, True)
    assert reset.json["breaker"]["by"] == "ann"
    assert list(Breaker.objects.values_list("name", flat=True)) == ["other"]
    assert AuditEntry.objects.count() == 1


def test_without_a_terminal_an_act_needs_yes(cli, clock, worker):
    result = cli("breakers", "hold", "mail.send")

    assert result.code == 2
    assert "There is no terminal: add --yes" in result.err
    assert not Breaker.objects.exists()


def test_a_name_that_no_worker_knows_is_held_with_a_warning(cli, clock, worker):
    result = cli("breakers", "hold", "mail.sent", "--yes")

    assert result.code == 0
    assert result.err == ("no live worker has a handler for mail.sent; did you mean mail.send?\n")


def test_there_is_nothing_to_reset(cli, clock):
    assert (cli("breakers", "reset", "mail", "--yes").code, cli("breakers").code) == (1, 1)
    found = cli("breakers", "reset", "mail", "--yes", "--format", "json")
    assert (found.code, found.json["done"], found.json["breaker"]) == (1, False, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["hold"],
        ["reset"],
        ["list", "mail"],
        ["list", "--for", "2h"],
        ["hold", "two words", "--yes"],
        ["hold", "deadletter.job", "--yes"],
        ["hold", "mail", "--for", "0", "--yes"],
        ["hold", "mail", "--for", "2y", "--yes"],
        ["hold", "mail", "--for", "400d", "--yes"],
    ],
)
def test_a_wrong_use_is_exit_code_2(cli, clock, arguments):
    assert cli("breakers", *arguments).code == 2
    assert not Breaker.objects.exists()


def test_stats_say_that_a_name_is_held_until_it_is_reset(cli, clock):
    operations.hold_breaker("mail")

    assert cli("stats").lines[-1].split() == ["mail", "it", "is", "reset"]


def test_health_is_not_failed_by_a_hold_but_names_it(cli, clock, worker):
    operations.hold_breaker("mail.send")

    found = cli("health", "--format", "json")
    strict = cli("health", "--strict", "--format", "json")

    warning = "messages held by a person: mail.send"
    assert (found.code, found.json["problems"], found.json["warnings"]) == (0, [], [warning])
    assert found.json["breakers"] == [{"name": "mail.send", "state": "held", "open_for": 0.0}]
    assert cli("health").lines == ["healthy: 1 live worker(s): w1", f"- warning: {warning}"]
    assert (strict.code, strict.json["problems"]) == (1, [warning])
    assert cli("health", "--strict").lines == ["not healthy:", f"- {warning}"]
