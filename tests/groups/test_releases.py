"""The release of the application: where it comes from, and where it is written."""

from __future__ import annotations

import pytest

from deadletter import send, testing
from deadletter.application_release import current_release
from deadletter.conf import RELEASE_VARIABLES
from deadletter.lifecycle import Failure, claim, fail
from deadletter.lifecycle.releases_seen import note_release
from deadletter.models import ApplicationRelease, Message, OnPoison, PoisonRecord

from .conftest import CAUSE


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, settings):
    for name in RELEASE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    settings.DEADLETTER = {**getattr(settings, "DEADLETTER", {})}


@pytest.mark.parametrize(
    ("value", "release"),
    [
        ("2.7.0", "2.7.0"),
        ("  2.7.0\n", "2.7.0"),
        (lambda: "2.7.0", "2.7.0"),
        (lambda: None, ""),
        (lambda: 5, "5"),
        (None, ""),
        ("", ""),
        ("x" * 500, "x" * 100),
        ("a\x00\ud800", "a\N{REPLACEMENT CHARACTER}?"),
    ],
)
def test_the_setting(settings, monkeypatch, value, release):
    monkeypatch.setenv("RELEASE", "of the environment")
    settings.DEADLETTER = {"RELEASE": value}

    assert current_release() == release


def test_the_environment_is_read_in_order(settings, monkeypatch):
    assert current_release() == ""
    for name in reversed(RELEASE_VARIABLES):
        monkeypatch.setenv(name, f"of {name}")
        settings.DEADLETTER = {**settings.DEADLETTER}
        assert current_release() == f"of {name}"
    monkeypatch.setenv("RELEASE", " ")
    settings.DEADLETTER = {**settings.DEADLETTER}
    assert current_release() == "of RELEASE_VERSION"


def test_a_callable_is_called_once(settings):
    calls = []
    settings.DEADLETTER = {"RELEASE": lambda: calls.append(1) or "2.7.0"}

    assert [current_release(), current_release()] == ["2.7.0", "2.7.0"]
    assert calls == [1]


def test_a_callable_that_raises_is_logged_and_there_is_no_release(settings, caplog):
    def broken():
        raise ZeroDivisionError

    settings.DEADLETTER = {"RELEASE": broken}
    assert current_release() == ""
    assert [record.event for record in caplog.records] == ["release_failed"]


def test_an_attempt_and_the_record_name_the_release(clock, handles, policy, settings, group):
    settings.DEADLETTER = {"RELEASE": "2.7.0"}
    policy(max_attempts=1)

    def broken(message):
        raise ValueError

    handles("mail", broken)
    send("mail", {})
    testing.drain()

    record = PoisonRecord.objects.get()
    assert (record.release, record.history[-1]["release"]) == ("2.7.0", "2.7.0")
    assert group().last_release == "2.7.0"


def test_a_record_has_the_release_of_the_last_attempt(failed, policy, clock):
    policy(max_attempts=2)
    failed(release="2.7.0", delay=0)
    batch = claim()
    fail(batch.token, [Failure(batch.ids[0], **CAUSE, release="2.7.1")])

    record = PoisonRecord.objects.get()
    assert record.release == "2.7.1"
    assert [entry["release"] for entry in record.history] == ["2.7.0", "2.7.1"]


def test_a_copy_in_a_dead_queue_remembers_the_release(failed, policy):
    policy("dead", max_attempts=1)
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    failed(release="2.7.0")
    assert Message.objects.get().death["release"] == "2.7.0"

    batch = claim(queues=["dead"])
    fail(batch.token, [Failure(batch.ids[0], **CAUSE, release="2.7.1")])
    assert PoisonRecord.objects.get().release == "2.7.0"


def test_without_a_release_nothing_is_written(failed, policy):
    policy("dead")
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    failed(release="")

    copy = Message.objects.get()
    assert "release" not in copy.death
    assert "release" not in copy.history[-1]


def test_a_release_is_seen_first_and_last(clock):
    note_release("2.7.0", clock.now, using="default")
    first = clock.now
    clock.advance(60)
    note_release("2.7.1", clock.now, using="default")
    note_release("2.7.0", clock.now, using="default")

    rows = {row.name: (row.first_seen_at, row.last_seen_at) for row in releases()}
    assert rows == {"2.7.0": (first, clock.now), "2.7.1": (clock.now, clock.now)}


def releases():
    return ApplicationRelease.objects.order_by("name")
