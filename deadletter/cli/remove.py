"""manage.py deadletter remove, purge: poison, or a waiting message, for good."""

from __future__ import annotations

import argparse
from typing import Any

from ..operations import PoisonFilter, Removal, Total, remove_matching, remove_poison
from ..operations import remove as remove_messages
from ..operations.purge import old, purge_matching
from .args import add_act, alias, check_source, number, person, span
from .confirm import Plan, on_filter, on_ids
from .output import Progress, Screen
from .selecting import add_selection, select

HELP = "remove poison, or a waiting message, for good"
HELP_PURGE = "remove poison that died longer ago than this, for good"


def add(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, message="ids of messages that wait in a queue")
    add_act(parser)


def add_purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", type=span, required=True, metavar="AGE", help="12h, 30d, 8w"
    )
    parser.add_argument("--queue", metavar="NAME", help="only of this queue, or of a pattern")
    parser.add_argument("--limit", type=number, metavar="N", help="the N that died first")
    parser.add_argument("--progress", action="store_true", help="also without a terminal")
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    chosen = select(options)
    plan = Plan("remove", "removed", "Remove for good")
    about = _about(options)

    if chosen.wanted is not None:

        def matching(wanted: PoisonFilter, progress: Progress) -> Total:
            return remove_matching(wanted, limit=options["limit"], progress=progress, **about)

        return on_filter(screen, options, plan, chosen.wanted, matching)

    def named(ids: list[int]) -> tuple[list[int], list[int], dict[int, str], int]:
        verb = remove_messages if chosen.message_ids else remove_poison
        found: Removal = verb(ids, **about)
        return found.removed, found.missing, found.refused, found.entry_id

    ids = chosen.message_ids or chosen.poison_ids
    return on_ids(screen, options, plan, ids, named, messages=bool(chosen.message_ids))


def run_purge(screen: Screen, options: dict[str, Any]) -> int:
    if options["queue"] is not None:
        check_source(options["queue"], options)
    wanted = old(options["older_than"], queue=options["queue"], using=alias(options))
    plan = Plan("purge", "removed", "Remove for good")

    def work(fixed: PoisonFilter, progress: Progress) -> Total:
        return purge_matching(fixed, limit=options["limit"], progress=progress, **_about(options))

    return on_filter(screen, options, plan, wanted, work)


def _about(options: dict[str, Any]) -> dict[str, Any]:
    return {"by": person(options), "why": options["why"], "using": options["database"]}
