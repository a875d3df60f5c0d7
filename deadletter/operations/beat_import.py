"""Import of the periodic tasks of django-celery-beat as schedules; each is created once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError

from .. import clock, schedules
from ..models import Schedule, primary_alias
from ..schedules import celery_beat, describe_problem, handler_names
from ..schedules.celery_beat import BeatRow
from ..tasks import lookup
from ..text import short_repr
from .acts import Progress
from .schedules import create_schedule, validate_schedule

_WHY = "imported from django-celery-beat"


@dataclass
class BeatImport:
    """What became of the periodic tasks, by name."""

    imported: list[str] = field(default_factory=list)
    #: Schedules of these names are there already; with the fields in which they differ.
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    #: With the reason.
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.imported) + len(self.unchanged) + len(self.refused)


def import_celery_beat(
    mapping: Mapping[str, str] | None = None,
    *,
    queues: Mapping[str, str] | None = None,
    redis_priorities: bool = False,
    source: str | None = None,
    by: str | None = None,
    why: str = "",
    dry_run: bool = False,
    progress: Progress | None = None,
    using: str | None = None,
) -> BeatImport:
    """
    Create a schedule for each periodic task of django-celery-beat, under the same name.

    `mapping` gives the path of a task or the name of a message for names of Celery tasks; those
    that it does not have keep their name. `queues` does the same for queues. With
    `redis_priorities` the lowest number is the first, as with Redis; otherwise the highest, as with
    RabbitMQ. `source` is the alias of the database with the tables, which are only read;
    django-celery-beat need not be installed.

    A schedule that exists is never changed, so an import can be repeated. A periodic task that has
    no equal here is refused with the reason. Each schedule is created in a transaction of its own,
    with its entry in the audit trail.
    Raises: ValueError if the source has no such tables.
    """
    alias = primary_alias(using)
    rows = celery_beat.read_rows(source or alias)
    schedules.read_declarations()  # imports the modules of handlers
    names = {name for found in handler_names.values() for name in found}
    existing = {row.name: row for row in Schedule.objects.using(alias)}
    result = BeatImport()
    for row in rows:
        there = existing.get(row.name)
        try:
            options = _options(row, mapping or {}, names, queues or {}, redis_priorities, alias)
            if there is not None:
                result.unchanged[row.name] = _differences(row, options, there)
            elif dry_run:
                _validate(row.name, options, alias)
                result.imported.append(row.name)
            else:
                create_schedule(row.name, by=by, why=why or _WHY, using=alias, **options)
                result.imported.append(row.name)
        except IntegrityError:
            result.unchanged[row.name] = []  # created meanwhile
        except ValidationError as error:
            result.refused[row.name] = describe_problem(error)
        except ValueError as error:
            if there is not None:
                result.unchanged[row.name] = []
            else:
                result.refused[row.name] = str(error)
        if progress is not None:
            progress(result.rows)
    return result


def _options(
    row: BeatRow,
    mapping: Mapping[str, str],
    names: set[str],
    queues: Mapping[str, str],
    redis_priorities: bool,
    alias: str,
) -> dict[str, Any]:
    if reason := celery_beat.own_task(row):
        raise ValueError(f"{row.task} is Celery's own: {reason}")
    target = mapping.get(row.task, row.task)
    if lookup.find(target) is not None:
        found = {"task": target}
    elif target in names:
        found = {"message": target}
    else:
        raise ValueError(
            f"there is neither a task nor a handler {short_repr(target)}: write one, or map the "
            "name to one"
        )
    return celery_beat.as_options(
        row,
        target=found,
        queues=queues,
        first_is_low=redis_priorities,
        now=clock.now(alias),
    )


def _validate(name: str, options: dict[str, Any], alias: str) -> None:
    """Check what `create_schedule` checks. Raises: ValidationError."""
    row = Schedule(name=name, created_at=clock.now(alias), **schedules.read_options(options))
    validate_schedule(row, using=alias)


def _differences(row: BeatRow, options: dict[str, Any], there: Schedule) -> list[str]:
    """Return the fields in which a schedule differs from its periodic task, which may have run."""
    wanted = Schedule(name=row.name, **schedules.read_options(options)).definition()
    found = there.definition()
    runs_since = row.kind == "interval" and row.columns.get("last_run_at") is not None
    ignored = {"start"} if runs_since else set()
    return [key for key in wanted if wanted[key] != found[key] and key not in ignored]
