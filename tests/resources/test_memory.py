"""Huge values are refused or cut without a copy being made of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from deadletter import PayloadRejected, lifecycle, send
from deadletter.lifecycle import Failure
from deadletter.models import Message
from deadletter.text import ERROR_LIMIT

pytestmark = pytest.mark.process

MB = 2**20


def peak_of(call: Callable[[], Any]) -> float:
    """Return the megabytes that were in use at most beside what was there before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", ["text", "key", "texts", "numbers"])
def test_a_payload_of_a_hundred_megabytes_is_refused_with_flat_memory(clock, counts, shape):
    payload = {
        "text": {"x": "a" * (100 * MB)},
        "key": {"a" * (100 * MB): 1},
        "texts": ["a" * MB] * 100,
        "numbers": [1_000_000_000] * (10 * MB),
    }[shape]

    def refused() -> None:
        with pytest.raises(PayloadRejected):
            send("mail", payload)

    assert peak_of(refused) < 3
    assert counts() == {}


def test_an_error_of_fifty_megabytes_is_cut_with_flat_memory(clock):
    send("mail")
    batch = lifecycle.claim()
    error = "é\x00" * (25 * MB)
    failure = Failure(batch.ids[0], error=error, traceback=error)

    assert peak_of(lambda: lifecycle.fail(batch.token, [failure])) < 5
    row = Message.objects.get()
    assert len(row.error.encode()) <= ERROR_LIMIT
    assert len(row.history[0]["traceback"].encode()) <= ERROR_LIMIT
