"""What does a turn change? Its decisions become messages and rows, in its own transaction."""

from __future__ import annotations

import json
from typing import Any

from ..conf import get_settings
from ..instance_events import ActivityFailed, ChildFailed
from ..lifecycle.instances import end
from ..lifecycle.instances.log import note
from ..lifecycle.instances.post import Letter
from ..lifecycle.transaction import Transaction
from ..models import Instance, InstanceLogKind, Kind
from ..payload import accept, as_stored
from .run import Call, Child, Complete, Continue, Decision, Fail, Run
from .starts import begin, deliver_or_refuse, send_started

#: The built-in handler that lets a timer fire.
TIMER = "deadletter.timer"


def apply(
    tx: Transaction,
    instance: Instance,
    run: Run | None,
    failure: ActivityFailed | ChildFailed | None,
    *,
    settled: int | None,
) -> None:
    """
    Write what a turn decided.

    `failure` is one that it left unanswered, which fails the instance; `settled` is the activity,
    child or timer that its event is the end of.
    """
    if run is None:
        end.save(tx, instance)
        return
    text = accept(run.state, field="state", limit=get_settings().payload_limit)
    instance.version = run.version
    instance.state = as_stored(run.state, text)
    instance.is_begun = True
    if failure is not None:
        # What failed stays pending: a retry that reopens the instance must find it waited for.
        end.fail(tx, instance, failure.error, failed_by=failure.error.message_id)
        return
    instance.pending.pop(str(settled), None)
    instance.next_activity_id = run.next_activity_id
    # By id: two turns that start the same children must not wait for each other.
    for decision in sorted(run.decisions, key=_order):
        _send(tx, instance, decision)
    _end(tx, instance, run)


def _order(decision: Decision) -> tuple[bool, str, int]:
    is_child = isinstance(decision, Child)
    return is_child, decision.instance if isinstance(decision, Child) else "", decision.activity_id


def _send(tx: Transaction, instance: Instance, decision: Decision) -> None:
    if isinstance(decision, Call):
        message_id = _call(tx, instance, decision)
        _wait_for(tx, instance, decision.activity_id, "activity", decision.name, message_id)
    elif isinstance(decision, Child):
        begin(
            tx,
            decision.instance,
            name=decision.name,
            input=decision.input,
            version=decision.version,
            queue=decision.queue or instance.queue,
            parent=instance,
            activity_id=decision.activity_id,
        )
        _wait_for(tx, instance, decision.activity_id, "child", decision.name, None, decision)
    else:
        letter = Letter(
            kind=Kind.ORCHESTRATION,
            name=TIMER,
            queue=instance.queue,
            instance=instance.id,
            execution_id=instance.execution_id,
            activity_id=decision.activity_id,
            # Its handler is an ordinary one, which is not told in which database it works.
            payload=json.dumps({"using": tx.using}),
            delay=decision.delay,
        )
        message_id = deliver_or_refuse(tx, letter)
        _wait_for(tx, instance, decision.activity_id, "timer", "", message_id)


def _call(tx: Transaction, instance: Instance, call: Call) -> int:
    letter = Letter(
        kind=Kind.ACTIVITY,
        name=call.name,
        queue=call.queue or instance.queue,
        instance=instance.id,
        execution_id=instance.execution_id,
        activity_id=call.activity_id,
        payload=call.payload,
        delay=call.delay,
        priority=call.priority,
        headers=call.headers,
    )
    return deliver_or_refuse(tx, letter)


_LOGGED = {
    "activity": InstanceLogKind.CALLED,
    "child": InstanceLogKind.CHILD_STARTED,
    "timer": InstanceLogKind.TIMER_SET,
}


def _wait_for(
    tx: Transaction,
    instance: Instance,
    activity_id: int,
    kind: str,
    name: str,
    message_id: int | None,
    child: Child | None = None,
) -> None:
    waited: dict[str, Any] = {"kind": kind, "name": name}
    if child is not None:
        waited["instance"] = child.instance
    instance.pending[str(activity_id)] = waited
    note(
        tx,
        instance,
        _LOGGED[kind],
        name=name,
        activity_id=activity_id,
        message_id=message_id,
        data=None if child is None else {"instance": child.instance},
    )


def _end(tx: Transaction, instance: Instance, run: Run) -> None:
    match run.ending:
        case Complete(output=output):
            end.complete(tx, instance, output)
        case Fail(error=error):
            end.fail(tx, instance, error)
        case Continue(input=input, version=version):
            note(tx, instance, InstanceLogKind.CONTINUED, data={"input": input})
            instance.history = end.past(instance, status="continued")
            instance.execution_id += 1
            instance.version = version or instance.version
            send_started(tx, instance, input=input, state=None)
        case None:
            end.save(tx, instance)
