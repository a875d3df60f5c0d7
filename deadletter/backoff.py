"""Delays before a failed message is tried again, and the policy of circuit breakers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from .durations import as_timedelta

#: Seconds that a message of a held name is put aside, at most: a reset is obeyed after them.
HOLD_WAIT = 30.0
#: The delay of a message whose payload cannot be decoded, however often it failed.
UNDECODABLE = timedelta(seconds=1)


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """
    Exponential delay: base * 2**attempt, never above cap.

    Backoff(base=30s, cap=1h) waits 60, 120, 240, 480, 960, 1920, 3600, 3600... seconds.
    Jitter 0.1 adds up to a tenth on top: it spreads the delays and never shortens them.
    """

    base: timedelta
    cap: timedelta
    jitter: float = 0.0

    def delay(self, attempt: int, *, chance: Callable[[], float] = random.random) -> timedelta:
        delay = _doubled(self.base, attempt, self.cap)
        return delay + delay * (self.jitter * chance()) if self.jitter else delay


@dataclass(frozen=True, kw_only=True)
class UnregisteredBackoff:
    """
    Delay of a message whose name has no handler yet: base * 2**min(n-1, 6), never above cap.

    With base=1s, cap=60s: 1, 2, 4, 8, 16, 32, 60, 60... seconds. The exponent stops at 6
    whatever the cap is, so that workers that are being upgraded retry at least every 64 bases.
    """

    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(seconds=60)

    def delay(self, attempt: int) -> timedelta:
        return _doubled(self.base, min(max(attempt - 1, 0), 6), self.cap)


@dataclass(frozen=True, kw_only=True)
class BreakerPolicy:
    """
    Hold a message name for `cooldown` seconds after `failures` in a row within `window` seconds.

    Then one message is tried: if it completes, the name is free again; if it fails, the name is
    held for another cooldown.
    """

    failures: int = 10
    window: float = 60.0
    cooldown: float = 30.0

    def __post_init__(self) -> None:
        for name in ("window", "cooldown"):
            seconds = as_timedelta(getattr(self, name), field=name).total_seconds()
            object.__setattr__(self, name, seconds)
        if self.failures < 1 or self.window <= 0 or self.cooldown <= 0:
            raise ValueError("a circuit breaker needs failures >= 1, window > 0 and cooldown > 0")


def _doubled(base: timedelta, times: int, cap: timedelta) -> timedelta:
    # Clamp the exponent first: 2**100 seconds overflows both timedelta and interval.
    # 60 doublings of one microsecond are 36,000 years, so nothing below the cap is cut short.
    exponent = min(max(times, 0), 60)
    microseconds = (base // timedelta(microseconds=1)) << exponent
    return min(timedelta(microseconds=min(microseconds, cap // timedelta(microseconds=1))), cap)
