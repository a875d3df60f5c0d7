"""
An order as a long-running process: reserve, charge, be approved, ship.

The payment provider is flaky. Some cards are refused for good, which the flow handles. Some answers
of the provider cannot be parsed, which the flow does not handle: the order fails, and when an
operator retries the poison record, it reopens and goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadletter import (
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    Permanent,
    Raised,
    Run,
    Started,
    TimerFired,
    handler,
    orchestration,
    raise_event,
)

if TYPE_CHECKING:
    from deadletter.instance_events import Event
    from deadletter.lifecycle import Claimed

#: Seconds that an order waits for approval before it goes on without it.
PATIENCE = 60


class CardRefused(Permanent):
    """The bank refused: another attempt could not succeed."""


@orchestration("demo.order", version="1.0.0")
def order(run: Run, event: Event) -> None:
    match event:
        case Started(input=given):
            run.state = {"total": given["total"]}
            run.call("demo.reserve", given)
        case ActivityCompleted(name="demo.reserve", result=result):
            run.state["reservation"] = result
            run.call("demo.charge", run.input)
        case ActivityFailed(name="demo.charge", error=error) if "CardRefused" in str(
            error.last_error
        ):
            run.state["refused"] = error.last_error
            run.call("demo.free", run.state["reservation"])
        case ActivityCompleted(name="demo.free"):
            run.complete({"shipped": False, "why": run.state["refused"]})
        case ActivityCompleted(name="demo.charge", result=result):
            run.state["receipt"] = result
            run.call("demo.ask_for_approval", {"order": run.instance})
            run.state["patience"] = run.timer(PATIENCE)
        case Raised(name="approved") | TimerFired():
            # Whichever comes first; the second finds the parcel and changes nothing.
            if "parcel" not in run.state:
                run.state["parcel"] = run.start_child("demo.parcel", {"order": run.instance})
        case ChildCompleted(output=output):
            run.complete({"shipped": True, **output})


@orchestration("demo.parcel", version="1.0.0")
def parcel(run: Run, event: Event) -> None:
    match event:
        case Started(input=given):
            run.call("demo.hand_over", given)
        case ActivityCompleted(result=result):
            run.complete({"tracking": result})


@handler("demo.reserve")
def reserve(message: Claimed) -> dict[str, Any]:
    return {"shelf": len(message.payload["customer"]) % 7, "items": 1}


@handler("demo.free")
def free(message: Claimed) -> dict[str, Any]:
    return {"freed": message.payload["items"]}


@handler("demo.charge")
def charge(message: Claimed) -> dict[str, Any]:
    """Charges the card: flaky ones succeed at the second attempt, garbled ones never."""
    mood = message.payload["provider"]
    if mood == "expired":
        raise CardRefused("the card has expired")
    if mood == "garbled":
        raise ValueError("the provider answered <html>502</html>")
    if mood == "flaky" and message.attempt < 2:
        raise ConnectionError("the provider hung up")
    return {"paid": message.payload["total"]}


@handler("demo.ask_for_approval")
def ask_for_approval(message: Claimed) -> None:
    """Approves most orders at once, by an event as another system would raise it."""
    if not message.payload["order"].endswith(("6", "7")):
        raise_event(message.payload["order"], "approved", {"by": "the rule for small orders"})


@handler("demo.hand_over")
def hand_over(message: Claimed) -> str:
    return f"TRACK-{message.payload['order'].rpartition('-')[2]}"
