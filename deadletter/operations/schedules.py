"""Schedules: create, change, pause, resume, run, delete and synchronise them; all is audited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils.translation import gettext

from .. import clock, schedules
from ..durations import as_text
from ..exceptions import UnknownSchedule
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, RunOutcome, Schedule, ScheduleRun, primary_alias
from ..payload import accept
from ..schedules import CannotFire, RowChanges
from . import audit

#: The ways to say when; giving one of them takes the place of the others.
_WHEN: Mapping[str, Any] = {"cron": "", "interval": None, "at": None}
#: Fields whose values may be secret: the audit entry names the change only.
_BODIES = ("payload", "headers")


@dataclass(frozen=True)
class ScheduleDifference:
    """How a row and its declaration differ."""

    name: str
    #: Where it is declared; "": nowhere.
    where: str
    #: Fields with other values.
    fields: list[str] = field(default_factory=list)
    is_missing: bool = False
    is_orphaned: bool = False
    #: The declaration has changed since the row was made; otherwise the row was edited.
    is_declaration_new: bool = False


def list_schedules(*, using: str | None = None) -> QuerySet[Schedule]:
    """Return the schedules by name, without payloads and headers."""
    return Schedule.objects.using(primary_alias(using)).without_bodies().order_by("name")


def get_schedule(name: str, *, using: str | None = None) -> Schedule:
    """Return a schedule by its name. Raises: UnknownSchedule."""
    found = Schedule.objects.using(primary_alias(using)).filter(name=name).first()
    if found is None:
        raise UnknownSchedule(name)
    return found


def list_runs(schedule: Schedule, *, using: str | None = None) -> QuerySet[ScheduleRun]:
    """Return the runs of a schedule that are kept, the latest first."""
    rows = ScheduleRun.objects.using(primary_alias(using))
    return rows.filter(schedule=schedule).order_by("-id")


def next_runs(
    schedule: Schedule | str,
    n: int = 10,
    *,
    after: datetime | None = None,
    using: str | None = None,
) -> list[datetime]:
    """
    Return the next `n` moments of a schedule in UTC, without jitter; of an unsaved row, too.

    Without `after`: from the next moment that is stored; of a row that has none (unsaved, paused),
    from now. Raises: UnknownSchedule, TimetableError.
    """
    if isinstance(schedule, str):
        schedule = get_schedule(schedule, using=using)
    if schedule.max_runs is not None:
        n = min(n, max(schedule.max_runs - schedule.run_count, 0))
    if after is None and schedule.next_at is not None:
        after = schedule.next_at - timedelta(microseconds=1)
    if after is None or schedule.created_at is None:
        now = clock.now(primary_alias(using))
        after = after or max(now, schedule.last_at or now)
        # An interval that is not stored yet begins now.
        schedule.created_at = schedule.created_at or now
    return schedule.timetable().first(n, after)


def validate_schedule(schedule: Schedule, *, using: str | None = None) -> None:
    """
    Check a row before it is saved: its fields, its times, and what it would send.

    Raises: ValidationError naming the fields.
    """
    alias = primary_alias(using)
    schedule.full_clean(exclude=["created_at"], validate_unique=False, validate_constraints=False)
    others = Schedule.objects.using(alias).filter(name=schedule.name).exclude(pk=schedule.pk)
    if others.exists():
        raise ValidationError({"name": [gettext("There is another schedule of this name.")]})
    try:
        schedules.check(schedule, using=alias)
    except CannotFire as error:
        raise ValidationError({error.field: [error.problem]}) from None


def create_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None, **options: Any
) -> Schedule:
    """
    Create a schedule. The options are those of `@schedule`: message or task, cron, interval, …

    Raises: ValidationError naming the fields, ValueError for options that do not exist.
    """
    alias = primary_alias(using)
    fields = schedules.read_options(options)

    def work(tx: Transaction) -> Schedule:
        row = Schedule(name=name, **fields)
        row.created_at = tx.time()
        validate_schedule(row, using=alias)
        row.plan(tx.time())
        row.save(using=alias, force_insert=True)
        given = {key: _shown(key, getattr(row, key)) for key in fields}
        _record(tx, Act.EDIT_SCHEDULE, row, by, why, {"created": "True", **given})
        return row

    return in_transaction(work, using=alias)


def set_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None, **options: Any
) -> Schedule:
    """
    Change a schedule; the audit entry keeps old and new values, except of payload and headers.

    Other moments begin now: those that passed are not missed. A schedule that could not fire is
    tried again at once. Raises: UnknownSchedule, ValidationError, ValueError.
    """
    fields = schedules.read_options(options)
    given = [key for key in _WHEN if fields.get(key)]
    if len(given) == 1:
        fields = {**_WHEN, **fields}

    def work(tx: Transaction, row: Schedule) -> None:
        before = {key: getattr(row, key) for key in fields}
        for key, value in fields.items():
            setattr(row, key, value)
        validate_schedule(row, using=tx.using)
        changes = {
            key: f"{_shown(key, old)} → {_shown(key, getattr(row, key))}"
            for key, old in before.items()
            if old != getattr(row, key)
        }
        if not changes:
            return
        if {*changes} & {*Schedule.TIMING, "paused"}:
            # A schedule that is resumed has no next moment.
            row.plan(tx.time(), edited=changes)
        if row.failing_since is not None:
            row.failing_since, row.last_error = None, ""
            row.due_at = row.next_at
        row.save(using=tx.using)
        entry = _record(tx, Act.EDIT_SCHEDULE, row, by, why, changes)
        if "payload" in changes:
            limit = 2**62
            texts = [accept(value, limit=limit) for value in (before["payload"], row.payload)]
            audit.keep_edit(tx, entry, before=texts[0], after=texts[1])

    return _change(name, work, using)


def delete_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> None:
    """
    Delete a schedule and its runs; messages that were sent stay.

    One that is still declared is created again by the next `migrate`; pause it instead.
    """

    def work(tx: Transaction, row: Schedule) -> None:
        values = {key: _shown(key, value) for key, value in row.definition().items()}
        _record(tx, Act.EDIT_SCHEDULE, row, by, why, {"deleted": "True", **values})
        row.delete(using=tx.using)

    _change(name, work, using)


def pause_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> Schedule:
    """Stop a schedule until it is resumed. The moments until then are not missed: none is due."""
    return _switch(name, Act.PAUSE_SCHEDULE, by, why, using)


def resume_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> Schedule:
    """Let a paused schedule go on with its next moment from now."""
    return _switch(name, Act.RESUME_SCHEDULE, by, why, using)


def run_schedule(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> ScheduleRun:
    """
    Send the message of a schedule now, also of a paused one, and return the run.

    It consumes no moment, and no earlier message hinders it, except one that has its key: then the
    outcome is "skipped". Raises: UnknownSchedule; CannotFire with nothing stored.
    """
    runs: list[ScheduleRun] = []

    def work(tx: Transaction, row: Schedule) -> None:
        run = ScheduleRun(schedule=row, fired_at=tx.time(), by=audit.person(by))
        stored = schedules.send(tx, row)
        if stored.is_new:
            run.outcome, run.message_id = RunOutcome.SENT, stored.message.pk
        else:
            run.outcome, run.why = RunOutcome.SKIPPED, f"message {stored.message.pk} has the key"
        run.save(using=tx.using)
        schedules.trim_runs(tx, row)
        entry = _record(tx, Act.RUN_SCHEDULE, row, by, why, {"outcome": run.outcome})
        if run.message_id is not None:
            audit.add(tx, entry, touched=[run.message_id])
        runs.append(run)

    _change(name, work, using)
    return runs[-1]


def sync_schedules(*, by: str | None = None, why: str = "", using: str | None = None) -> RowChanges:
    """
    Give the rows of declared schedules the values of their declarations, and create missing ones.

    Schedules that are no longer declared stop; those that are declared again continue. Schedules
    made in the admin are not touched, unless one has the name of a declaration.
    Raises: ValueError if a declaration is invalid.
    """
    declared = schedules.read_declarations()
    for item in declared.every:
        if item.problem:
            raise ValueError(f"{item.where}: {item.problem}")

    def work(tx: Transaction) -> RowChanges:
        changes = schedules.sync_rows(tx, declared, overwrite=True)
        if changes:
            detail = {
                "created": changes.created,
                "changed": changes.changed,
                "orphaned": changes.orphaned,
                "restored": changes.restored,
            }
            shown = {key: value for key, value in detail.items() if value}
            entry = audit.record(
                tx, audit.NewEntry(act=Act.SYNC_SCHEDULES, by=by, why=why, detail=shown)
            )
            names = {*changes.created, *changes.changed, *changes.orphaned, *changes.restored}
            audit.add(tx, entry, done=len(names))
        return changes

    return in_transaction(work, using=primary_alias(using))


def compare_schedules(*, using: str | None = None) -> list[ScheduleDifference]:
    """Return the declared schedules whose rows differ, are missing, or are no longer declared."""
    rows = {row.name: row for row in Schedule.objects.using(primary_alias(using))}
    declared = schedules.read_declarations()
    found: list[ScheduleDifference] = []
    for name, declaration in declared.valid.items():
        row = rows.get(name)
        if row is None:
            found.append(ScheduleDifference(name, declaration.where, is_missing=True))
        elif fields := declaration.differences(row):
            is_new = row.declaration != declaration.digest
            found.append(
                ScheduleDifference(name, declaration.where, fields, is_declaration_new=is_new)
            )
    for row in rows.values():
        is_gone = row.is_declared and row.name not in declared.names and not declared.unreadable
        if row.orphaned_at is not None or is_gone:
            found.append(ScheduleDifference(row.name, "", is_orphaned=True))
    return found


def _change(
    name: str, work: Callable[[Transaction, Schedule], object], using: str | None
) -> Schedule:
    """Do some work with the locked row of a schedule."""

    def locked(tx: Transaction) -> Schedule:
        row = Schedule.objects.using(tx.using).select_for_update().filter(name=name).first()
        if row is None:
            raise UnknownSchedule(name)
        work(tx, row)
        return row

    return in_transaction(locked, using=primary_alias(using))


def _switch(name: str, act: Act, by: str | None, why: str, using: str | None) -> Schedule:
    def work(tx: Transaction, row: Schedule) -> None:
        is_paused = act == Act.PAUSE_SCHEDULE
        if row.paused == is_paused:
            return
        row.paused = is_paused
        row.plan(tx.time())
        fields = ["paused", "next_at", "due_at"]
        if not is_paused:
            # Its next moment is the next attempt: until then it is not known to fail.
            row.failing_since, row.last_error = None, ""
            fields += ["failing_since", "last_error"]
        row.save(using=tx.using, update_fields=fields)
        _record(tx, act, row, by, why, {})

    return _change(name, work, using)


def _record(
    tx: Transaction,
    act: Act,
    row: Schedule,
    by: str | None,
    why: str,
    detail: Mapping[str, Any],
) -> Any:
    new = audit.NewEntry(
        act=act, by=by, why=why, selection={"schedule": row.name}, detail=dict(detail)
    )
    entry = audit.record(tx, new)
    audit.add(tx, entry, done=1)
    return entry


def _shown(key: str, value: Any) -> str:
    if key in _BODIES:
        return gettext("none") if value is None else "…"
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return as_text(value) if isinstance(value, timedelta) else str(value)
