"""What Sentry gets to see: one event for each death, with its exception, and none for a retry."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from deadletter import Permanent, Retry, send, testing
from deadletter.lifecycle import claim, sweep
from deadletter.models import Queue
from deadletter.operations import messages
from tests.processes import Workers

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

Event = dict[str, Any]


class ToList(Transport):
    """Keeps events instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


@pytest.fixture(scope="module", autouse=True)
def logging_afterwards() -> Iterator[None]:
    """Sentry replaces a method of all loggers, once in a process, and never puts it back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.Logger, "callHandlers", logging.Logger.callHandlers)
        yield


@pytest.fixture
def events() -> Iterator[list[Event]]:
    transport = ToList()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=transport,
        default_integrations=False,
        integrations=[LoggingIntegration()],
    )
    yield transport.events
    sentry_sdk.get_client().close()
    sentry_sdk.init()


def exceptions(event: Event) -> list[str]:
    return [found["type"] for found in event.get("exception", {}).get("values", [])]


def kind(event: Event) -> str:
    return event["extra"]["event"]


def raises(error: BaseException) -> Any:
    def ship(message: Any) -> None:
        raise error

    return ship


def test_one_event_for_a_death_and_none_for_its_retries(events, run, handles, policy) -> None:
    policy(max_attempts=3, cooldown=0)
    handles("ship", raises(ValueError("no stock")))
    send("ship", {"card": "4111-secret"})

    process = run()

    assert (process.pump.tally.failed, process.pump.tally.poisoned) == (2, 1)
    [event] = events
    assert (event["level"], event["logger"], kind(event)) == (
        "error",
        "deadletter",
        "message_poisoned",
    )
    assert exceptions(event) == ["ValueError"]
    [exception] = event["exception"]["values"]
    assert exception["value"] == "no stock"
    assert exception["stacktrace"]["frames"][-1]["function"] == "ship"


def test_failures_that_are_retried_are_no_events(events, run, handles) -> None:
    handles("ship", raises(ValueError("no stock")))
    handles("wait", raises(Retry("busy", after=60)))
    for name in ("ship", "wait", "unknown"):
        send(name)

    process = run()

    assert (process.pump.tally.failed, process.pump.tally.deferred) == (2, 1)
    assert events == []


async def _fails_async(message: Any) -> None:
    raise LookupError("no such order")


@pytest.mark.parametrize("destination", ["quarantine", "dead_queue", "discard"])
def test_one_event_whatever_becomes_of_the_dead(
    events, run, handles, policy, destination: str
) -> None:
    dead = Queue.objects.create(name="dead") if destination == "dead_queue" else None
    policy(max_attempts=1, on_poison=destination, dead_queue=dead)
    handles("ship", raises(ValueError("no stock")))
    handles("ship.async", _fails_async)
    handles("ship.never", raises(Permanent("no such customer")))
    handles("ship.atomic", raises(KeyError("order")), atomic=True)
    for name in ("ship", "ship.async", "ship.never", "ship.atomic"):
        send(name)

    process = run()

    assert process.pump.tally.poisoned == 4
    assert sorted(map(exceptions, events)) == [
        ["KeyError"],
        ["LookupError"],
        ["Permanent"],
        ["ValueError"],
    ]
    word = "discarded" if destination == "discard" else "poisoned"
    assert {kind(event) for event in events} == {f"message_{word}"}


def test_a_timeout_that_is_final_is_one_event(events, run, handles, policy) -> None:
    policy(max_attempts=1)

    async def sleeps(message: Any) -> None:
        await asyncio.Event().wait()

    handles("ship", sleeps, timeout=timedelta(seconds=0.05))
    send("ship")

    run()

    [event] = events
    assert exceptions(event) == ["TookTooLong"]


def test_deaths_found_by_a_claim_or_a_sweep_are_events_without_an_exception(events, policy) -> None:
    policy(max_attempts=1, lease_timeout=60)
    with testing.frozen_clock() as clock:
        send("lost")
        claim()
        send("late", expires_in=30)
        clock.advance(61)

        sweep()
        claim()

    assert sorted(event["extra"]["fields"]["name"] for event in events) == ["late", "lost"]
    assert {event["level"] for event in events} == {"error"}
    assert [exceptions(event) for event in events] == [[], []]


def test_what_an_operator_gives_up_is_no_event(events) -> None:
    messages.poison([send("ship").pk], by="ada", why="asked for")

    assert events == []


def test_a_site_with_all_that_sentry_enables_by_itself(workers: Workers, tmp_path: Path) -> None:
    Queue.objects.filter(name="default").update(max_attempts=2, cooldown=timedelta(0))
    dying = [send("sample.work", {"fail": 9}).pk for _ in range(3)]
    send("sample.work", {"fail": 1})

    workers.drain(
        "--processes",
        2,
        DJANGO_SETTINGS_MODULE="tests.worker.sentry_settings",
        SENTRY_FILE=str(tmp_path / "events"),
    )

    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert sorted(event["extra"]["fields"]["message_id"] for event in events) == dying
    assert [exceptions(event) for event in events] == [["RuntimeError"]] * 3
