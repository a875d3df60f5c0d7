"""
How long tests wait: very long, and never longer than until what they wait for is there.

A limit only ends a test that would hang. It decides nothing: on a machine that does ten other
things a test passes late, and a failure says how many rows were in which state.

    wait_until(lambda: not Message.objects.exists())
    thread.join(PATIENCE)
    assert event.wait(PATIENCE)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds after which a wait is a failure.
PATIENCE = 300.0


def wait_until(
    condition: Callable[[], Any], *, patience: float = PATIENCE, why: Callable[[], str] = str
) -> Any:
    """Return the condition's value once it is true; fail with `why` and the counts of rows."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        # One more look: this process may have been the one that was not let run.
        if time.monotonic() > deadline and not (found := condition()):
            raise AssertionError(f"waited {patience} s in vain; {row_counts()}. {why()}")
        if found:
            break
        time.sleep(0.01)
    return found


def row_counts() -> str:
    """Count what the default database holds, in words; a test without one says so."""
    from django.db.models import Count

    from deadletter.models import Instance, Message, PoisonRecord, State

    try:
        messages = {str(s): Message.objects.in_state(s).count() for s in State if s != State.DEAD}
        instances = dict(Instance.objects.values_list("status").annotate(Count("pk")).order_by())
        poison = PoisonRecord.objects.count()
    except Exception as error:  # noqa: BLE001 - whatever it is, the wait has failed already
        return f"no counts: {type(error).__name__}: {error}"
    return f"messages {messages}, poison {poison}, instances {instances}"
