"""
Failure policies: how often a failed message is tried again, and how long it waits.

Four levels may set a value, and the first that does wins: the handler for the reason of the
failure, the handler, the queue for the reason, the queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

from .backoff import Backoff
from .durations import as_timedelta
from .status import FailureReason
from .text import short_repr

#: "The next level decides"; None means "no limit" or "no cooldown".
UNSET: Any = object()

#: The largest limit that a policy can set.
MOST_ATTEMPTS = 1_000_000

_KEYS = ("max_attempts", "backoff_base", "backoff_cap", "jitter", "cooldown")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The values that one level sets, and those it sets for single reasons."""

    max_attempts: int | None = UNSET
    backoff_base: timedelta = UNSET
    backoff_cap: timedelta = UNSET
    jitter: float = UNSET
    #: A fixed delay instead of the exponential one; None: none.
    cooldown: timedelta | None = UNSET
    reasons: Mapping[FailureReason, Policy] = field(default_factory=dict)

    @property
    def sets_backoff(self) -> bool:
        return self.backoff_base is not UNSET or self.backoff_cap is not UNSET

    def largest(self, below: int | None) -> int | None:
        """Return the largest limit that applies with this level; `below` is the queue's."""
        general = below if self.max_attempts is UNSET else self.max_attempts
        limits = [
            reason.max_attempts
            for reason in self.reasons.values()
            if reason.max_attempts is not UNSET
        ]
        return _largest([general, *limits])


@dataclass(frozen=True)
class ReachedLimit:
    """A limit and the count that reached it; `reason` None: all reasons without a policy."""

    limit: int | None
    count: int
    reason: FailureReason | None = None


@dataclass(frozen=True)
class PolicyInForce:
    """The policy of a message: its handler's values first, then those of its queue."""

    queue: Policy
    handler: Policy = Policy()

    def limit(self, reason: FailureReason | None) -> int | None:
        """Return how many failures of this reason a message may have. None: no limit."""
        return self._first("max_attempts", reason)  # type: ignore[no-any-return]

    @property
    def largest_limit(self) -> int | None:
        """Return the number of attempts that no message exceeds, whatever its failures were."""
        reasons = [*self.handler.reasons, *self.queue.reasons]
        return _largest([self.limit(reason) for reason in (None, *reasons)])

    def has_own_policy(self, reason: FailureReason | None) -> bool:
        """Return True if failures of this reason are counted separately."""
        return reason in self.handler.reasons or reason in self.queue.reasons

    def reached(
        self, reason: FailureReason | None, *, attempts: int, counts: Mapping[str, int]
    ) -> ReachedLimit | None:
        """
        Return the limit that a message has reached with its last failure, or None.

        `counts` are its failures by reason, the last one included. Reasons without a policy of
        their own are counted together. Without any such policy the attempts are the count.
        """
        limit, count = self.limit(reason), attempts
        if not (self.handler.reasons or self.queue.reasons):
            return ReachedLimit(limit, count) if _is_reached(limit, count) else None
        count = self._count(reason, counts)
        if _is_reached(limit, count):
            return ReachedLimit(limit, count, reason if self.has_own_policy(reason) else None)
        largest = self.largest_limit
        return ReachedLimit(largest, attempts) if _is_reached(largest, attempts) else None

    def delay(
        self, reason: FailureReason, *, attempts: int, counts: Mapping[str, int]
    ) -> timedelta:
        """Return how long a message waits after a failure of this reason."""
        for level in self._levels(reason):
            if isinstance(level.cooldown, timedelta):
                return level.cooldown
            if level.sets_backoff or level.cooldown is None:
                break
        backoff = Backoff(
            base=self._first("backoff_base", reason),
            cap=self._first("backoff_cap", reason),
            jitter=self._first("jitter", reason),
        )
        is_own = self.has_own_policy(reason)
        return backoff.delay(self._count(reason, counts) if is_own else attempts)

    def sets_for(self, reason: FailureReason, *keys: str) -> bool:
        """Return True if a policy for this reason sets one of these keys."""
        own = [level.reasons.get(reason) for level in (self.handler, self.queue)]
        return any(
            getattr(level, key) is not UNSET for level in own if level is not None for key in keys
        )

    def _count(self, reason: FailureReason | None, counts: Mapping[str, int]) -> int:
        if reason is not None and self.has_own_policy(reason):
            return counts.get(str(int(reason)), 0)
        own = {str(int(reason)) for reason in (*self.handler.reasons, *self.queue.reasons)}
        return sum(count for key, count in counts.items() if key not in own)

    def _first(self, key: str, reason: FailureReason | None) -> Any:
        for level in self._levels(reason):
            if (value := getattr(level, key)) is not UNSET:
                return value
        raise LookupError(key)  # unreachable: the queue sets every value

    def _levels(self, reason: FailureReason | None) -> Iterator[Policy]:
        for level in (self.handler, self.queue):
            if reason is not None and reason in level.reasons:
                yield level.reasons[reason]
            yield level


