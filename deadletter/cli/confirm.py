"""manage.py deadletter retry, remove, purge, release, poison: preview, ask, do, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import clock
from ..models import Message, PoisonRecord
from ..operations import PoisonFilter, Total, matching_queues, preview
from ..operations.preview import SAMPLE
from ..patterns import is_pattern
from ..text import terminal_line
from .args import alias, matched
from .output import Progress, Screen
from .rows import message_table, poison_table
from .selecting import find_buried, find_messages, find_poison, why_no_message, why_no_poison

#: Ids and reasons printed one by one; the rest is counted.
_SHOWN = 20


@dataclass
class Report:
    """What an act did, for people and for scripts."""

    act: str
    #: In the past tense: "retried", "removed".
    done_word: str
    matched: int = 0
    done: int = 0
    ids: list[int] | None = None
    missing: list[str] = field(default_factory=list)
    missing_ids: list[int] = field(default_factory=list)
    refused: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    entry: int = 0
    dry_run: bool = False
    #: How a payload would change, line by line and redacted; None where it stays.
    difference: Sequence[str] | None = None

    def show(self, screen: Screen) -> int:
        """Print it; return the exit code: 1 when nothing matched or something was refused."""
        if screen.as_json:
            screen.json(self._object())
        else:
            screen.lines(self._lines())
        complete = not self.refused and not self.missing_ids
        return 0 if complete and (self.matched if self.dry_run else self.done) else 1

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {"act": self.act, "dry_run": self.dry_run, "matched": self.matched}
        found |= {"done": self.done, "missing": self.missing_ids, "refused": self.refused}
        found["reasons"] = {str(id): text for id, text in self.reasons.items()}
        if self.ids is not None:
            found["ids"] = self.ids
        if self.difference is not None:
            found["difference"] = list(self.difference)
        return found | {"audit_entry": self.entry or None}

    def _lines(self) -> list[str]:
        if self.dry_run:
            lines = [f"{self.matched:,} would be {self.done_word}; nothing was changed"]
        else:
            lines = [f"{self.done_word} {self.done:,} of {self.matched:,}"]
        lines += [terminal_line(text) for text in self.missing[:_SHOWN]]
        if len(self.missing) > _SHOWN:
            lines.append(f"and {len(self.missing) - _SHOWN:,} more that are not there")
        lines += [
            f"{id}: refused: {terminal_line(text)}" for id, text in list(self.reasons.items())[:20]
        ]
        if self.refused > _SHOWN:
            lines.append(f"refused in all: {self.refused:,}")
        if self.entry:
            lines.append(f"audit entry {self.entry}")
        return lines


@dataclass(frozen=True)
class Plan:
    """One act, as the sub-commands describe it."""

    act: str
    done_word: str
    #: "Retry 3 poison records at 5 per second?" is built from it: verb, number, thing, this.
    verb: str
    manner: str = ""
    #: How a payload would change, line by line and redacted; None where it stays.
    difference: Sequence[str] | None = None


def on_filter(
    screen: Screen,
    options: dict[str, Any],
    plan: Plan,
    wanted: PoisonFilter,
    work: Callable[[PoisonFilter, Progress], Total],
) -> int:
    """Show what matches, ask, and do exactly that: what dies meanwhile is not touched."""
    seen = preview(wanted, limit=options["limit"], using=alias(options))
    report = Report(plan.act, plan.done_word, matched=seen.count, dry_run=options["dry_run"])
    if not seen.count:
        screen.say("nothing matches")
        return report.show(screen) if screen.as_json else 1
    if seen.wanted.queues is not None:
        screen.say(matched(seen.wanted.queues, seen.wanted.queue or ""))
    asks = not options["yes"] and not options["dry_run"]
    if asks or (options["dry_run"] and not screen.as_json):
        _sample(screen, seen.sample, options)
        if seen.count > len(seen.sample):
            screen.say(f"… and {seen.count - len(seen.sample):,} more")
        if seen.halting:
            screen.say(f"{seen.halting:,} of them halt a stream, which will go on")
    if options["dry_run"]:
        return report.show(screen)
    screen.confirm(_question(plan, seen.count, "poison record"), yes=options["yes"])
    total = work(seen.wanted, screen.progress(seen.count))
    report.done, report.refused, report.reasons = total.done, total.refused, total.reasons
    report.entry = total.entry_id
    return report.show(screen)


def on_messages(
    screen: Screen,
    options: dict[str, Any],
    plan: Plan,
    rows: Any,
    work: Callable[[Progress], Total],
) -> int:
    """Show which messages in a queue match, ask, and do it."""
    count = rows.order_by().values("pk")[: options["limit"]].count()
    report = Report(plan.act, plan.done_word, matched=count, dry_run=options["dry_run"])
    if not count:
        screen.say("nothing matches")
        return report.show(screen) if screen.as_json else 1
    if options["queue"] is not None and is_pattern(options["queue"]):
        found = matching_queues(options["queue"], using=alias(options))
        screen.say(matched(found, options["queue"]))
    if not options["yes"] and not (options["dry_run"] and screen.as_json):
        sample = rows.with_error_start()[: min(SAMPLE, count)]
        _sample(screen, list(sample), options)
    if not options["dry_run"]:
        screen.confirm(_question(plan, count, "message"), yes=options["yes"])
        total = work(screen.progress(count))
        report.done, report.refused, report.reasons = total.done, total.refused, total.reasons
        report.entry = total.entry_id
    return report.show(screen)


def on_ids(
    screen: Screen,
    options: dict[str, Any],
    plan: Plan,
    ids: Sequence[int],
    work: Callable[[list[int]], tuple[list[int], list[int], dict[int, str], int]],
    *,
    messages: bool,
    dead_too: bool = False,
) -> int:
    """Act on named poison records or, with `messages`, on messages in a queue."""
    found: Sequence[PoisonRecord | Message]
    found = find_messages(ids, options) if messages else find_poison(list(ids), options)
    there = {row.pk for row in found}
    if dead_too:
        dead = PoisonRecord.objects.using(alias(options)).without_bodies()
        records = list(dead.filter(message_id__in=list(ids)[:1_000]))
        found = [*records, *found]
        there |= {record.message_id for record in records}
        buried = find_buried((id for id in list(ids)[:1_000] if id not in there), options)
        found = [*found, *buried.values()]
        there |= buried.keys()
    report = Report(plan.act, plan.done_word, matched=len(there), dry_run=options["dry_run"])
    report.difference = plan.difference
    absent = [id for id in ids if id not in there]
    if there and not options["yes"] and not screen.as_json:
        _sample(screen, found[:_SHOWN], options)
        target = screen if options["dry_run"] else screen.aside()
        target.lines([terminal_line(line) for line in plan.difference or ()])
    if options["dry_run"] or not there:
        report.ids, report.missing_ids = sorted(there), absent
    else:
        things = "message" if messages else "poison record"
        screen.confirm(_question(plan, len(there), things), yes=options["yes"])
        done, missing, refused, report.entry = work(list(ids))
        report.ids, report.missing_ids, report.done = done, missing, len(done)
        report.refused, report.reasons = len(refused), refused
    explain = why_no_message if messages else why_no_poison
    report.missing = [explain(id, options) for id in report.missing_ids[: _SHOWN + 1]]
    report.missing += [""] * (len(report.missing_ids) - len(report.missing))
    return report.show(screen)


def _question(plan: Plan, count: int, thing: str) -> str:
    manner = f" {plan.manner}" if plan.manner else ""
    return terminal_line(f"{plan.verb} {count:,} {thing}{'s' if count != 1 else ''}{manner}?")


def _sample(
    screen: Screen, rows: Sequence[PoisonRecord | Message], options: dict[str, Any]
) -> None:
    now = clock.now(alias(options))
    records = [row for row in rows if isinstance(row, PoisonRecord)]
    messages = [row for row in rows if isinstance(row, Message)]
    # Before a question the sample belongs to the question; a dry run has no other result.
    target = screen if options["dry_run"] else screen.aside()
    if records:
        poison_table(target, records, now)
    if messages:
        message_table(target, messages, now)
