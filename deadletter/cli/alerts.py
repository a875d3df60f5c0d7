"""manage.py deadletter alerts: list alerts, decide now, or test the channels."""

from __future__ import annotations

import argparse
from typing import Any

from .. import clock
from ..alert_rules import EACH
from ..alerts import decide, send_test
from ..alerts.context import COUNTED
from ..alerts.current_counts import left_of
from ..alerts.main_groups import CLOSED_AS
from ..alerts.main_groups import RULES as GROUP_RULES
from ..alerts.notice import pending
from ..conf import get_settings
from ..lifecycle.internal_queue import QUEUE
from ..models import Alert, GroupState, Queue, WorkerProcess
from ..operations import matching_queues
from ..patterns import is_pattern
from .args import add_common, alias, number
from .output import Screen, usage
from .text import ago

HELP = "list open alerts; decide now, or test the channels"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also closed alerts")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="decide now: for cron, or to test rules")
    what.add_argument("--test", action="store_true", help="send a test notice to every channel")
    add_common(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using = alias(options)
    policy = get_settings().alerts
    if policy is None and (options["check"] or options["test"]):
        raise usage('alerts are off: DEADLETTER["ALERTS"] is not set (see docs/alerts.md)')
    if options["test"]:
        return _test(screen, using)
    if options["check"]:
        decision = decide(using=using)
        if decision is None:
            screen.say("another process decides at this moment: this is what it decided before")
        else:
            screen.say(
                f"decided: {len(decision.raised)} raised, {len(decision.recovered)} over, "
                f"{decision.sent} messages with notices"
            )
    rows = Alert.objects.using(using).order_by("-id")
    found = list((rows if options["all"] else rows.filter(closed_at=None))[: options["limit"]])
    _show(screen, found, using)
    return 0


def _test(screen: Screen, using: str) -> int:
    names = send_test(using=using)
    if not names:
        raise usage('DEADLETTER["ALERTS"]["channels"] is empty: there is no channel to test')
    if screen.as_json:
        screen.json({"channels": names})
    else:
        screen.lines([f"a test notice is on its way to: {', '.join(names)}"])
    _warn(screen, using)
    return 0


def _show(screen: Screen, alerts: list[Alert], using: str) -> None:
    now = clock.now(using)
    policy = get_settings().alerts
    if screen.as_json:
        screen.json([_object(alert, using) for alert in alerts])
        return
    screen.table(
        ("rule", "about", "count", "since", "told", "state", "sample error"),
        [
            (
                alert.rule,
                _about(alert),
                alert.count,
                ago(alert.since, now),
                ago(alert.told_at, now),
                _state(alert, now, using),
                alert.error or "-",
            )
            for alert in alerts
        ],
    )
    if policy is None:
        screen.say('alerts are off: DEADLETTER["ALERTS"] is not set')
    _warn(screen, using)


def _state(alert: Alert, now: Any, using: str) -> str:
    if alert.closed_at is None:
        return "open"
    if (word := alert.detail.get(CLOSED_AS)) and word != GroupState.NEW:
        return f"{word} {ago(alert.closed_at, now)}"
    left = left_of(alert.rule, alert.subject, using=using)
    if left:
        many = f"{COUNTED:,}+" if left > COUNTED else f"{left:,}"
        return f"quiet {ago(alert.closed_at, now)}, {many} still dead"
    return f"over {ago(alert.closed_at, now)}"


def _about(alert: Alert) -> str:
    if alert.rule in GROUP_RULES:
        return f"{alert.detail.get('name', '')}: {alert.detail.get('exception', '')}"
    return alert.subject or "all queues"


def _object(alert: Alert, using: str) -> dict[str, Any]:
    return {
        "key": alert.key,
        "rule": alert.rule,
        "subject": alert.subject,
        "detail": alert.detail,
        "error": alert.error,
        "count": alert.count,
        "since": alert.since,
        "opened_at": alert.opened_at,
        "last_at": alert.last_at,
        "told_at": alert.told_at,
        "closed_at": alert.closed_at,
        "left": left_of(alert.rule, alert.subject, using=using),
    }


def _warn(screen: Screen, using: str) -> None:
    _warn_of_rules(screen, using)
    _warn_of_notices(screen, using)


def _warn_of_rules(screen: Screen, using: str) -> None:
    """Name the rules about queues that do not exist: mostly typing errors."""
    policy = get_settings().alerts
    wanted = {rule.queue: rule.kind for rule in policy.rules} if policy is not None else {}
    existing = Queue.objects.using(using).filter(name__in=wanted).values_list("name", flat=True)
    for queue in sorted(wanted.keys() - set(existing) - {"", EACH}):
        if is_pattern(queue):
            if not matching_queues(queue, using=using):
                screen.say(f"the rule {wanted[queue]} is about {queue}, which matches no queue yet")
            continue
        screen.say(
            f"the rule {wanted[queue]} is about the queue {queue}, which does not exist (yet): it "
            "watches nothing"
        )


def _warn_of_notices(screen: Screen, using: str) -> None:
    """Warn if notices wait and no live worker serves their queue."""
    waiting = pending(using=using)
    if not waiting:
        return
    if QUEUE not in WorkerProcess.objects.using(using).alive(clock.now(using)).served():
        screen.say(
            f"{waiting} notices wait to be delivered and no live worker serves the queue {QUEUE}: "
            f"start one without --queues, or with --queues {QUEUE}"
        )