def _is_reached(limit: int | None, count: int) -> bool:
    """Return True if `count` executions reach the limit. N allows N of them, 0 allows one."""
    return limit is not None and count >= max(limit, 1)


def _largest(limits: list[int | None]) -> int | None:
    numbers = [limit for limit in limits if limit is not None]
    return max(numbers) if len(numbers) == len(limits) else None


def read_reasons(value: Any) -> dict[FailureReason, Policy]:
    """Read policies by reason. Raises ValueError, which names the wrong key."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object of failure reasons, got {short_repr(value)}")
    return {_reason(key): _policy(_reason(key).name, policy) for key, policy in value.items()}


def as_json(value: Any) -> dict[str, dict[str, Any]]:
    """Return policies by reason as stored values. Raises ValueError as `read_reasons` does."""
    read_reasons(value)
    return {
        _reason(key).name: {
            name: item.total_seconds() if isinstance(item, timedelta) else item
            for name, item in policy.items()
        }
        for key, policy in value.items()
    }


@lru_cache(maxsize=64)
def stored_reasons(text: str | None) -> Mapping[FailureReason, Policy]:
    """Read the column of a queue. A row that was damaged by hand has no policies by reason."""
    if text is None:
        return {}
    try:
        return read_reasons(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def read_counts(stored: Any) -> dict[str, int]:
    """Read the failures by reason of a message, as text or decoded; other values are left out."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(stored, dict):
        return {}
    return {
        key: count
        for key, count in stored.items()
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**31
    }


def with_one_more(counts: Mapping[str, int], reason: FailureReason) -> dict[str, int]:
    """Return the failures by reason, with one more of this reason."""
    key = str(int(reason))
    return {**counts, key: counts.get(key, 0) + 1}


def _reason(key: Any) -> FailureReason:
    if isinstance(key, FailureReason):
        key = key.name
    known = FailureReason.__members__.get(key) if isinstance(key, str) else None
    if known is None:
        names = ", ".join(reason.name for reason in FailureReason if reason != _OWN_LIMIT)
        raise ValueError(f"{short_repr(key)} is not a failure reason (there are: {names})")
    if known is _OWN_LIMIT:
        raise ValueError(f"{known.name}: its limit is the field unregistered_attempts")
    return known


#: Deferrals of unknown names have their own count and limit.
_OWN_LIMIT = FailureReason.UNREGISTERED


def _policy(reason: str, value: Any) -> Policy:
    if not isinstance(value, Mapping):
        raise ValueError(f"{reason}: expected an object, got {short_repr(value)}")
    for key in value:
        if key not in _KEYS:
            raise ValueError(
                f"{reason}: unknown key {short_repr(key)} (there are: {', '.join(_KEYS)})"
            )
    read: dict[str, Any] = {}
    for key, item in value.items():
        where = f"{reason}: {key}"
        if key == "max_attempts":
            read[key] = _attempts(where, item)
        elif key == "jitter":
            read[key] = _share(where, item)
        elif key == "cooldown" and item is None:
            read[key] = None
        else:
            read[key] = as_timedelta(item, field=where)
    return Policy(**read)


def _attempts(where: str, value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 <= value <= MOST_ATTEMPTS):
        raise ValueError(
            f"{where}: expected a whole number from 0 to {MOST_ATTEMPTS:,} or null, "
            f"got {short_repr(value)}"
        )
    return value  # type: ignore[no-any-return]


def _share(where: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise ValueError(f"{where}: expected a number from 0 to 1, got {short_repr(value)}")
    return float(value)
