"""manage.py deadletter remove, purge, release, poison: acts on records and on waiting messages."""

from __future__ import annotations

import argparse
from typing import Any

from ..lifecycle.values import ActResult
from ..models import Act
from ..operations import PoisonFilter, Total, poison, release, remove_matching, remove_poison
from ..operations import remove as remove_messages
from ..operations.bulk import purge_filter
from .args import add_act, add_selection, alias, check_source, number, person, select, span
from .confirm import ActPlan, on_filter, on_ids
from .output import ProgressLine, Screen, usage

HELP = "remove poison, or a waiting message, for good"
HELP_PURGE = "remove poison that died longer ago than this, for good"
HELP_RELEASE = "let messages pass a waiting or poisoned predecessor of their stream"
HELP_POISON = "quarantine waiting messages by hand (--why is required)"


def add(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, message="ids of messages that wait in a queue")
    add_act(parser)


def add_purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", type=span, required=True, metavar="AGE", help="12h, 30d, 8w"
    )
    parser.add_argument("--queue", metavar="NAME", help="only of this queue, or of a pattern")
    parser.add_argument("--limit", type=number, metavar="N", help="only the N that died first")
    parser.add_argument(
        "--progress", action="store_true", help="report progress, also without a terminal"
    )
    add_act(parser)


def add_messages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", type=number, metavar="ID", help="ids of messages")
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    chosen = select(options)
    plan = ActPlan("remove", "removed", "Remove for good")
    given = about(options)

    if chosen.wanted is not None:

        def matching(wanted: PoisonFilter, progress: ProgressLine) -> Total:
            return remove_matching(wanted, limit=options["limit"], progress=progress, **given)

        return on_filter(screen, options, plan, chosen.wanted, matching)

    def named(ids: list[int]) -> ActResult:
        verb = remove_messages if chosen.message_ids else remove_poison
        return verb(ids, **given)

    ids = chosen.message_ids or chosen.poison_ids
    return on_ids(screen, options, plan, ids, named, messages=bool(chosen.message_ids))


def run_purge(screen: Screen, options: dict[str, Any]) -> int:
    if options["queue"] is not None:
        check_source(options["queue"], options)
    wanted = purge_filter(options["older_than"], queue=options["queue"], using=alias(options))
    plan = ActPlan("purge", "removed", "Remove for good")
    given = about(options) | {"limit": options["limit"], "act": Act.PURGE}

    def work(fixed: PoisonFilter, progress: ProgressLine) -> Total:
        return remove_matching(fixed, progress=progress, **given)

    return on_filter(screen, options, plan, wanted, work)


def run_release(screen: Screen, options: dict[str, Any]) -> int:
    def work(ids: list[int]) -> ActResult:
        return release(ids, **about(options))

    plan = ActPlan("release", "released", "Release")
    return on_ids(screen, options, plan, list(dict.fromkeys(options["ids"])), work, messages=True)


def run_poison(screen: Screen, options: dict[str, Any]) -> int:
    if not options["why"].strip():
        raise usage("say --why: it is what the next person reads on the record")

    def work(ids: list[int]) -> ActResult:
        return poison(ids, **about(options))

    plan = ActPlan("poison", "poisoned", "Quarantine")
    return on_ids(screen, options, plan, list(dict.fromkeys(options["ids"])), work, messages=True)


def about(options: dict[str, Any]) -> dict[str, Any]:
    """Return who acts, why, and on which database."""
    return {"by": person(options), "why": options["why"], "using": options["database"]}
