"""What dead messages share and in what they differ, as their readers may see them."""

from __future__ import annotations

import pytest
from django.db import connection

from deadletter import operations
from deadletter.models import Message, Queue
from deadletter.operations import group_comparison

from .groups import group, record


def shown(paths) -> dict[str, list[tuple[str, int]]]:
    return {f"{one.source} {one.path}": list(one.values) for one in paths}


def test_values_that_all_share_and_values_that_vary(clock):
    group("a", clock)
    group("b", clock, merged_into="a")
    record("a", clock, 1, payload={"customer": {"id": 1, "plan": "free"}, "tax": None})
    record("a", clock, 2, payload={"customer": {"id": 2, "plan": "free"}, "extra": True})
    record("b", clock, 3, payload={"customer": {"id": 2, "plan": "free"}}, headers={"h": "x"})

    found = operations.compare_records("a")

    assert found.sampled == 3
    assert shown(found.shared) == {
        "message attempts": [("3", 3)],
        "message kind": [('"message"', 3)],
        "message name": [('"orders.ship"', 3)],
        "message priority": [("0", 3)],
        "message queue": [('"default"', 3)],
        "message reason": [('"POISON_MESSAGE"', 3)],
        "payload customer.plan": [('"free"', 3)],
    }
    assert shown(found.varying) == {
        "payload extra": [("true", 1)],
        "payload tax": [("null", 1)],
        "headers h": [('"x"', 1)],
        "payload customer.id": [("2", 2), ("1", 1)],
    }
    assert [one.distinct for one in found.varying] == [1, 1, 1, 2]


def test_elements_of_lists_are_compared_whatever_their_place(clock):
    group("a", clock)
    record("a", clock, 1, payload={"items": [{"sku": 1}, {"sku": 7}], "none": {}})
    record("a", clock, 2, payload={"items": [{"sku": 7}], "none": {}})

    found = operations.compare_records("a")

    assert shown(found.varying) == {
        "payload items[].sku": [("7", 2), ("1", 1)],
        "payload len(items)": [("1", 1), ("2", 1)],
    }
    assert shown(found.shared)["payload none"] == [("{}", 2)]


def test_messages_in_dead_queues_are_compared_too(clock):
    queue = Queue.objects.create(name="dead")
    group("a", clock)
    Message.objects.create(
        queue=queue, name="orders.ship", payload={"a": 1}, fingerprint="a", died_at=clock.now,
        source_id=5, death={"queue": "default", "reason": 7, "attempts": 3},
    )  # fmt: skip
    record("a", clock, 1, payload={"a": 2})

    found = operations.compare_records("a")

    assert found.sampled == 2
    assert shown(found.varying) == {"payload a": [("1", 1), ("2", 1)]}
    assert shown(found.shared)["message queue"] == [('"default"', 2)]
    assert shown(found.shared)["message reason"] == [('"POISON_MESSAGE"', 2)]


def test_what_the_rule_hides_is_neither_shown_nor_counted(clock, settings):
    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": ["card"]}
    group("a", clock)
    record("a", clock, 1, payload={"card": "4111", "to": 1, "body": '{"card": "4222"}'})
    record("a", clock, 2, payload={"card": "4333", "to": 2, "body": "plain"}, headers={"card": "5"})

    found = operations.compare_records("a")

    assert found.hidden == (("headers", "card"), ("payload", "body"), ("payload", "card"))
    assert set(shown(found.varying)) == {"payload to"}
    for text in ("4111", "4222", "4333", "plain", "redacted"):
        assert text not in str(found)


def test_a_rule_that_raises_hides_everything(clock, settings):
    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": lambda value: 1 / 0}
    group("a", clock)
    record("a", clock, 1, payload={"to": "secret"})

    found = operations.compare_records("a")

    assert found.hidden == (("payload", ""),)
    assert "secret" not in str(found)


def test_readers_who_may_not_see_payloads_see_neither_paths_nor_values(clock):
    group("a", clock)
    record("a", clock, 1, payload={"customer": "Ada"}, headers={"h": "x"}, stream="s")

    found = operations.compare_records("a", payloads=False)

    assert found.sampled == 1
    assert {one.source for one in (*found.shared, *found.varying)} == {"message"}
    assert shown(found.shared)["message stream"] == [('"s"', 1)]


def test_large_and_damaged_payloads_are_counted_and_left_out(clock, monkeypatch):
    monkeypatch.setattr(group_comparison, "LARGEST", 100)
    group("a", clock)
    record("a", clock, 1, payload={"text": "x" * 200})
    record("a", clock, 2, payload={"a": 1})
    damaged = record("a", clock, 3)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE deadletter_poison SET payload = %s WHERE id = %s", ["{broken", damaged.pk]
        )

    found = operations.compare_records("a")

    assert (found.sampled, found.too_large, found.damaged) == (2, 1, 1)
    assert shown(found.varying) == {"payload a": [("1", 1)]}
    assert operations.compare_records("a", payloads=False).sampled == 3


def test_the_newest_are_compared_and_their_sum_is_bounded(clock, monkeypatch):
    group("a", clock)
    for number in range(5):
        record("a", clock, number + 1, payload={"n": number})
        clock.advance(1)
    monkeypatch.setattr(group_comparison, "SAMPLE", 2)
    assert shown(operations.compare_records("a").varying) == {
        "payload n": [("3", 1), ("4", 1)],
    }  # fmt: skip

    monkeypatch.setattr(group_comparison, "SAMPLE", 200)
    monkeypatch.setattr(group_comparison, "ALL", 20)

    found = operations.compare_records("a")
    assert (found.sampled, found.too_large) == (2, 3)


@pytest.mark.parametrize(
    "payload",
    [
        [[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]],
        {str(n): n for n in range(2_000)},
        "x" * 50_000,
        {"k" * 5_000: 1},
    ],
)
def test_a_payload_of_any_shape_gives_a_bounded_answer(clock, payload):
    group("a", clock)
    record("a", clock, 1, payload=payload)

    found = operations.compare_records("a")

    assert found.sampled == 1
    assert len(found.shared) <= 100
    for one in found.shared:
        assert len(one.path) < 300
        assert len(one.values[0][0]) <= 200


def test_there_is_nothing_to_compare_without_records(clock):
    group("a", clock)

    assert operations.compare_records("a").sampled == 0
    assert operations.compare_records("gone").shared == ()
