"""Flows whose own database work shows how often each of their turns took effect."""

from __future__ import annotations

import os
import signal
from typing import Any

from deadletter import (
    ActivityCompleted,
    ChildCompleted,
    Raised,
    Run,
    Started,
    TimerFired,
    handler,
    orchestration,
)
from deadletter.instance_events import Event, kind_of

from .journal import note

STEPS = ("reserve", "charge", "label")


def _took_effect(run: Run, event: Event) -> None:
    """Leave a row that commits with the turn, and not without it."""
    from .models import Effect

    which = getattr(event, "activity_id", "")
    Effect.objects.create(message=0, note=f"{run.instance} {kind_of(event)} {which}".strip())


@orchestration("sample.order", version="1.0.0")
def order(run: Run, event: Event) -> None:
    """Three activities, a child, a timer and an event from outside."""
    _took_effect(run, event)
    match event:
        case Started():
            run.state = {"results": {}}
            for step in STEPS:
                run.call("sample.step", {"step": step})
        case ActivityCompleted(result=result):
            run.state["results"][result] = True
            if len(run.state["results"]) == len(STEPS):
                run.start_child("sample.parcel", {"weight": 3})
        case ChildCompleted(output=output):
            run.state["parcel"] = output
            run.timer(0.1)
        case TimerFired():
            run.state["waits"] = True
            if "to" in run.state:
                run.complete(run.state)
        case Raised(data=data):
            run.state["to"] = data
            if "waits" in run.state:
                run.complete(run.state)


@orchestration("sample.parcel", version="1.0.0")
def parcel(run: Run, event: Event) -> None:
    _took_effect(run, event)
    run.complete({"heavy": run.input["weight"] > 2})


@handler("sample.step")
def step(message: Any) -> Any:
    note("start", message)
    return message.payload["step"]


@orchestration("sample.rolling", version="1.0.0")
def rolling(run: Run, event: Event) -> None:
    """Call what only the new release knows, or what nobody does."""
    match event:
        case Started(input=name):
            run.call(name)
        case ActivityCompleted(result=result):
            run.complete(result)


if os.environ.get("SAMPLE_KNOWS_NEW"):

    @handler("sample.new_step")
    async def new_step(message: Any) -> Any:
        note("start", message)
        return "done by the new release"

    @orchestration("sample.rolling", version="2.0.0")
    def rolling_on(run: Run, event: Event) -> None:
        run.complete("decided by the new release")


def _die_at(moment: str) -> None:
    """
    Kill this process at the n-th "turn" or "result": all is written then, nothing is committed.

    SAMPLE_DIES_AT="turn 3" lets two turns pass.
    """
    from deadletter.instances import activities, turns

    what, _, left = moment.partition(" ")
    module, name = {
        "turn": (turns, "apply_decisions"),
        "result": (activities, "_post_to_instance"),
    }[what]
    real, passed = getattr(module, name), []

    def counted(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        passed.append(True)
        if len(passed) >= int(left):
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, counted)


if os.environ.get("SAMPLE_DIES_AT"):
    _die_at(os.environ["SAMPLE_DIES_AT"])
