"""Queues are named by their names or by patterns, in order of preference."""

from __future__ import annotations

import pytest

from deadletter.patterns import QueueSelection, ServedQueues, is_pattern

QUEUES = [
    ("default", False),
    ("tenant-a/mail", False),
    ("tenant-a/sms", False),
    ("tenant-b/mail", False),
    ("tenant-a/dead", True),
    ("deadletter", False),
]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (["tenant-a/*"], ["tenant-a/mail", "tenant-a/sms"]),
        (["*mail"], ["tenant-a/mail", "tenant-b/mail"]),
        (["tenant-[ab]/m?il"], ["tenant-a/mail", "tenant-b/mail"]),
        (["tenant-[!a]/*"], ["tenant-b/mail"]),
        (["*"], ["default", "tenant-a/mail", "tenant-a/sms", "tenant-b/mail"]),
        (["Tenant-A/*"], []),
        (
            ["tenant-b/*", "default", "*"],
            ["tenant-b/mail", "default", "tenant-a/mail", "tenant-a/sms"],
        ),
        (["*", "default"], ["default", "tenant-a/mail", "tenant-a/sms", "tenant-b/mail"]),
        (["tenant-a/dead"], ["tenant-a/dead"]),
        (["deadletter", "deadl*"], ["deadletter"]),
        (["tenant-a/dea[d]", "deadlette?"], []),
        (["tenant-a"], []),
        ([], []),
    ],
)
def test_what_is_chosen_comes_in_the_order_given_and_by_name_within_a_pattern(given, chosen):
    assert QueueSelection(given).choose(reversed(QUEUES)) == chosen


def test_a_name_is_compared_as_it_is():
    assert not is_pattern("tenant-a/mail.v1+x@y:z")
    assert all(is_pattern(text) for text in ("a*", "?", "[ab]", "["))
    assert QueueSelection(["a.b"]).choose([("a.b", False), ("axb", False)]) == ["a.b"]


def test_an_exact_name_keeps_its_place_before_a_later_pattern_and_takes_an_earlier_one():
    names = [("a", False), ("b", False)]

    assert QueueSelection(["b", "*"]).choose(names) == ["b", "a"]
    assert QueueSelection(["*", "b"]).choose(names) == ["a", "b"]


def test_who_serves_a_queue_is_counted_by_names_and_by_patterns():
    served = ServedQueues([["tenant-a/*", "tenant-a/mail"], ["default"], None, "default", [1, "*"]])

    assert served.count("tenant-a/mail") == 2
    assert served.count("tenant-a/new") == 2
    assert served.count("default") == 2
    assert served.count("tenant-a/dead", is_dead_queue=True) == 0
    assert "deadletter" not in served
    assert "other" in served
    assert "other" not in ServedQueues([["default"]])
