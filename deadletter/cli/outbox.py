"""manage.py deadletter outbox: the brokers; pause and resume them; publish messages again."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Any

from .. import clock
from ..exceptions import MessageRejected
from ..models import PublishedMessage
from ..operations import (
    ArchiveFilter,
    BrokerReport,
    list_brokers,
    list_published,
    pause_outbox,
    publish_again,
    publish_again_matching,
    redact,
    resume_outbox,
)
from ..operations.brokers import COUNTED
from ..text import terminal_line
from .args import add_act, alias, moment, number, person
from .output import Screen, usage
from .text import ago

HELP = "list the brokers of the outbox; pause and resume topics; list and repeat published messages"
_ACTIONS = ("list", "pause", "resume", "published", "publish-again")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=_ACTIONS, default="list")
    parser.add_argument(
        "what",
        nargs="*",
        metavar="TOPIC|ID",
        help="pause, resume: a topic, or a pattern such as 'mail.*'; publish-again: ids",
    )
    parser.add_argument("--broker", metavar="NAME", help="pause, resume: default is 'default'")
    parser.add_argument(
        "--all", action="store_true", help="pause, resume: the whole broker instead of a topic"
    )
    parser.add_argument("--topic", metavar="NAME", help="published, publish-again: of this topic")
    parser.add_argument("--key", metavar="KEY", help="published, publish-again: of this key")
    parser.add_argument("--since", metavar="WHEN", help="publish-again: published since: 2h, 3d, …")
    parser.add_argument("--until", metavar="WHEN", help="publish-again: published before")
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="published: at most (default 50)"
    )
    parser.add_argument("--reveal", action="store_true", help="published: show secrets")
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    action, using = options["action"], alias(options)
    if options["what"] and action in ("list", "published"):
        raise usage(f"outbox {action} takes no names; see --topic")
    if action == "list":
        return _list(screen, using)
    if action == "published":
        return _published(screen, options, using)
    try:
        if action == "publish-again":
            return _publish_again(screen, options, using)
        return _switch(screen, options, using)
    except MessageRejected as error:
        raise usage(str(error)) from None


def _list(screen: Screen, using: str) -> int:
    now = clock.now(using)
    found = list_brokers(using=using)
    if screen.as_json:
        screen.json([asdict(broker) for broker in found])
    elif found:
        _table(screen, found, now)
    else:
        screen.say("no broker: DEADLETTER['BROKERS'] is empty, and nothing waits")
    return 0 if found else 1


def _switch(screen: Screen, options: dict[str, Any], using: str) -> int:
    """Pause or resume topics, or a whole broker."""
    action, topics, broker = options["action"], options["what"], options["broker"] or "default"
    if bool(topics) == options["all"]:
        raise usage(f"outbox {action}: name a topic or a pattern, or --all for the whole broker")
    verb = pause_outbox if action == "pause" else resume_outbox
    about = {"broker": broker, "by": person(options), "why": options["why"], "using": using}
    done = {}
    for topic in topics or [""]:
        subject = f"topic {topic}" if topic else "all topics"
        if options["dry_run"]:
            screen.say(terminal_line(f"would {action} {subject} of broker {broker}"))
        else:
            done[topic] = verb(topic, **about)
            already = "" if done[topic] else f": nothing to do, it is {_already(action)}"
            screen.say(terminal_line(f"{action} {subject} of broker {broker}{already}"))
    if screen.as_json:
        changed = [topic for topic, is_changed in done.items() if is_changed]
        screen.json({"act": action, "broker": broker, "topics": topics, "changed": changed})
    return 0


def _already(action: str) -> str:
    return "paused already" if action == "pause" else "not paused by this name"


def _published(screen: Screen, options: dict[str, Any], using: str) -> int:
    wanted = {name: options[name] for name in ("topic", "key", "broker")}
    found = list_published(**wanted, limit=options["limit"] + 1, using=using)
    shown, now = found[: options["limit"]], clock.now(using)
    if screen.as_json:
        screen.json([_object(row, hide=not options["reveal"]) for row in shown])
    elif shown:
        screen.table(
            ["id", "broker", "topic", "key", "published"],
            [
                [row.pk, row.broker, row.topic, row.key or "-", ago(row.published_at, now)]
                for row in shown
            ],
        )
    else:
        screen.say("nothing matches: DEADLETTER['OUTBOX_KEPT'] says how long messages are kept")
    if len(found) > len(shown):
        screen.say(f"there are more than {len(shown):,}: narrow the filter or raise --limit")
    return 0 if shown else 1


def _publish_again(screen: Screen, options: dict[str, Any], using: str) -> int:
    about = {"by": person(options), "why": options["why"], "using": using}
    filters = [name for name in ("topic", "key", "broker", "since", "until") if options[name]]
    if options["what"]:
        if filters:
            raise usage("name ids, or a topic with filters, not both")
        ids = [_id(text) for text in options["what"]]
        rows = PublishedMessage.objects.using(using).filter(pk__in=ids)
        question = f"Publish {rows.count():,} of {len(set(ids)):,} messages again, with new ids?"
    else:
        if not options["topic"]:
            raise usage("outbox publish-again: name ids, or --topic with --since, --until, --key")
        wanted = ArchiveFilter(
            topic=options["topic"],
            broker=options["broker"],
            key=options["key"],
            since=moment("since", options["since"], options) if options["since"] else None,
            until=moment("until", options["until"], options) if options["until"] else None,
        )
        rows = wanted.apply(PublishedMessage.objects.using(using))
        n = rows.order_by()[: COUNTED + 1].count()
        question = f"Publish {_number(n)} messages of {wanted.topic} again, with new ids?"
    screen.say(terminal_line(question))
    if options["dry_run"]:
        return 0
    screen.confirm(terminal_line(question), yes=options["yes"])
    result = (
        publish_again(ids, **about) if options["what"] else publish_again_matching(wanted, **about)
    )
    if screen.as_json:
        screen.json({"act": "publish-again", **asdict(result)})
    else:
        missing = f", {result.missing:,} not in the archive" if result.missing else ""
        screen.lines([f"stored {result.done:,} messages in the outbox again{missing}"])
    return 0 if result.done or not result.missing else 1


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise usage(f"{text!r} is not an id")
    return int(text)


def _object(row: PublishedMessage, *, hide: bool) -> dict[str, Any]:
    return {
        "id": row.pk,
        "broker": row.broker,
        "topic": row.topic,
        "key": row.key,
        "payload": redact(row.payload) if hide else row.payload,
        "headers": redact(row.headers) if hide else row.headers,
        "created_at": row.created_at,
        "published_at": row.published_at,
    }


def _table(screen: Screen, brokers: list[BrokerReport], now: datetime) -> None:
    screen.table(
        [
            "broker",
            "is",
            "waiting",
            "held",
            "paused",
            "oldest",
            "rate",
            "relays",
            "lanes",
            "last confirm",
            "error",
        ],
        [
            [
                broker.name,
                _state(broker, now),
                _number(broker.waiting),
                _number(broker.held),
                _number(broker.paused),
                "-" if broker.oldest_at is None else ago(broker.oldest_at, now),
                "-" if broker.rate is None else f"{broker.rate:,.1f}/s",
                broker.relays,
                broker.lanes,
                "-" if broker.confirmed_at is None else ago(broker.confirmed_at, now),
                broker.error or "-",
            ]
            for broker in brokers
        ],
    )
    for broker in brokers:
        if broker.pauses and not broker.is_paused:
            topics = ", ".join(broker.pauses)
            screen.say(terminal_line(f"paused topics of {broker.name}: {topics}"))


def _state(broker: BrokerReport, now: datetime) -> str:
    if not broker.is_configured:
        return "not in settings"
    if broker.is_paused:
        return "paused"
    if broker.unavailable_since is not None:
        return f"unavailable since {ago(broker.unavailable_since, now)}"
    return "available" if broker.relays else "not published"


def _number(n: int) -> str:
    return f"more than {COUNTED:,}" if n > COUNTED else f"{n:,}"
