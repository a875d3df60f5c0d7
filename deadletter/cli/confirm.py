"""The steps of every act on the command line: show a sample, ask, act, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import clock
from ..lifecycle.values import ActResult
from ..models import Message, PoisonRecord
from ..operations import PoisonFilter, Total, matching_queues, preview
from ..operations.poison_records import SAMPLE
from ..patterns import is_pattern
from ..text import terminal_line
from .args import alias, matched
from .lookup import find_in_dead_queues, find_messages, find_poison, why_no_message, why_no_poison
from .output import ProgressLine, Screen
from .rows import message_table, poison_table

#: Ids and reasons printed one by one; the rest is counted.
_SHOWN = 20


@dataclass(frozen=True)
class ActPlan:
    """One act, as its sub-command describes it."""

    act: str
    #: In the past tense: "retried", "removed".
    done_word: str
    #: "Retry 3 poison records at 5 per second?" is built from verb, number, thing and manner.
    verb: str
    manner: str = ""
    #: How a payload would change, line by line and redacted; None if it stays.
    difference: Sequence[str] | None = None


@dataclass(kw_only=True)
class ActReport:
    """What an act did, as text or as JSON."""

    plan: ActPlan
    matched: int
    dry_run: bool
    total: Total = field(default_factory=Total)
    #: The ids that were done, and that were not found; only for an act on named ids.
    ids: list[int] | None = None
    missing_ids: list[int] = field(default_factory=list)
    #: Why each of the first missing ids was not found.
    missing: list[str] = field(default_factory=list)

    def show(self, screen: Screen) -> int:
        """Print the report; return the exit code: 1 if nothing matched or anything was refused."""
        if screen.as_json:
            screen.json(self._object())
        else:
            screen.lines(self._lines())
        complete = not self.total.refused and not self.missing_ids
        return 0 if complete and (self.matched if self.dry_run else self.total.done) else 1

    def _object(self) -> dict[str, Any]:
        total = self.total
        found: dict[str, Any] = {"act": self.plan.act, "dry_run": self.dry_run}
        found |= {"matched": self.matched, "done": total.done, "missing": self.missing_ids}
        found |= {"refused": total.refused}
        found["reasons"] = {str(id): text for id, text in total.reasons.items()}
        if self.ids is not None:
            found["ids"] = self.ids
            if self.plan.difference is not None:
                found["difference"] = list(self.plan.difference)
        return found | {"audit_entry": total.entry_id or None}

    def _lines(self) -> list[str]:
        total, done_word = self.total, self.plan.done_word
        if self.dry_run:
            lines = [f"{self.matched:,} would be {done_word}; nothing was changed"]
        else:
            lines = [f"{done_word} {total.done:,} of {self.matched:,}"]
        lines += [terminal_line(text) for text in self.missing[:_SHOWN]]
        if len(self.missing_ids) > _SHOWN:
            lines.append(f"and {len(self.missing_ids) - _SHOWN:,} more that are not there")
        reasons = list(total.reasons.items())[:_SHOWN]
        lines += [f"{id}: refused: {terminal_line(text)}" for id, text in reasons]
        if total.refused > _SHOWN:
            lines.append(f"refused in all: {total.refused:,}")
        if total.entry_id:
            lines.append(f"audit entry {total.entry_id}")
        return lines


def on_filter(
    screen: Screen,
    options: dict[str, Any],
    plan: ActPlan,
    wanted: PoisonFilter,
    work: Callable[[PoisonFilter, ProgressLine], Total],
) -> int:
    """Show the records that match, ask, and act on exactly these: later deaths do not match."""
    seen = preview(wanted, limit=options["limit"], using=alias(options))
    report = ActReport(plan=plan, matched=seen.count, dry_run=options["dry_run"])
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
    if not options["dry_run"]:
        screen.confirm(_question(plan, seen.count, "poison record"), yes=options["yes"])
        report.total = work(seen.wanted, screen.progress(seen.count))
    return report.show(screen)


def on_messages(
    screen: Screen,
    options: dict[str, Any],
    plan: ActPlan,
    rows: Any,
    work: Callable[[ProgressLine], Total],
) -> int:
    """Show the messages in a queue that match, ask, and act on them."""
    count = rows.order_by().values("pk")[: options["limit"]].count()
    report = ActReport(plan=plan, matched=count, dry_run=options["dry_run"])
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
        report.total = work(screen.progress(count))
    return report.show(screen)


def on_ids(
    screen: Screen,
    options: dict[str, Any],
    plan: ActPlan,
    ids: Sequence[int],
    work: Callable[[list[int]], ActResult],
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
        left = (id for id in list(ids)[:1_000] if id not in there)
        in_dead_queues = find_in_dead_queues(left, options)
        found = [*found, *in_dead_queues.values()]
        there |= in_dead_queues.keys()
    report = ActReport(plan=plan, matched=len(there), dry_run=options["dry_run"])
    if there and not options["yes"] and not screen.as_json:
        _sample(screen, found[:_SHOWN], options)
        target = screen if options["dry_run"] else screen.aside()
        target.lines([terminal_line(line) for line in plan.difference or ()])
    if options["dry_run"] or not there:
        report.ids = sorted(there)
        report.missing_ids = [id for id in ids if id not in there]
    else:
        thing = "message" if messages else "poison record"
        screen.confirm(_question(plan, len(there), thing), yes=options["yes"])
        result = work(list(ids))
        report.ids, report.missing_ids = result.done, result.missing
        report.total = Total(
            done=len(result.done),
            refused=len(result.refused),
            reasons=result.refused,
            missing=len(result.missing),
            entry_id=result.entry_id,
        )
    explain = why_no_message if messages else why_no_poison
    report.missing = [explain(id, options) for id in report.missing_ids[:_SHOWN]]
    return report.show(screen)


def _question(plan: ActPlan, count: int, thing: str) -> str:
    manner = f" {plan.manner}" if plan.manner else ""
    return terminal_line(f"{plan.verb} {count:,} {thing}{'s' if count != 1 else ''}{manner}?")


def _sample(
    screen: Screen, rows: Sequence[PoisonRecord | Message], options: dict[str, Any]
) -> None:
    now = clock.now(alias(options))
    records = [row for row in rows if isinstance(row, PoisonRecord)]
    messages = [row for row in rows if isinstance(row, Message)]
    # Before a question the sample is part of the question; of a dry run it is the result.
    target = screen if options["dry_run"] else screen.aside()
    if records:
        poison_table(target, records, now)
    if messages:
        message_table(target, messages, now)
