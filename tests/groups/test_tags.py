"""Tags: what is read of a payload, what is kept of it, and that their number is bounded."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from deadletter import send, testing
from deadletter.lifecycle import Failure, claim, fail
from deadletter.lifecycle.groups import TAG_VALUES, fold_all_groups
from deadletter.message_tags import KEYS, VALUES, check_tag_names, clean_tags, read_tags
from deadletter.models import GroupTag, Message, MessageTag, OnPoison, PoisonRecord
from deadletter.worker.registry import handler, registry


def broken(message):
    raise ValueError("boom")


def counted() -> dict[tuple[str, str], int]:
    fold_all_groups()
    return {(row.key, row.value): row.failures for row in GroupTag.objects.order_by("pk")}


def of_messages() -> set[tuple[int, str, str]]:
    return {(row.message_id, row.key, row.value) for row in MessageTag.objects.order_by("pk")}


def fail_with(tags, **options) -> int:
    """Fail one message with these tags; return its id."""
    id = send("mail", {}).pk
    batch = claim()
    fail(batch.token, [Failure(id, error="boom", tags=tags, delay="30d", **options)])
    return id


@pytest.mark.parametrize(
    ("payload", "names", "found"),
    [
        ({"customer": {"id": 7}}, ["customer.id"], [("customer.id", "7")]),
        ({"a": "x", "b": 1.5, "c": True}, "abc", [("a", "x"), ("b", "1.5"), ("c", "true")]),
        ({"a": ["x", "y", "x"]}, ["a"], [("a", "x"), ("a", "y")]),
        ({"a": [{"id": 1}, {"id": 2}]}, ["a.1.id", "a.9.id"], [("a.1.id", "2")]),
        # No scalars, nothing there, or nothing to read.
        ({"a": {"b": 1}, "c": None, "d": "", "e": " "}, ["a", "c", "d", "e", "f"], []),
        ({"a": [["x"], {"y": 1}, None, "z"]}, ["a"], [("a", "z")]),
        ([1, 2], ["a", "0"], [("0", "1")]),
        ("text", ["a"], []),
        (None, ["a"], []),
        # Hostile values are made storable, and cut.
        ({"a": "x\x00\ud800"}, ["a"], [("a", "x\N{REPLACEMENT CHARACTER}?")]),
        ({"a": "x" * 1_000_000}, ["a"], [("a", "x" * 200)]),
        ({"a": "é" * 300}, ["a"], [("a", "é" * 200)]),
        ({"a": 10**5000}, ["a"], []),
        ({"a": list(range(1000))}, ["a"], [("a", str(n)) for n in range(VALUES)]),
    ],
    ids=range(14),
)
def test_the_tags_of_a_payload(payload, names, found):
    assert list(read_tags(payload, payload, list(names))) == found


def test_a_hidden_value_is_no_tag():
    payload = {"card": "4111", "a": "x", "b": [{"token": 1}, 2]}
    shown = {"card": "[redacted]", "a": "x", "b": [{"token": "[redacted]"}, 2]}

    assert read_tags(payload, shown, ["card", "a", "b"]) == (("a", "x"),)
    assert read_tags(payload, "nothing to see", ["card", "a", "b"]) == ()


@pytest.mark.parametrize(
    "names",
    ["tenant", 5, [""], [5], ["a..b"], ["."], ["x" * 101], ["a\x00"], [f"t{n}" for n in range(11)]],
)
def test_names_that_are_refused(names):
    with pytest.raises(ValueError, match=r"tag|path|characters"):
        check_tag_names(names)

    with pytest.raises(ValueError, match="handler mail: tags: "):
        handler("mail", tags=names)(broken)
    assert registry.get("mail") is None


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (None, []),
        ("{", []),
        ("[" * 100_000, []),
        ({"a": 1}, []),
        ([["a", "x"], ["a", "x"], ["a"], "a", [1, "x"], ["", "x"], ["a", ""]], [("a", "x")]),
        (json.dumps([["a", {"b": 1}], ["b", ["x"]], ["c", None], ["d", 7]]), [("d", "7")]),
        ([["a" * 500, "x" * 5000]], [("a" * 100, "x" * 200)]),
    ],
)
def test_tags_of_a_damaged_history_are_left_out(stored, found):
    assert clean_tags(stored) == found


def test_no_more_tags_than_ten_values_of_ten_keys():
    assert len(clean_tags([["a", str(n)] for n in range(1000)])) == KEYS * VALUES


def test_a_handler_names_the_tags_of_its_failures(clock, handles, policy):
    policy(max_attempts=2)
    handles("mail", broken, tags=("customer.id", "password", "tenants"))
    id = send("mail", {"customer": {"id": 7}, "password": "x", "tenants": ["a", "b"]}).pk
    testing.drain()

    assert Message.objects.get().history[-1]["tags"] == [
        ["customer.id", "7"],
        ["tenants", "a"],
        ["tenants", "b"],
    ]
    assert of_messages() == set()
    clock.advance(timedelta(days=1))
    testing.drain()
    assert counted() == {("customer.id", "7"): 2, ("tenants", "a"): 2, ("tenants", "b"): 2}
    assert of_messages() == {(id, "customer.id", "7"), (id, "tenants", "a"), (id, "tenants", "b")}


def test_tags_are_of_what_was_sent_whatever_the_handler_did_with_it(clock, handles):
    def careless(message):
        message.payload["tenant"] = "another"
        raise ValueError

    handles("mail", careless, tags=("tenant",))
    send("mail", {"tenant": "a"})
    testing.drain()

    assert counted() == {("tenant", "a"): 1}


def test_a_rule_of_redaction_decides_on_tags(clock, handles, settings):
    settings.DEADLETTER = {"REDACT": lambda value: {**value, "tenant": "hidden"}}
    handles("mail", broken, tags=("tenant", "customer"))
    send("mail", {"tenant": "a", "customer": 7})
    testing.drain()

    assert counted() == {("customer", "7"): 1}


def test_a_rule_of_redaction_that_raises_leaves_no_tag(clock, handles, settings):
    def rule(value):
        raise ZeroDivisionError

    settings.DEADLETTER = {"REDACT": rule}
    handles("mail", broken, tags=("tenant",))
    send("mail", {"tenant": "a"})
    testing.drain()

    assert counted() == {}
    assert "tags" not in Message.objects.get().history[-1]


def test_a_failure_without_tags_stays_as_small_as_it_was(failed):
    failed()

    assert set(Message.objects.get().history[-1]) == {
        *("at", "worker", "attempt", "reason", "error", "exception", "frame")
    }


def test_a_group_keeps_a_hundred_values_of_a_key(clock):
    many = [str(n) for n in range(TAG_VALUES + 5)]
    for n in range(0, len(many), 10):
        fail_with([("a", value) for value in many[n : n + 10]])
        fold_all_groups()
    fail_with([("a", "0"), ("a", "new"), ("b", "x")])

    found = counted()
    assert len(found) == TAG_VALUES + 2
    assert (found["a", "0"], found["a", "1"], found["b", "x"]) == (2, 1, 1)
    assert found["a", ""] == 6


def test_the_bound_of_values_is_kept_within_one_fold(clock):
    for n in range(0, TAG_VALUES + 10, 10):
        fail_with([("a", f"{n + m:03}") for m in range(10)])

    found = counted()
    assert len(found) == TAG_VALUES + 1
    assert found["a", ""] == 10


def test_a_group_keeps_ten_keys(clock):
    for n in range(KEYS + 2):
        fail_with([(f"key{n}", "x")])
        fold_all_groups()
    fail_with([("key0", "y"), ("other", "y")])

    assert {key for key, _value in counted()} == {f"key{n}" for n in range(KEYS)}
    assert counted()["key0", "y"] == 1


def test_a_copy_in_a_dead_queue_has_the_tags_under_its_own_id(clock, policy):
    policy("dead", max_attempts=1)
    policy(max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"))
    fail_with([("tenant", "a")])
    copy = Message.objects.get().pk
    assert of_messages() == {(copy, "tenant", "a")}

    batch = claim(queues=["dead"])
    fail(batch.token, [Failure(copy, error="boom", tags=[("tenant", "b")])])
    assert PoisonRecord.objects.get().message_id == copy
    assert of_messages() == {(copy, "tenant", "a"), (copy, "tenant", "b")}


def test_a_second_death_keeps_the_tags_from_then_on(clock, policy):
    from deadletter import operations

    policy(max_attempts=1)
    id = fail_with([("tenant", "a")])
    operations.retry_poison([PoisonRecord.objects.get().pk])
    clock.advance(3600)
    batch = claim()
    fail(batch.token, [Failure(id, error="boom", tags=[("tenant", "a")])])

    row = MessageTag.objects.get()
    assert (row.message_id, row.at) == (id, clock.now)


def test_a_discarded_message_has_no_tags(clock, policy):
    policy(max_attempts=1, on_poison=OnPoison.DISCARD)
    fail_with([("tenant", "a")])

    assert of_messages() == set()
    assert counted() == {("tenant", "a"): 1}
