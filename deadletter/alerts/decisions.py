"""
The decision: which alerts are new, which have ended and which are reported.

A decision is one transaction, made by one process at a time. It depends on rows only: the
conditions are read, and the table of alerts stores what was reported. The changes and the messages
that carry the notices are committed together: after a crash before the commit the decision is made
again, and a crash after it loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import clock, signals
from ..alert_rules import AlertPolicy
from ..conf import get_settings
from ..lifecycle.transaction import Transaction, in_transaction
from ..logs import event
from ..models import Alert, AlertState, GroupState, primary_alias
from . import conditions, main_groups, new_groups, regressed_groups
from .context import AlertContext, Observation
from .notice import CONTINUES, RAISED, RECOVERED, NoticeItem, announce, describe_alert

#: Fields of an alert that a decision may change.
_CHANGING = (
    *("last_at", "count", "mark", "detail", "error"),
    *("closed_at", "told_at", "told_mark", "settled_at"),
)


@dataclass(frozen=True)
class Decision:
    """The changes of a decision: keys of alerts, and the number of messages with the notice."""

    raised: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    sent: int = 0


def decide_when_due(*, using: str | None = None) -> Decision | None:
    """Decide unless a decision was made within the interval; one short read to find that out."""
    policy = get_settings().alerts
    if policy is None:
        return None
    alias = primary_alias(using)
    state = AlertState.objects.using(alias).first()
    if state is not None and not _is_due(state, clock.now(alias), policy):
        return None
    return in_transaction(lambda tx: _decide(tx, policy, at_once=False), using=alias)


def decide(*, using: str | None = None) -> Decision | None:
    """
    Decide now, however recent the last decision is.

    Returns None when alerts are off, or while another process decides.
    """
    policy = get_settings().alerts
    if policy is None:
        return None
    alias = primary_alias(using)
    return in_transaction(lambda tx: _decide(tx, policy, at_once=True), using=alias)


def _decide(tx: Transaction, policy: AlertPolicy, *, at_once: bool) -> Decision | None:
    now = tx.time()
    state = _lock(tx, now)
    if state is None or not (at_once or _is_due(state, now, policy)):
        return None
    context = AlertContext(using=tx.using, now=now, policy=policy)
    rows = list(Alert.objects.using(tx.using).filter(settled_at=None).order_by("id"))
    before = {alert.pk: _values(alert) for alert in rows}
    open = {alert.key: alert for alert in rows if alert.closed_at is None}
    recovered = _close_acted_on(context, rows, open)
    found = new_groups.new_groups(context, state, open)
    back = {alert.subject for alert in open.values() if alert.rule == regressed_groups.RULE}
    regressed = regressed_groups.regressed_groups(context, back)
    raised = _update(context, rows, [*found.found, *regressed, *conditions.observe(context)])
    recovered += _close(context, open, found)
    alerts = [*rows, *(alert for alert in raised if alert._state.adding)]
    items = _due(context, state, alerts)
    sent = announce(context, items)
    _mark_reported(context, items)
    _save(context, alerts, before)
    state.decided_at = now
    state.save(using=tx.using, update_fields=["decided_at", "cursor", "spoken"])
    _announce_changes(tx, context, raised, recovered)
    return Decision([a.key for a in raised], [a.key for a in recovered], sent)


def _lock(tx: Transaction, now: Any) -> AlertState | None:
    """Lock the one row of state; None while another process has it locked and decides."""
    rows = AlertState.objects.using(tx.using)
    if not rows.exists():
        rows.get_or_create(pk=1, defaults={"started_at": now})
    # On SQLite the transaction is the lock: there is one writer.
    return rows.select_for_update(skip_locked=True).first()


def _is_due(state: AlertState, now: Any, policy: AlertPolicy) -> bool:
    # A clock that was set back must not stop decisions until it has caught up.
    return state.decided_at is None or abs(now - state.decided_at) >= policy.interval


def _update(context: AlertContext, rows: list[Alert], seen: Iterable[Observation]) -> list[Alert]:
    """
    Update open alerts and open new ones; return the alerts that are open now and were not.

    A condition that holds again before its end was reported reopens the same alert.
    """
    known = {alert.key: alert for alert in rows}
    raised: dict[str, Alert] = {}
    new: dict[str, Alert] = {}
    for observation in seen:
        alert = known.get(observation.key)
        if alert is None:
            new.setdefault(observation.key, _opened(context, observation))
            continue
        if alert.closed_at is not None:
            alert.closed_at = None
            alert.detail = {
                key: value for key, value in alert.detail.items() if key != main_groups.CLOSED_AS
            }
            raised[alert.key] = alert
        alert.last_at, alert.mark = observation.last_at, observation.mark
        # An observation may leave values out: a group is counted when it is reported.
        alert.count = observation.count or alert.count
        alert.detail = observation.detail or alert.detail
        alert.error = observation.error or alert.error
    return [*raised.values(), *new.values()]


def _opened(context: AlertContext, observation: Observation) -> Alert:
    return Alert(
        key=observation.key,
        rule=observation.rule,
        subject=observation.subject,
        detail=observation.detail,
        error=observation.error,
        count=observation.count,
        mark=observation.mark,
        since=observation.since,
        opened_at=context.now,
        last_at=observation.last_at,
    )


def _close_acted_on(
    context: AlertContext, rows: list[Alert], open: dict[str, Alert]
) -> list[Alert]:
    """
    Close alerts about groups that people muted, resolved or merged, and take them out of `open`.

    An alert about a regressed group ends with any act on its state. An end that was not reported
    yet becomes quiet too.
    """
    alerts = [alert for alert in rows if alert.rule in main_groups.RULES]
    standings = context.standings.read({alert.subject for alert in alerts})
    closed = []
    for alert in alerts:
        standing = standings[alert.subject]
        is_over = alert.rule == regressed_groups.RULE and standing.state != GroupState.REGRESSED
        if standing.main != alert.subject:
            end = main_groups.MERGED
        elif standing.is_quiet or is_over:
            end = standing.state
        else:
            continue
        if alert.closed_at is not None:
            if end in main_groups.QUIET:
                alert.detail = {**alert.detail, main_groups.CLOSED_AS: end}
            continue
        alert.closed_at = context.now
        alert.detail = {**alert.detail, main_groups.CLOSED_AS: end}
        if standing.state_at is not None and end != main_groups.MERGED:
            # Who acted knows of what had died until then.
            alert.last_at = max(alert.last_at, standing.state_at)
        closed.append(alert)
        del open[alert.key]
    return closed


def _close(
    context: AlertContext, open: dict[str, Alert], found: new_groups.GroupObservations
) -> list[Alert]:
    """
    Close alerts whose condition has not held for long enough.

    The delay keeps a value around its threshold from raising and recovering in turn. Alerts of a
    rule that was taken out of the settings are closed without a notice.
    """
    recovered = []
    kinds = {rule.kind for rule in context.policy.rules}
    for alert in open.values():
        if alert.rule not in kinds:
            alert.closed_at = alert.settled_at = context.now
        elif context.now - alert.last_at >= context.policy.recover_after and (
            alert.rule != new_groups.RULE
            or found.has_ended(alert.subject, context.now - context.policy.recover_after)
        ):
            alert.closed_at = context.now
            recovered.append(alert)
    return recovered


def _due(context: AlertContext, state: AlertState, alerts: Iterable[Alert]) -> list[NoticeItem]:
    """
    Choose the alerts to report now.

    A rule without a notice in the last digest period is reported at once; otherwise its news is
    collected until that period is over. Ends have a period of their own, so that the end of one
    alert never delays the beginning of another. Ends that people are not told delay nothing.
    """
    now = context.now.timestamp()
    items = []
    spoken: dict[str, float] = {}
    for alert in alerts:
        what = _news(context, alert)
        if what is None:
            continue
        if (item := NoticeItem(what, alert)).is_quiet:
            items.append(item)
            continue
        # The keys of the stored dictionary `spoken`.
        period = f"{alert.rule} ended" if what == RECOVERED else alert.rule
        last = state.spoken.get(period)
        if last is None or abs(now - last) >= context.policy.digest.total_seconds():
            items.append(item)
            spoken[period] = now
    state.spoken |= spoken
    return items


def _news(context: AlertContext, alert: Alert) -> str | None:
    if alert.settled_at is not None:
        return None
    if alert.closed_at is not None:
        return RECOVERED
    if alert.told_at is None:
        return RAISED
    remind = context.policy.remind
    again = remind is not None and context.now - alert.told_at >= remind
    return CONTINUES if alert.mark > alert.told_mark or again else None


def _mark_reported(context: AlertContext, items: list[NoticeItem]) -> None:
    for item in items:
        item.alert.told_at, item.alert.told_mark = context.now, item.alert.mark
        if item.what == RECOVERED:
            item.alert.settled_at = context.now


def _values(alert: Alert) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in _CHANGING}


def _save(context: AlertContext, alerts: list[Alert], before: dict[int, dict[str, Any]]) -> None:
    """Write the changes. Alerts whose condition merely still holds share one statement."""
    rows = Alert.objects.using(context.using)
    rows.bulk_create([alert for alert in alerts if alert._state.adding], batch_size=200)
    still = []
    for alert in alerts:
        was = before.get(alert.pk, _values(alert))
        changed = [name for name, value in _values(alert).items() if value != was[name]]
        if changed == ["last_at"] and alert.last_at == context.now:
            still.append(alert.pk)
        elif changed:
            alert.save(using=context.using, update_fields=changed)
    if still:
        rows.filter(pk__in=still).update(last_at=context.now)
    old = rows.filter(settled_at__isnull=False, closed_at__lt=context.now - new_groups.KEPT)
    rows.filter(pk__in=list(old.order_by("id").values_list("pk", flat=True)[:200])).delete()


def _announce_changes(
    tx: Transaction, context: AlertContext, raised: list[Alert], recovered: list[Alert]
) -> None:
    """After commit, log one line and send one signal for each alert that began or ended."""
    changes = [
        (kind, signal, describe_alert(context, what, alert))
        for kind, signal, what, alerts in (
            ("alert_raised", signals.alert_raised, RAISED, raised),
            ("alert_recovered", signals.alert_recovered, RECOVERED, recovered),
        )
        for alert in alerts
    ]

    def log() -> None:
        for kind, _signal, alert in changes:
            event(
                logging.WARNING,
                kind,
                "{what}: {title}",
                what=kind.replace("_", " "),
                title=alert["title"],
                key=alert["key"],
                count=alert["count"],
            )

    if changes:
        tx.after_commit(log)
    for kind, signal, alert in changes:
        signals.announce(tx.using, kind, signal, sender=Alert, each=partial(_arguments, alert))


def _arguments(alert: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"alert": alert}]
