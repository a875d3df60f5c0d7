"""manage.py deadletter release, poison: what people do to messages in a queue."""

from __future__ import annotations

import argparse
from typing import Any

from ..operations import poison, release
from .args import add_act, number, person
from .confirm import Plan, on_ids
from .output import Screen, usage

HELP_RELEASE = "let messages pass a waiting or poisoned predecessor of their stream"
HELP_POISON = "quarantine waiting messages by hand (--why is required)"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", type=number, metavar="ID", help="ids of messages")
    add_act(parser)


def run_release(screen: Screen, options: dict[str, Any]) -> int:
    def work(ids: list[int]) -> tuple[list[int], list[int], dict[int, str], int]:
        about: dict[str, Any] = {"by": person(options), "why": options["why"]}
        about["using"] = options["database"]
        found = release(ids, **about)
        return found.done, found.missing, found.refused, found.entry_id

    plan = Plan("release", "released", "Release")
    return on_ids(screen, options, plan, list(dict.fromkeys(options["ids"])), work, messages=True)


def run_poison(screen: Screen, options: dict[str, Any]) -> int:
    if not options["why"].strip():
        raise usage("say --why: it is what the next person reads on the record")

    def work(ids: list[int]) -> tuple[list[int], list[int], dict[int, str], int]:
        about: dict[str, Any] = {"by": person(options), "why": options["why"]}
        about["using"] = options["database"]
        found = poison(ids, **about)
        return found.done, found.missing, found.refused, found.entry_id

    plan = Plan("poison", "poisoned", "Quarantine")
    return on_ids(screen, options, plan, list(dict.fromkeys(options["ids"])), work, messages=True)
