"""Which level decides? Every combination is compared with a table that is read from the top."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from deadletter import FailureReason
from deadletter.backoff import Backoff
from deadletter.failure_policy import UNSET, Policy, PolicyInForce

SECONDS = st.integers(0, 50).map(lambda n: timedelta(seconds=n))
REASONS = [
    FailureReason.TRANSPORT_UNAVAILABLE,
    FailureReason.HANDLER_EXCEPTION,
    FailureReason.WORKER_LOST,
    FailureReason.UNKNOWN,
]


def maybe(values):
    return st.one_of(st.just(UNSET), values)


LEVEL = {
    "max_attempts": maybe(st.none() | st.integers(0, 6)),
    "backoff_base": maybe(SECONDS),
    "backoff_cap": maybe(SECONDS),
    "cooldown": maybe(st.none() | SECONDS),
}
RULES = st.dictionaries(st.sampled_from(REASONS[:3]), st.builds(Policy, **LEVEL), max_size=3)
HANDLERS = st.builds(Policy, **LEVEL, reasons=RULES)
QUEUES = st.builds(
    Policy,
    max_attempts=st.none() | st.integers(0, 6),
    backoff_base=SECONDS,
    backoff_cap=SECONDS,
    cooldown=st.none() | SECONDS,
    jitter=st.just(0.0),
    reasons=RULES,
)


def table(handler: Policy, queue: Policy, reason: FailureReason) -> list[Policy]:
    """The levels from the top: what is named first counts."""
    rows = [handler.reasons.get(reason), handler, queue.reasons.get(reason), queue]
    return [row for row in rows if row is not None]


def first(rows: list[Policy], key: str):
    return next(value for row in rows if (value := getattr(row, key)) is not UNSET)


@given(HANDLERS, QUEUES, st.sampled_from(REASONS), st.data())
def test_the_first_level_that_names_a_value_decides(handler, queue, reason, data):
    rows = table(handler, queue, reason)
    counts = {str(int(one)): data.draw(st.integers(0, 7)) for one in REASONS}
    attempts = sum(counts.values())
    policy = PolicyInForce(queue, handler)

    assert policy.limit(reason) == first(rows, "max_attempts")

    own = {*handler.reasons, *queue.reasons}
    count = counts[str(int(reason))] if reason in own else attempts
    wait = None
    for row in rows:
        if row.cooldown is not UNSET and row.cooldown is not None:
            wait = row.cooldown
            break
        if row.cooldown is None or not row.backoff_base is row.backoff_cap is UNSET:
            break
    if wait is None:
        backoff = Backoff(base=first(rows, "backoff_base"), cap=first(rows, "backoff_cap"))
        wait = backoff.delay(count)
    assert policy.delay(reason, attempts=attempts, counts=counts) == wait


@given(HANDLERS, QUEUES, st.lists(st.sampled_from(REASONS), min_size=1, max_size=40))
def test_a_message_dies_with_the_first_failure_that_reaches_a_limit(handler, queue, failures):
    """A model that counts by itself and knows only the table."""
    policy = PolicyInForce(queue, handler)
    own = {*handler.reasons, *queue.reasons}
    limits = [first(table(handler, queue, reason), "max_attempts") for reason in own]
    limits.append(queue.max_attempts if handler.max_attempts is UNSET else handler.max_attempts)
    largest = None if None in limits else max(limits)
    counts: dict[str, int] = {}
    seen: list[FailureReason] = []
    for reason in failures:
        seen.append(reason)
        counts[str(int(reason))] = counts.get(str(int(reason)), 0) + 1
        alike = [one for one in seen if one is reason or not own & {one, reason}]
        limit = first(table(handler, queue, reason), "max_attempts")
        is_over = limit is not None and len(alike) >= max(limit, 1)
        is_at_end = largest is not None and len(seen) >= max(largest, 1)

        reached = policy.reached(reason, attempts=len(seen), counts=counts)

        assert (reached is not None) == (is_over or is_at_end)
        if reached is not None:
            break
