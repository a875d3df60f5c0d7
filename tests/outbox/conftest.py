from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deadletter.conf import get_settings
from deadletter.testing import FrozenClock, frozen_clock
from deadletter.worker.relay import Relay

from .memory_transport import PATH, MemoryTransport


@pytest.fixture(autouse=True)
def broker(settings) -> Iterator[type[MemoryTransport]]:
    settings.DEADLETTER = {
        **settings.DEADLETTER,
        "BROKERS": {"default": {"transport": PATH}, "other": {"transport": PATH}},
    }
    MemoryTransport.reset()
    yield MemoryTransport
    MemoryTransport.reset()


@pytest.fixture
def clock() -> Iterator[FrozenClock]:
    with frozen_clock() as clock:
        yield clock


@pytest.fixture
def new_relay() -> Iterator[Callable[..., Relay]]:
    """Give relays; each `turn` of one publishes what it may."""
    relays: list[Relay] = []

    def build(name: str = "w", broker: str = "default", **options: Any) -> Relay:
        found = get_settings().brokers[broker]
        relays.append(Relay(found, using="default", worker=name, drain=True, **options))
        return relays[-1]

    yield build
    for relay in relays:
        relay._close()


@pytest.fixture
def relay(new_relay) -> Relay:
    return new_relay()
