"""Fingerprints that the application gives: who is asked, what counts, and how many there may be."""

from __future__ import annotations

import pytest

from deadletter import send, testing
from deadletter.fingerprints import custom_fingerprint, fingerprint, is_fingerprint
from deadletter.lifecycle import Failure, claim, custom_fingerprints, fail
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup, Message, PoisonRecord

from .conftest import CAUSE

DEFAULT = fingerprint("mail", CAUSE["exception"], CAUSE["frame"])


class Refused(Exception):
    fingerprint = "refused"


def groups() -> dict[str, int]:
    fold_all_groups()
    return {row.fingerprint: row.failures for row in FailureGroup.objects.order_by("pk")}


def fail_as(text: str, name: str = "mail") -> None:
    id = send(name, {}).pk
    batch = claim()
    fail(batch.token, [Failure(id, **CAUSE, fingerprint=text, delay="30d")])


def custom(*texts: str) -> list[str]:
    return [custom_fingerprint("mail", text) for text in texts]


def test_a_fingerprint_is_of_a_name_and_no_default_one():
    assert is_fingerprint(custom_fingerprint("mail", "x"))
    assert custom_fingerprint("mail", "x") != custom_fingerprint("bill", "x")
    assert custom_fingerprint("mail", "x") != fingerprint("mail", "x")


def test_an_exception_may_bring_its_own(clock, handles, policy):
    policy(max_attempts=1)

    def broken(message):
        raise Refused(message.payload)

    handles("mail", broken)
    send("mail", 1)
    send("mail", 2)
    testing.drain()

    assert groups() == {custom_fingerprint("mail", "refused"): 2}
    assert FailureGroup.objects.get().deaths == 2
    assert FailureGroup.objects.get().exception.endswith("test_fingerprints.Refused")
    found = set(PoisonRecord.objects.values_list("fingerprint", flat=True))
    assert found == {custom_fingerprint("mail", "refused")}


def test_the_setting_is_asked_for_the_rest(clock, handles, settings):
    asked = []

    def of(error, message):
        asked.append((str(error), message.name))
        return ["timeout", message.name]

    settings.DEADLETTER = {"FINGERPRINT": of}

    def broken(message):
        raise Refused if message.payload == "own" else ValueError("boom")

    handles("mail", broken)
    send("mail", "own")
    send("mail", "other")
    testing.drain()

    assert groups() == dict.fromkeys(custom("refused", "timeout\nmail"), 1)
    assert asked == [("boom", "mail")]


@pytest.mark.parametrize("answer", [None, "", 5, {"a": 1}, [], ["a", 5], ["a", None], object()])
def test_what_is_no_text_is_ignored(clock, handles, settings, answer):
    settings.DEADLETTER = {"FINGERPRINT": lambda error, message: answer}

    def broken(message):
        raise ValueError

    handles("mail", broken)
    send("mail", {})
    testing.drain()

    history = Message.objects.get().history[-1]
    assert "group" not in history
    assert list(groups()) == [fingerprint("mail", history["exception"], history["frame"])]


def test_one_that_raises_is_logged_and_ignored(clock, handles, settings, caplog):
    def of(error, message):
        raise ZeroDivisionError

    class Odd(Exception):
        @property
        def fingerprint(self):
            raise LookupError

    settings.DEADLETTER = {"FINGERPRINT": of}

    def broken(message):
        raise Odd if message.payload == "odd" else ValueError

    handles("mail", broken)
    send("mail", "odd")
    send("mail", "plain")
    testing.drain()

    assert Message.objects.count() == 2
    assert len(groups()) == 2
    kinds = [getattr(record, "event", "") for record in caplog.records]
    assert kinds.count("fingerprint_failed") == 2


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 1_000_000, "é\u202e"])
def test_hostile_texts_make_groups_like_others(clock, handles, text):
    def broken(message):
        error = ValueError("boom")
        error.fingerprint = text
        raise error

    handles("mail", broken)
    send("mail", {})
    testing.drain()

    (found,) = groups()
    assert is_fingerprint(found)
    assert Message.objects.get().history[-1]["group"] == found


def test_beyond_the_bound_failures_have_the_default_fingerprint(clock, settings):
    settings.DEADLETTER = {"GROUPS_LIMIT": 2}
    for text in ("a", "b", "c", "a", "d"):
        fail_as(text)
    fail_as("c", name="bill")

    expected = {**dict.fromkeys(custom("a", "b"), 1), DEFAULT: 2}
    expected[custom("a")[0]] = 2
    assert groups() == {**expected, custom_fingerprint("bill", "c"): 1}


def test_a_process_that_starts_finds_the_groups_that_are_there(clock, settings):
    settings.DEADLETTER = {"GROUPS_LIMIT": 2}
    fail_as("")
    for text in ("a", "b"):
        fail_as(text)
    fold_all_groups()
    custom_fingerprints.forget()

    for text in ("c", "b"):
        fail_as(text)
    a, b = custom("a", "b")
    assert groups() == {a: 1, b: 2, DEFAULT: 2}


def test_what_another_process_has_given_out_is_found(clock, settings):
    settings.DEADLETTER = {"GROUPS_LIMIT": 2}
    fail_as("a")
    for text in ("b", "c"):
        FailureGroup.objects.create(
            fingerprint=custom_fingerprint("mail", text),
            name="mail",
            first_failed_at=clock.now,
            last_failed_at=clock.now,
            state_at=clock.now,
        )

    fail_as("d")
    assert groups()[DEFAULT] == 1


def test_a_group_that_was_deleted_makes_room(clock, settings, monkeypatch):
    settings.DEADLETTER = {"GROUPS_LIMIT": 1}
    fail_as("a")
    fold_all_groups()
    fail_as("b")
    assert groups() == {custom("a")[0]: 1, DEFAULT: 1}

    FailureGroup.objects.filter(fingerprint=custom("a")[0]).delete()
    fail_as("b")
    assert custom("b")[0] not in groups()

    moment = custom_fingerprints.monotonic() + 61
    monkeypatch.setattr(custom_fingerprints, "monotonic", lambda: moment)
    fail_as("b")
    assert groups()[custom("b")[0]] == 1


@pytest.mark.parametrize("stored", [5, "x", "g" * 16, ["a"], {"a": 1}, "0" * 17, None])
def test_a_damaged_history_gives_the_default_fingerprint(clock, policy, stored):
    policy(max_attempts=2)
    fail_as("a")
    message = Message.objects.get()
    message.history[-1]["group"] = stored
    Message.objects.update(history=message.history, available_at=None)
    from deadletter import operations

    operations.poison([message.pk], why="a test")

    assert PoisonRecord.objects.get().fingerprint == fingerprint(
        "mail", CAUSE["exception"], CAUSE["frame"]
    )
