"""The rows of declared schedules: created by `migrate`, marked when the code no longer has them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps as installed
from django.apps.registry import Apps
from django.db import IntegrityError, router
from django.db.transaction import atomic

from ..lifecycle.transaction import Transaction, in_transaction
from ..logs import event
from ..models import Schedule
from .declarations import Declaration, DeclaredSchedules, read_declarations
from .messages import CannotFire, check


@dataclass(frozen=True)
class RowChanges:
    """The names of the schedules whose rows were changed; `changed` has the fields of each."""

    created: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    #: No longer declared: they stop.
    orphaned: list[str] = field(default_factory=list)
    #: Declared again: they continue.
    restored: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.orphaned or self.restored)


def create_declared_schedules(
    *, using: str, apps: Apps = installed, **kwargs: Any
) -> RowChanges | None:
    """
    Create missing rows of declared schedules, and mark those that are no longer declared.

    `migrate` passes the state of the apps at its end; `flush` passes none. Rows that exist keep
    their values.
    """
    if not router.allow_migrate_model(using, Schedule) or not _has_table(apps):
        return None
    declared = read_declarations()
    for item in declared.every:
        if item.problem:
            raise ValueError(f"{item.where}: {item.problem}")
    return in_transaction(lambda tx: sync_rows(tx, declared, overwrite=False), using=using)


def sync_rows(tx: Transaction, declared: DeclaredSchedules, *, overwrite: bool) -> RowChanges:
    """
    Create missing rows, mark orphans, and restore those that are declared again.

    `overwrite`: also give existing rows the values of their declarations. Only rows that change are
    locked: whoever has another one open makes no `migrate` wait.
    """
    changes = RowChanges()
    rows = {row.name: row for row in Schedule.objects.using(tx.using)}
    for name, declaration in declared.valid.items():
        row = rows.get(name)
        if row is None:
            if _create(tx, declaration):
                changes.created.append(name)
        elif _is_behind(row, declaration, overwrite=overwrite):
            _update(tx, row.pk, declaration, changes, overwrite=overwrite)
    # A module that cannot be imported may declare schedules: then none counts as gone.
    if not declared.unreadable:
        for row in rows.values():
            if row.is_declared and row.name not in declared.names and row.orphaned_at is None:
                _orphan(tx, row.pk, changes)
    _log(changes)
    return changes


def find_unsendable(declared: DeclaredSchedules, *, using: str) -> dict[str, str]:
    """Return the declared schedules whose rows would send nothing now, each with the reason."""
    found: dict[str, str] = {}
    rows = Schedule.objects.using(using).filter(paused=False, orphaned_at=None)
    for row in rows.declared().order_by("name"):
        if row.name in declared.valid:
            try:
                check(row, using=using)
            except CannotFire as error:
                found[row.name] = str(error)
    return found


def _create(tx: Transaction, declaration: Declaration) -> bool:
    """Create a row; return False if another process was faster."""
    row = declaration.row()
    row.declaration = declaration.digest
    row.created_at = tx.time()
    row.plan(tx.time())
    try:
        with atomic(using=tx.using):
            row.save(using=tx.using, force_insert=True)
    except IntegrityError:
        return False
    return True


def _is_behind(row: Schedule, declaration: Declaration, *, overwrite: bool) -> bool:
    if row.orphaned_at is not None:
        return True
    is_old = row.declaration != declaration.digest
    return overwrite and (is_old or bool(declaration.differences(row)))


def _lock(tx: Transaction, pk: int) -> Schedule | None:
    return Schedule.objects.using(tx.using).select_for_update().filter(pk=pk).first()


def _orphan(tx: Transaction, pk: int, changes: RowChanges) -> None:
    row = _lock(tx, pk)
    if row is None or row.orphaned_at is not None:
        return
    row.orphaned_at = tx.time()
    row.set_next(None)
    row.save(using=tx.using, update_fields=["orphaned_at", "next_at", "due_at"])
    changes.orphaned.append(row.name)


def _update(
    tx: Transaction, pk: int, declaration: Declaration, changes: RowChanges, *, overwrite: bool
) -> None:
    row = _lock(tx, pk)
    if row is None:
        return
    is_restored = row.orphaned_at is not None
    differences = declaration.differences(row) if overwrite else []
    wanted: Mapping[str, Any] = declaration.row().definition()
    for name in differences:
        setattr(row, name, wanted[name])
    if overwrite:
        row.declaration = declaration.digest
    row.orphaned_at = None
    if is_restored:
        row.plan(tx.time())
        changes.restored.append(row.name)
    elif set(differences) & set(Schedule.TIMING):
        row.plan(tx.time(), edited=differences)
    if differences:
        row.due_at = row.next_at if row.failing_since is not None else row.due_at
        changes.changed[row.name] = differences
    row.save(using=tx.using)


def _log(changes: RowChanges) -> None:
    for name in changes.created:
        event(logging.INFO, "schedule_created", "created schedule {schedule}", schedule=name)
    for name in changes.orphaned:
        event(
            logging.WARNING,
            "schedule_orphaned",
            "schedule {schedule} is no longer declared: it stops",
            schedule=name,
        )
    for name in changes.restored:
        event(
            logging.INFO,
            "schedule_restored",
            "schedule {schedule} is declared again: it continues",
            schedule=name,
        )


def _has_table(apps: Apps) -> bool:
    """Return whether the table has the current schema: after a migration back it has not."""
    try:
        found = apps.get_model("deadletter", "Schedule")
    except LookupError:
        return False
    return {field.name for field in found._meta.fields} == {f.name for f in Schedule._meta.fields}
