"""A transaction that was undone for a transient reason is repeated, unless it is the caller's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import OperationalError, transaction

from deadletter.lifecycle.transaction import TRIES, Transaction, in_transaction

pytestmark = pytest.mark.django_db(transaction=True)


class Deadlock(Exception):
    sqlstate = "40P01"


def deadlocking(times: int) -> tuple[list[int], Callable[[Transaction], str]]:
    """Return work that is undone so many times before it succeeds, and the list of its calls."""
    calls: list[int] = []

    def work(tx: Transaction) -> str:
        calls.append(len(calls) + 1)
        if len(calls) <= times:
            raise OperationalError("deadlock detected") from Deadlock()
        return "done"

    return calls, work


def test_our_own_is_repeated():
    calls, work = deadlocking(2)

    assert in_transaction(work) == "done"
    assert calls == [1, 2, 3]


def test_not_for_ever():
    calls, work = deadlocking(TRIES + 1)

    with pytest.raises(OperationalError):
        in_transaction(work)
    assert len(calls) == TRIES


def test_what_is_inside_the_callers_is_left_to_the_caller():
    calls, work = deadlocking(1)

    with pytest.raises(OperationalError), transaction.atomic():
        in_transaction(work)
    assert calls == [1]
