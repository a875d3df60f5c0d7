"""With DEBUG on, sending to a name without a handler warns once, and never breaks a send."""

from __future__ import annotations

import logging

import pytest
from django.db import connection

from deadletter import Outgoing, send, send_many
from deadletter.instances import flows
from deadletter.models import Message
from deadletter.worker import unknown_names


@pytest.fixture
def debug(settings, monkeypatch: pytest.MonkeyPatch):
    settings.DEBUG = True
    monkeypatch.setattr(unknown_names, "_warned", set())
    monkeypatch.setattr(unknown_names, "_is_discovered", False)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture):
    """The names and hints that were warned of."""
    caplog.set_level(logging.WARNING, "deadletter")

    def found() -> list[tuple[str, str]]:
        records = [r for r in caplog.records if getattr(r, "event", "") == "name_unknown"]
        return [(r.fields["name"], r.fields["meant"]) for r in records]

    return found


def test_an_unknown_name_is_told_once(clock, debug, warned, handles):
    handles("orders.ship", print)

    for _ in range(2):
        send("orders.shipp")
        send("orders.ship")
        send_many([Outgoing("nobody"), Outgoing("nobody"), Outgoing("orders.ship")])

    assert warned() == [("orders.shipp", " (did you mean orders.ship?)"), ("nobody", "")]
    assert Message.objects.count() == 10


def test_handlers_that_were_not_imported_yet_are_looked_for(clock, debug, warned, monkeypatch):
    from deadletter.worker.registry import Handler, registry

    found = []

    def discover() -> None:
        found.append(True)
        registry.add(Handler(name="found.late", function=print))

    monkeypatch.setattr(unknown_names, "discover", discover)
    try:
        send("found.late")
        send("not.found")
    finally:
        registry.remove("found.late")

    assert (warned(), found) == ([("not.found", "")], [True])


def test_a_flow_is_known(clock, debug, warned, monkeypatch):
    monkeypatch.setattr(flows, "_flows", {"order": {"1": object()}})

    send("order")

    assert warned() == []


def test_our_own_names_are_known(clock, debug, warned):
    send("deadletter.bulk", {"job": 0})

    assert warned() == []


def test_without_debug_nothing_is_looked_for(clock, warned, monkeypatch):
    monkeypatch.setattr(unknown_names, "check", lambda names: pytest.fail("looked"))

    send("nobody")
    send_many([Outgoing("nobody")])

    assert warned() == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_module_of_handlers_that_breaks_breaks_no_send(
    clock, debug, caplog, monkeypatch, counts, inside
):
    def discover() -> None:
        if inside:
            send("sent.at.import")
        raise ImportError("no module named shop.missing")

    monkeypatch.setattr(unknown_names, "discover", discover)

    send("mail")
    send("mail")

    told = [r for r in caplog.records if getattr(r, "event", "") == "handlers_unreadable"]
    assert [r.fields["error"] for r in told] == ["ImportError: no module named shop.missing"]
    assert counts() == {"pending": 3 if inside else 2}


def test_what_was_refused_is_not_told(clock, debug, warned):
    with pytest.raises(ValueError, match="not JSON"):
        send("nobody", object())
    assert warned() == []


def test_made_up_names_are_not_kept_without_end(clock, debug, warned, monkeypatch):
    monkeypatch.setattr(unknown_names, "MOST", 3)

    for n in range(10):
        send(f"made.up.{n}")

    assert len(unknown_names._warned) == 3
    assert len(warned()) == 3
    assert connection.needs_rollback is False
