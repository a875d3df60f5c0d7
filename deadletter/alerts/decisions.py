"""
What is new, what has ended, what is told? One transaction, by one process at a time.

Everything comes from rows: the looks read what is wrong now, the table of alerts says what was
told. The changes, and the messages that carry the notices, are committed together, so a crash
before the commit leaves a decision that is made again, and a crash after it loses nothing.
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
from ..lifecycle.announce import announce as tell_listeners
from ..lifecycle.transaction import Transaction, in_transaction
from ..logs import event
from ..models import Alert, AlertState, primary_alias
from . import instances, new_groups, poison, waiting, workers
from .conditions import Look, Observation
from .notice import CONTINUES, RAISED, RECOVERED, Item, announce, describe_alert

#: Fields of an alert that a decision may change.
_CHANGING = (
    *("last_at", "count", "mark", "detail", "error"),
    *("closed_at", "told_at", "told_mark", "settled_at"),
)


@dataclass(frozen=True)
class Decision:
    """What a decision changed: keys of alerts, and how many messages carry the notice."""

    raised: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    sent: int = 0


def decide_when_due(*, using: str | None = None) -> Decision | None:
    """Decide unless somebody did within the interval; one short read to find that out."""
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
    Decide now, whenever the last decision was made.

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
    look = Look(using=tx.using, now=now, policy=policy)
    rows = list(Alert.objects.using(tx.using).filter(settled_at=None).order_by("id"))
    before = {alert.pk: _values(alert) for alert in rows}
    open = {alert.key: alert for alert in rows if alert.closed_at is None}
    found = new_groups.new_groups(look, state, open)
    raised = _observe(look, rows, [*found.found, *_observations(look)])
    recovered = _end(look, open, found)
    alerts = [*rows, *(alert for alert in raised if alert._state.adding)]
    items = _due(look, state, alerts)
    sent = announce(look, items)
    _mark_told(look, items)
    _store(look, alerts, before)
    state.decided_at = now
    state.save(using=tx.using, update_fields=["decided_at", "cursor", "spoken"])
    _tell_listeners(tx, look, raised, recovered)
    return Decision([a.key for a in raised], [a.key for a in recovered], sent)


def _lock(tx: Transaction, now: Any) -> AlertState | None:
    """Lock the one row of state; None while somebody else holds it, and so decides."""
    rows = AlertState.objects.using(tx.using)
    if not rows.exists():
        rows.get_or_create(pk=1, defaults={"started_at": now})
    # SQLite has one writer: there the transaction is the lock.
    return rows.select_for_update(skip_locked=True).first()


def _is_due(state: AlertState, now: Any, policy: AlertPolicy) -> bool:
    # A clock that was set back must not silence the rules until it has caught up.
    return state.decided_at is None or abs(now - state.decided_at) >= policy.interval


def _observations(look: Look) -> Iterable[Observation]:
    yield from poison.rates(look)
    yield from poison.depths(look)
    yield from poison.halted_streams(look)
    yield from waiting.too_old(look)
    yield from waiting.unserved(look)
    yield from workers.lost_workers(look)
    yield from workers.open_breakers(look)
    yield from instances.stuck(look)


def _observe(look: Look, rows: list[Alert], seen: Iterable[Observation]) -> list[Alert]:
    """
    Bring open alerts up to date and open others; return those that are open now and were not.

    What has ended, and begins again before its end was told, is the same alert.
    """
    known = {alert.key: alert for alert in rows}
    raised: dict[str, Alert] = {}
    new: dict[str, Alert] = {}
    for observation in seen:
        alert = known.get(observation.key)
        if alert is None:
            new.setdefault(observation.key, _opened(look, observation))
            continue
        if alert.closed_at is not None:
            alert.closed_at = None
            raised[alert.key] = alert
        alert.last_at, alert.mark = observation.last_at, observation.mark
        # What a look does not say again stays: a group is counted when it is told.
        alert.count = observation.count or alert.count
        alert.detail = observation.detail or alert.detail
        alert.error = observation.error or alert.error
    return [*raised.values(), *new.values()]


def _opened(look: Look, observation: Observation) -> Alert:
    return Alert(
        key=observation.key,
        rule=observation.rule,
        subject=observation.subject,
        detail=observation.detail,
        error=observation.error,
        count=observation.count,
        mark=observation.mark,
        since=observation.since,
        opened_at=look.now,
        last_at=observation.last_at,
    )


def _end(look: Look, open: dict[str, Alert], found: new_groups.Groups) -> list[Alert]:
    """
    Close what has not been true for long enough, so that a value around its threshold does not
    raise and recover in turn. Alerts of a rule that was taken out are closed without a word.
    """
    recovered = []
    kinds = {rule.kind for rule in look.policy.rules}
    for alert in open.values():
        if alert.rule not in kinds:
            alert.closed_at = alert.settled_at = look.now
        elif look.now - alert.last_at >= look.policy.recover_after and (
            alert.rule != new_groups.RULE or found.reached(alert.subject)
        ):
            alert.closed_at = look.now
            recovered.append(alert)
    return recovered


def _due(look: Look, state: AlertState, alerts: Iterable[Alert]) -> list[Item]:
    """
    Choose what is told now.

    A rule that was silent for the digest's time speaks at once; one that has just spoken collects
    what is new until that time is over. Ends have a time of their own, so that no end of one alert
    delays the beginning of another.
    """
    now = look.now.timestamp()
    items = []
    spoken: dict[str, float] = {}
    for alert in alerts:
        what = _news(look, alert)
        if what is None:
            continue
        voice = f"{alert.rule} ended" if what == RECOVERED else alert.rule
        last = state.spoken.get(voice)
        if last is None or abs(now - last) >= look.policy.digest.total_seconds():
            items.append(Item(what, alert))
            spoken[voice] = now
    state.spoken |= spoken
    return items


def _news(look: Look, alert: Alert) -> str | None:
    if alert.settled_at is not None:
        return None
    if alert.closed_at is not None:
        return RECOVERED
    if alert.told_at is None:
        return RAISED
    remind = look.policy.remind
    again = remind is not None and look.now - alert.told_at >= remind
    return CONTINUES if alert.mark > alert.told_mark or again else None


def _mark_told(look: Look, items: list[Item]) -> None:
    for item in items:
        item.alert.told_at, item.alert.told_mark = look.now, item.alert.mark
        if item.what == RECOVERED:
            item.alert.settled_at = look.now


def _values(alert: Alert) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in _CHANGING}


def _store(look: Look, alerts: list[Alert], before: dict[int, dict[str, Any]]) -> None:
    """Write what changed: most alerts are merely still true, and those share one statement."""
    rows = Alert.objects.using(look.using)
    rows.bulk_create([alert for alert in alerts if alert._state.adding], batch_size=200)
    still = []
    for alert in alerts:
        was = before.get(alert.pk, _values(alert))
        changed = [name for name, value in _values(alert).items() if value != was[name]]
        if changed == ["last_at"] and alert.last_at == look.now:
            still.append(alert.pk)
        elif changed:
            alert.save(using=look.using, update_fields=changed)
    if still:
        rows.filter(pk__in=still).update(last_at=look.now)
    old = rows.filter(settled_at__isnull=False, closed_at__lt=look.now - new_groups.KEPT)
    rows.filter(pk__in=list(old.order_by("id").values_list("pk", flat=True)[:200])).delete()


def _tell_listeners(
    tx: Transaction, look: Look, raised: list[Alert], recovered: list[Alert]
) -> None:
    """After commit: one line in the log and one signal for each alert that began or ended."""
    told = [
        (kind, signal, describe_alert(look, what, alert))
        for kind, signal, what, alerts in (
            ("alert_raised", signals.alert_raised, RAISED, raised),
            ("alert_recovered", signals.alert_recovered, RECOVERED, recovered),
        )
        for alert in alerts
    ]

    def tell() -> None:
        for kind, _signal, alert in told:
            event(
                logging.WARNING,
                kind,
                "{what}: {title}",
                what=kind.replace("_", " "),
                title=alert["title"],
                key=alert["key"],
                count=alert["count"],
            )

    if told:
        tx.after_commit(tell)
    for kind, signal, alert in told:
        tell_listeners(tx.using, kind, signal, sender=Alert, each=partial(_arguments, alert))


def _arguments(alert: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"alert": alert}]
