"""Decisions of a turn: they become messages and rows, in the transaction of the turn."""

from __future__ import annotations

import json
from typing import Any

from ..conf import get_settings
from ..instance_events import ActivityFailed, ChildFailed
from ..lifecycle.instances.end import complete_instance, fail_instance
from ..lifecycle.instances.log import add_log_entry
from ..lifecycle.instances.post import InstanceMessage
from ..lifecycle.instances.rows import extended_history, save_instance
from ..lifecycle.transaction import Transaction
from ..models import Instance, InstanceLogKind, Kind
from ..payload import accept, as_stored
from .run import CallActivity, Complete, Continue, Decision, Fail, Run, StartChild
from .starts import begin_execution, post_or_refuse, start_in

#: The name of the built-in handler that fires a timer.
TIMER = "deadletter.timer"


def apply_decisions(
    tx: Transaction,
    instance: Instance,
    run: Run | None,
    failure: ActivityFailed | ChildFailed | None,
    *,
    settled: int | None,
) -> None:
    """
    Write the decisions of a turn.

    `failure` is a failure that the flow left unanswered, which fails the instance; `settled` is the
    activity, child or timer that ended with the event of this turn.
    """
    if run is None:
        save_instance(tx, instance)
        return
    text = accept(run.state, field="state", limit=get_settings().payload_limit)
    instance.version = run.version
    instance.state = as_stored(run.state, text)
    instance.is_begun = True
    if failure is not None:
        # The failed activity stays pending: a retry that reopens the instance must find it there.
        fail_instance(tx, instance, failure.error, failed_by=failure.error.message_id)
        return
    instance.pending.pop(str(settled), None)
    instance.next_activity_id = run.next_activity_id
    # Children in the order of their ids: two turns that start the same children cannot deadlock.
    for decision in sorted(run.decisions, key=_order):
        _apply(tx, instance, decision)
    _end(tx, instance, run)


def _order(decision: Decision) -> tuple[bool, str, int]:
    child_id = decision.instance if isinstance(decision, StartChild) else ""
    return isinstance(decision, StartChild), child_id, decision.activity_id


def _apply(tx: Transaction, instance: Instance, decision: Decision) -> None:
    if isinstance(decision, CallActivity):
        message_id = _call(tx, instance, decision)
        _add_pending(tx, instance, decision.activity_id, "activity", decision.name, message_id)
    elif isinstance(decision, StartChild):
        start_in(
            tx,
            decision.instance,
            name=decision.name,
            input=decision.input,
            version=decision.version,
            queue=decision.queue or instance.queue,
            parent=instance,
            activity_id=decision.activity_id,
        )
        _add_pending(tx, instance, decision.activity_id, "child", decision.name, None, decision)
    else:
        message = InstanceMessage(
            kind=Kind.ORCHESTRATION,
            name=TIMER,
            queue=instance.queue,
            instance=instance.id,
            execution_id=instance.execution_id,
            activity_id=decision.activity_id,
            # The handler of a timer is an ordinary one, which does not know its database.
            payload=json.dumps({"using": tx.using}),
            delay=decision.delay,
        )
        message_id = post_or_refuse(tx, message)
        _add_pending(tx, instance, decision.activity_id, "timer", "", message_id)


def _call(tx: Transaction, instance: Instance, call: CallActivity) -> int:
    message = InstanceMessage(
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
    return post_or_refuse(tx, message)


_LOGGED = {
    "activity": InstanceLogKind.CALLED,
    "child": InstanceLogKind.CHILD_STARTED,
    "timer": InstanceLogKind.TIMER_SET,
}


def _add_pending(
    tx: Transaction,
    instance: Instance,
    activity_id: int,
    kind: str,
    name: str,
    message_id: int | None,
    child: StartChild | None = None,
) -> None:
    """Record in row and log that the instance waits for an activity, a child or a timer."""
    waited: dict[str, Any] = {"kind": kind, "name": name}
    if child is not None:
        waited["instance"] = child.instance
    instance.pending[str(activity_id)] = waited
    add_log_entry(
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
            complete_instance(tx, instance, output)
        case Fail(error=error):
            fail_instance(tx, instance, error)
        case Continue(input=input, version=version):
            add_log_entry(tx, instance, InstanceLogKind.CONTINUED, data={"input": input})
            instance.history = extended_history(instance, status="continued")
            instance.execution_id += 1
            instance.version = version or instance.version
            begin_execution(tx, instance, input=input, state=None)
        case None:
            save_instance(tx, instance)
