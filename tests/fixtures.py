"""A frozen clock, counts of every state, policies and handlers for one test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

from deadletter import testing
from deadletter.clock import FrozenClock
from deadletter.models import Message, PoisonRecord, Queue, State
from deadletter.worker.registry import Handler, registry

# In CI the same examples every time: a red build must be red for everybody.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("local", deadline=None, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def clock(db: None) -> Iterator[FrozenClock]:
    """Both databases stand still at a whole second until the test advances them."""
    with testing.frozen_clock() as frozen:
        yield frozen


@pytest.fixture
def counts(db: None) -> Callable[[], dict[str, int]]:
    """Count every state; those that are empty are left out."""

    def count() -> dict[str, int]:
        found = {
            str(state): Message.objects.all().in_state(state).count()
            for state in State
            if state != State.DEAD
        }
        found["dead"] = PoisonRecord.objects.count()
        return {state: n for state, n in found.items() if n}

    return count


@pytest.fixture
def policy(db: None) -> Callable[..., Queue]:
    """Change the policy of the queue "default", or of another: `policy(max_attempts=3)`."""

    def change(name: str = "default", **fields: Any) -> Queue:
        queue = Queue.objects.filter(name=name).first() or Queue(name=name)
        for field, value in fields.items():
            setattr(queue, field, value)
        queue.save()
        return queue

    return change


@pytest.fixture
def handles() -> Iterator[Callable[..., None]]:
    """Register handlers for one test: `handles("mail", function, atomic=True)`."""
    names: list[str] = []

    def register(name: str, function: Callable[[Any], Any], **options: Any) -> None:
        registry.remove(name)
        registry.add(Handler(name=name, function=function, **options))
        names.append(name)

    yield register
    for name in names:
        registry.remove(name)
