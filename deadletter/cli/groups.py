"""manage.py deadletter groups, group: failure groups, their states, notes and timelines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.db import transaction

from .. import clock
from ..models import GroupState
from ..operations import (
    Advice,
    Comparison,
    FailureGroupDetails,
    FailureGroupRow,
    GroupFilter,
    GroupResult,
    TimelineEntry,
    acknowledge_group,
    assign_group,
    compare_records,
    count_failure_groups,
    get_failure_group,
    link_ticket,
    list_failure_groups,
    merge_groups,
    mute_group,
    reopen_group,
    resolve_group,
    retry_advice,
    split_group,
    timeline,
    write_note,
)
from ..operations.failure_groups import COUNTED, OPEN, STREAMS_COUNTED
from ..operations.retry_outcomes import Outcomes
from ..status import FailureReason
from ..text import terminal_line, terminal_paragraph
from .args import add_act, add_common, alias, moment, number, person, seconds
from .output import Screen, usage
from .text import ago

HELP = "list failure groups, what needs a person first"
HELP_ONE = "show a failure group; acknowledge, mute, resolve, assign, merge or annotate groups"
_ACTS = (
    "show: what is known of the groups; ack: you know of it; mute: keep it quiet, for a "
    "time or a growth; resolve: it is repaired; reopen: make it new again; assign: give it an "
    "owner; ticket: link it to a ticket; note: write a note; merge: show the groups after the "
    "first in the first; split: show merged groups by themselves again"
)
#: Entries of the timeline, and characters of a note or an error, that `show` prints.
_ENTRIES, _TEXT = 20, 4_000
#: The options of single acts.
_ONLY = {
    "duration": ("--for", ("mute",)),
    "until": ("--until", ("mute",)),
    "grows_by": ("--grows-by", ("mute",)),
    "in_release": ("--in-release", ("resolve",)),
    "owner": ("--owner", ("assign",)),
    "nobody": ("--nobody", ("assign",)),
    "url": ("--url", ("ticket",)),
    "no_ticket": ("--no-ticket", ("ticket",)),
    "text": ("--text", ("note",)),
    "answers": ("--answers", ("note",)),
    "limit": ("--limit", ("show",)),
    "compare": ("--compare", ("show",)),
}


def add(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which groups (all that are given must match)")
    group.add_argument(
        "--state",
        choices=[OPEN, *GroupState.values],
        help="open: regressed, new and acknowledged",
    )
    owner = group.add_mutually_exclusive_group()
    owner.add_argument("--owner", metavar="USER", help="groups of this user")
    owner.add_argument("--unowned", action="store_true", help="groups without an owner")
    group.add_argument("--release", metavar="NAME", help="groups that failed in this release")
    group.add_argument("--queue", metavar="NAME", help="the queue of the last failure")
    group.add_argument("--name", metavar="NAME", help="the name of the messages")
    group.add_argument("--tag", metavar="KEY=VALUE", help="failures with this tag")
    group.add_argument(
        "--text", metavar="TEXT", help="a part of the name, exception, place, error or ticket"
    )
    parser.add_argument(
        "--limit", type=number, default=50, metavar="N", help="at most (default 50)"
    )
    add_common(parser)


def add_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=list(_ACTIONS), help=_ACTS)
    parser.add_argument("fingerprints", nargs="*", metavar="FINGERPRINT")
    group = parser.add_argument_group("show")
    group.add_argument(
        "--limit", type=number, metavar="N", help=f"entries of the timeline ({_ENTRIES})"
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="also what the payloads of its records share, and in what they differ",
    )
    group = parser.add_argument_group("mute (without any of these: until it is reopened)")
    group.add_argument(
        "--for", dest="duration", type=seconds, metavar="TIME", help="for 90, 30m, 4h, 2d"
    )
    group.add_argument("--until", metavar="WHEN", help="until 2026-01-31T12:00")
    group.add_argument(
        "--grows-by", type=number, metavar="N", help="until it has failed N times more"
    )
    group = parser.add_argument_group("resolve")
    group.add_argument(
        "--in-release",
        metavar="NAME",
        help="the release with the repair: failures in earlier ones are no regression",
    )
    group = parser.add_argument_group("assign")
    group.add_argument("--owner", metavar="USER", help="an active user of the site")
    group.add_argument("--nobody", action="store_true", help="take the owner away")
    group = parser.add_argument_group("ticket")
    group.add_argument("--url", metavar="URL", help="its address, http:// or https://")
    group.add_argument("--no-ticket", action="store_true", help="remove the link")
    group = parser.add_argument_group("note")
    group.add_argument("--text", metavar="TEXT", help="the note")
    group.add_argument("--answers", type=number, metavar="ID", help="the note that it answers")
    add_act(parser)


def run(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"]
    wanted = _filter(options)
    found = list_failure_groups(wanted, limit=limit + 1, using=using)
    if screen.as_json:
        screen.json([group_object(row) for row in found[:limit]])
    elif found:
        _table(screen, found[:limit], clock.now(using))
        counts = count_failure_groups(wanted, using=using)
        screen.say(", ".join(f"{n:,} {state}" for state, n in counts.items() if n))
    if not found:
        screen.say("nothing matches")
    elif len(found) > limit:
        screen.say(f"there are more than {limit:,}: narrow the filter or raise --limit")
    return 0 if found else 1


def run_one(screen: Screen, options: dict[str, Any]) -> int:
    action = options["action"]
    if not options["fingerprints"]:
        raise usage(f"group {action}: which group? `deadletter groups` lists them")
    for key, (name, acts) in _ONLY.items():
        if options[key] not in (None, False) and action not in acts:
            raise usage(f"{name} is for {acts[0]}")
    return _ACTIONS[action](screen, options)


def group_object(row: FailureGroupRow) -> dict[str, Any]:
    """Return a group as JSON; `…_more` tells that a number is only a lower bound."""
    found = asdict(row)
    found["reason"] = FailureReason.read(row.reason).name
    for key, most in (
        ("records", COUNTED),
        ("in_dead_queues", COUNTED),
        ("halted", STREAMS_COUNTED),
    ):
        found[f"{key}_more"] = found[key] > most
        found[key] = min(found[key], most)
    return found


def _filter(options: dict[str, Any]) -> GroupFilter:
    names = ("state", "owner", "release", "queue", "name", "tag", "text")
    given = {key: options[key] for key in names if options[key] is not None}
    for key, value in given.items():
        if value == "":
            raise usage(f"--{key}: expected a value")
    if options["unowned"]:
        given["owner"] = ""
    try:
        return GroupFilter(**given)
    except ValueError as error:
        raise usage(f"--{error}") from None


def _table(screen: Screen, rows: list[FailureGroupRow], now: datetime) -> None:
    screen.table(
        ["group", "is", "owner", "failures", "deaths", "dead now", "streams", "last", "since",
         "release", "name", "error"],
        [
            [
                row.fingerprint,
                row.state,
                row.owner or "-",
                row.failures,
                row.deaths,
                _capped(row.records + row.in_dead_queues, COUNTED),
                _capped(row.halted, STREAMS_COUNTED) if row.halted else "-",
                ago(row.last_failed_at, now),
                ago(row.first_failed_at, now),
                row.last_release or "-",
                row.name,
                f"{row.exception}: {row.error}" if row.error else row.exception,
            ]
            for row in rows
        ],
    )  # fmt: skip


def _capped(count: int, most: int) -> str:
    return f"{most:,}+" if count > most else f"{count:,}"


def _show(screen: Screen, options: dict[str, Any]) -> int:
    using, limit = alias(options), options["limit"] or _ENTRIES
    now, missing, objects = clock.now(using), [], []
    for fingerprint in dict.fromkeys(options["fingerprints"]):
        found = get_failure_group(fingerprint, using=using)
        if found is None:
            missing.append(fingerprint)
            continue
        entries = timeline(fingerprint, limit=limit, using=using)[:limit]
        advice = retry_advice(fingerprint, using=using)
        compared = compare_records(fingerprint, using=using) if options["compare"] else None
        if screen.as_json:
            objects.append(_details_object(found, entries, advice, compared))
        else:
            lines = [*_page(found, advice, now), *_comparison_lines(compared)]
            screen.lines([*lines, *_timeline_lines(entries, now), ""])
    if screen.as_json:
        screen.json(objects)
    screen.say(*(terminal_line(f"there is no group {one}") for one in missing))
    return 1 if missing else 0


def _details_object(
    found: FailureGroupDetails,
    entries: list[TimelineEntry],
    advice: list[Advice],
    compared: Comparison | None,
) -> dict[str, Any]:
    shown = asdict(found)
    shown |= {"group": group_object(found.group), "series": asdict(found.series)}
    shown["merged"] = [group_object(row) for row in found.merged]
    shown["advice"] = [asdict(one) for one in advice]
    shown["timeline"] = [asdict(entry) for entry in entries]
    return shown | ({} if compared is None else {"comparison": asdict(compared)})


def _page(found: FailureGroupDetails, advice: list[Advice], now: datetime) -> list[str]:
    group = found.group
    state = f"{group.state} for {ago(group.state_at, now).removesuffix(' ago')}"
    if group.state_by:
        state += f", by {group.state_by}"
    left = f"{_capped(group.records, COUNTED)} poison records"
    if group.in_dead_queues:
        left += f", {_capped(group.in_dead_queues, COUNTED)} in dead queues"
    releases = group.first_release and f"{group.first_release} to {group.last_release}"
    pairs = [
        ("name", group.name),
        ("cause", group.exception),
        ("place", group.frame),
        ("reason", FailureReason.read(group.reason).name.lower()),
        ("state", state),
        ("muted", _mute(group, now)),
        ("resolved in", group.resolved_in),
        ("owner", group.owner),
        ("ticket", group.ticket),
        ("failures", f"{group.failures:,}, {_times(group.first_failed_at, group.last_failed_at)}"),
        ("deaths", f"{group.deaths:,}" if group.deaths else ""),
        ("dead now", left),
        ("halts", _streams(found)),
        ("releases", releases),
        ("merged in", ", ".join(one.fingerprint for one in found.merged)),
    ]
    lines = [terminal_line(f"group {group.fingerprint}")]
    lines += [terminal_line(f"  {name + ':':<12} {value}") for name, value in pairs if value]
    for key in found.tags:
        tags = ", ".join(f"{one.value} ({one.failures:,})" for one in key.values)
        others = f"{', ' if tags else ''}others ({key.others:,})" if key.others else ""
        shown = "[redacted]" if key.is_hidden else f"{tags}{others}"
        lines.append(terminal_line(f"  {'tag:':<12} {key.key}: {shown}"))
    lines += [terminal_line(f"  {'advice:':<12} {one.text}") for one in advice]
    if group.error:
        lines += ["", "last error", *terminal_paragraph(group.error, indent="  ", limit=_TEXT)]
    return lines


def _times(first: datetime, last: datetime) -> str:
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S %Z}"


def _mute(group: FailureGroupRow, now: datetime) -> str:
    if group.state != GroupState.MUTED:
        return ""
    ends = []
    if group.muted_until is not None:
        ends.append(f"until {group.muted_until:%Y-%m-%d %H:%M %Z}, {ago(group.muted_until, now)}")
    if group.muted_until_failures is not None:
        ends.append(f"until {group.muted_until_failures:,} failures")
    return " or ".join(ends) or "until it is reopened"


def _streams(found: FailureGroupDetails) -> str:
    if not found.group.halted:
        return ""
    names = ", ".join(f"{one.stream} of {one.queue}" for one in found.streams)
    return f"{_capped(found.group.halted, STREAMS_COUNTED)}: {names}"


def _comparison_lines(compared: Comparison | None) -> list[str]:
    if compared is None:
        return []
    lines = ["", f"shared by all {compared.sampled:,} compared"]
    lines += [
        terminal_line(f"  {one.source} {one.path} = {one.values[0][0]}") for one in compared.shared
    ]
    lines += ["", "different"]
    for one in compared.varying:
        values = ", ".join(f"{value} ({n:,})" for value, n in one.values)
        more = f" and {one.distinct - len(one.values):,} more"
        rest = more if one.distinct > len(one.values) else ""
        lines.append(terminal_line(f"  {one.source} {one.path}: {values}{rest}"))
    for count, text in (
        (len(compared.hidden), "paths are hidden"),
        (compared.too_large, "messages are too large to compare"),
        (compared.damaged, "payloads cannot be decoded"),
    ):
        lines += [f"  {count:,} {text}"] if count else []
    return lines


def _timeline_lines(entries: Iterable[TimelineEntry], now: datetime) -> list[str]:
    lines = ["", "timeline (newest first)"]
    for entry in entries:
        lines += _entry_lines(entry, now, "  ")
        for reply in entry.replies:
            lines += _entry_lines(reply, now, "    ")
    return lines if len(lines) > 2 else []


def _entry_lines(entry: TimelineEntry, now: datetime, indent: str) -> list[str]:
    by = f" by {entry.by}" if entry.by else ""
    if entry.kind == "note":
        head = terminal_line(f"{indent}{ago(entry.at, now)} note {entry.event_id}{by}")
        return [head, *terminal_paragraph(entry.text, indent=f"{indent}  ", limit=_TEXT)]
    what = _what(entry)
    why = f": {entry.text}" if entry.text and entry.kind != "release" else ""
    return [terminal_line(f"{indent}{ago(entry.at, now)} {what}{by}{why}")]


def _what(entry: TimelineEntry) -> str:
    detail = entry.detail
    if entry.kind == "release":
        return f"release {entry.text} began: {detail.get('failures', 0):,} failures in it"
    if entry.kind == "state":
        ends = [f" {key} {detail[key]}" for key in ("until", "release") if key in detail]
        if "grows_by" in detail:
            ends.append(f" until it fails {detail['grows_by']:,} times more")
        return f"{detail.get('was', '')} → {detail.get('state', '')}{','.join(ends)}"
    if entry.entry_id is not None:
        return f"{entry.kind} of {entry.messages:,}{_outcomes(entry.outcomes)}"
    shown = ", ".join(f"{key} {_value(value)}" for key, value in detail.items() if value)
    return f"{entry.kind} {shown}".rstrip()


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _outcomes(outcomes: Outcomes | None) -> str:
    if outcomes is None:
        return ""
    named = (
        (outcomes.succeeded, "succeeded"),
        (outcomes.died_same, "died again of the same"),
        (outcomes.died_other, "died of another cause"),
        (outcomes.removed, "removed"),
        (outcomes.open, "open"),
    )
    shown = ", ".join(f"{count:,} {name}" for count, name in named if count)
    return f" ({shown})" if shown else ""


def _acknowledge(screen: Screen, options: dict[str, Any]) -> int:
    groups = options["fingerprints"]
    return _do(screen, options, "acknowledged", lambda about: acknowledge_group(groups, **about))


def _mute_groups(screen: Screen, options: dict[str, Any]) -> int:
    until = options["until"]
    if until is not None and options["duration"] is not None:
        raise usage("--for and --until contradict each other: use one of them")
    given = {
        "until": None if until is None else moment("until", until, options),
        "duration": options["duration"],
        "grows_by": options["grows_by"],
    }
    _ask(screen, "Mute", options)
    groups = options["fingerprints"]
    return _do(screen, options, "muted", lambda about: mute_group(groups, **given, **about))


def _resolve(screen: Screen, options: dict[str, Any]) -> int:
    _ask(screen, "Resolve", options)
    groups, release = options["fingerprints"], options["in_release"] or ""
    return _do(
        screen, options, "resolved",
        lambda about: resolve_group(groups, in_release=release, **about),
    )  # fmt: skip


def _reopen(screen: Screen, options: dict[str, Any]) -> int:
    groups = options["fingerprints"]
    return _do(screen, options, "reopened", lambda about: reopen_group(groups, **about))


def _assign(screen: Screen, options: dict[str, Any]) -> int:
    groups, owner = options["fingerprints"], options["owner"]
    if bool(owner) == options["nobody"]:
        raise usage("group assign: --owner USER or --nobody")
    return _do(
        screen, options, "assigned", lambda about: assign_group(groups, owner or "", **about)
    )


def _ticket(screen: Screen, options: dict[str, Any]) -> int:
    groups, url = options["fingerprints"], options["url"]
    if bool(url) == options["no_ticket"]:
        raise usage("group ticket: --url URL or --no-ticket")
    word = "linked" if url else "unlinked"
    return _do(screen, options, word, lambda about: link_ticket(groups, url or "", **about))


def _note(screen: Screen, options: dict[str, Any]) -> int:
    groups, text = options["fingerprints"], options["text"]
    if len(groups) != 1:
        raise usage("group note: one group")
    if text is None:
        raise usage("group note: --text TEXT")
    answers = options["answers"]
    return _do(
        screen, options, "wrote a note on",
        lambda about: write_note(groups[0], text, answers=answers, **about),
    )  # fmt: skip


def _merge(screen: Screen, options: dict[str, Any]) -> int:
    main, *others = options["fingerprints"]
    if not others:
        raise usage("group merge: the main group, and at least one to show in it")
    _ask(screen, f"Show in {main}", {**options, "fingerprints": others})
    return _do(screen, options, "merged", lambda about: merge_groups(main, others, **about))


def _split(screen: Screen, options: dict[str, Any]) -> int:
    _ask(screen, "Split off", options)
    groups = options["fingerprints"]
    return _do(screen, options, "split off", lambda about: split_group(groups, **about))


def _ask(screen: Screen, verb: str, options: dict[str, Any]) -> None:
    """Ask before an act that makes groups quiet, or moves them."""
    if options["dry_run"]:
        return
    groups = list(dict.fromkeys(options["fingerprints"]))
    shown = groups[0] if len(groups) == 1 else f"{len(groups):,} groups"
    screen.confirm(terminal_line(f"{verb}: {shown}?"), yes=options["yes"])


def _do(
    screen: Screen,
    options: dict[str, Any],
    word: str,
    act: Callable[[dict[str, Any]], GroupResult],
) -> int:
    """Do an act and report it; a dry run does it and takes it back."""
    using = alias(options)
    about = {"by": person(options), "why": options["why"], "using": using}
    try:
        if options["dry_run"]:
            with transaction.atomic(using=using):
                result = act(about)
                transaction.set_rollback(True, using=using)
        else:
            result = act(about)
    except ValueError as error:
        raise usage(str(error)) from None
    if screen.as_json:
        screen.json(_result_object(result, options))
    else:
        screen.lines(_result_lines(result, word, dry_run=options["dry_run"]))
    return 0 if result.done and not (result.refused or result.missing) else 1


def _result_object(result: GroupResult, options: dict[str, Any]) -> dict[str, Any]:
    dry_run = options["dry_run"]
    return {
        "act": options["action"],
        "dry_run": dry_run,
        "done": result.done,
        "missing": result.missing,
        "refused": result.refused,
        "note": None if dry_run else result.note_id,
        "audit_entry": None if dry_run else result.entry_id or None,
    }


def _result_lines(result: GroupResult, word: str, *, dry_run: bool) -> list[str]:
    lines = [f"{word} {one}" for one in result.done]
    if dry_run:
        lines = [f"{one} would be done; nothing was changed" for one in result.done]
    lines += [f"{one}: refused: {reason}" for one, reason in result.refused.items()]
    lines += [f"there is no group {one}" for one in result.missing]
    return [terminal_line(line) for line in lines]


_ACTIONS: dict[str, Callable[[Screen, dict[str, Any]], int]] = {
    "show": _show,
    "ack": _acknowledge,
    "mute": _mute_groups,
    "resolve": _resolve,
    "reopen": _reopen,
    "assign": _assign,
    "ticket": _ticket,
    "note": _note,
    "merge": _merge,
    "split": _split,
}
