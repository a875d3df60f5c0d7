"""The tables of django-celery-beat, and the options of a schedule that a row of them gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django.db import connections
from django.utils.dateparse import parse_datetime

from ..text import short_repr
from .celery_crontab import as_cron

#: The tables, by the column of a periodic task that refers to them.
_TABLE = "django_celery_beat_periodictask"
_WHEN = {
    "crontab": "django_celery_beat_crontabschedule",
    "interval": "django_celery_beat_intervalschedule",
    "clocked": "django_celery_beat_clockedschedule",
    "solar": "django_celery_beat_solarschedule",
}
#: Tasks of Celery itself, and why they need no schedule.
_OWN = {
    "celery.backend_cleanup": "it deletes old results of Celery; workers delete those of deadletter"
}
_PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")
#: The largest priority of Celery that has an equal.
_PRIORITY = 100


@dataclass(frozen=True)
class BeatRow:
    """A periodic task with the row of its times. Columns of newer releases may be absent."""

    columns: Mapping[str, Any]
    #: "crontab", "interval", "clocked" or "solar"; "": none.
    kind: str
    when: Mapping[str, Any]
    #: Of times that the database stores without one.
    zone: tzinfo | None = UTC

    @property
    def name(self) -> str:
        return str(self.columns["name"])

    @property
    def task(self) -> str:
        return str(self.columns["task"])


def read_rows(using: str) -> list[BeatRow]:
    """Return the periodic tasks of a database by name. Raises: ValueError if it has no tables."""
    connection = connections[using]
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor))
    if _TABLE not in tables:
        raise ValueError(f"the database {using!r} has no table {_TABLE} of django-celery-beat")
    times = {
        kind: {row["id"]: row for row in _read(using, table)} if table in tables else {}
        for kind, table in _WHEN.items()
    }
    found = []
    for columns in sorted(_read(using, _TABLE), key=lambda row: str(row["name"])):
        kinds = [kind for kind in _WHEN if columns.get(f"{kind}_id") is not None]
        kind = kinds[0] if len(kinds) == 1 else ""
        when = times[kind].get(columns[f"{kind}_id"], {}) if kind else {}
        found.append(BeatRow(columns, kind, when, connection.timezone))
    return found


def as_options(
    row: BeatRow,
    *,
    target: Mapping[str, Any],
    queues: Mapping[str, str],
    first_is_low: bool,
    now: datetime,
) -> dict[str, Any]:
    """
    Return the options of a schedule with the same moments and the same message.

    `target` says what is sent: {"task": path} or {"message": name}. `first_is_low`: of two
    priorities the lower number is first, as with Redis.
    Raises: ValueError saying what deadletter has no equal for.
    """
    columns = row.columns
    options = {**target, **_content(row, is_task="task" in target), **_times(row, now)}
    # Celery sends whatever the earlier ones do, and what was missed once.
    options |= {"overlap": "allow", "missed": "once", "paused": not columns["enabled"]}
    if queue := columns.get("queue"):
        options["queue"] = queues.get(queue, queue)
    elif columns.get("exchange") or columns.get("routing_key"):
        raise ValueError("it is sent to an exchange or with a routing key: give it a queue")
    priority = columns.get("priority")
    if priority is not None:
        if priority > _PRIORITY:
            raise ValueError(f"priority {priority}: the largest one here is {_PRIORITY}")
        options["priority"] = priority if first_is_low else -priority
    if columns.get("one_off"):
        options["max_runs"] = 1
        if columns.get("total_run_count") and columns["enabled"]:
            raise ValueError("it was to run once and has run")
    if expires := columns.get("expires"):
        options["end"] = _moment(row, expires)
        if options["end"] <= now:
            raise ValueError(f"it has expired: {options['end']:%Y-%m-%d %H:%M:%S %Z}")
    if seconds := columns.get("expire_seconds"):
        options["expires_in"] = timedelta(seconds=seconds)
    if headers := _object(row, "headers"):
        options["headers"] = headers
    return options


def own_task(row: BeatRow) -> str:
    """Return why a task of Celery itself needs no schedule; "": it is none."""
    return _OWN.get(row.task, "")


def _content(row: BeatRow, *, is_task: bool) -> dict[str, Any]:
    args, kwargs = _json(row, "args") or [], _object(row, "kwargs")
    if not isinstance(args, list):
        raise ValueError(f"args: expected a list, got {short_repr(args)}")
    if is_task:
        return {"args": args, "kwargs": kwargs} if args or kwargs else {}
    if args and kwargs:
        raise ValueError(
            "it has args and kwargs, but a message has one payload: make it a task, or give it one "
            "of them"
        )
    return {"payload": args or kwargs} if args or kwargs else {}


def _times(row: BeatRow, now: datetime) -> dict[str, Any]:
    if row.kind == "solar":
        raise ValueError(
            f"solar event {row.when.get('event', '')}: there are no solar schedules; give it a "
            "cron expression"
        )
    if not row.when:
        raise ValueError("it has not exactly one crontab, interval or clocked time")
    options = _WHEN_OPTIONS[row.kind](row)
    if (start := row.columns.get("start_time")) is not None:
        # An interval that has run since goes on from its last run.
        start = _moment(row, start)
        options["start"] = max(start, options.get("start", start))
    if row.kind == "clocked":
        # Celery runs it at its start then.
        if (start := options.pop("start", None)) is not None:
            options["at"] = max(options["at"], start)
        if options["at"] <= now:
            raise ValueError(f"its time is over: {options['at']:%Y-%m-%d %H:%M:%S %Z}")
    return options


def _crontab(row: BeatRow) -> dict[str, Any]:
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    cron = as_cron(**{name: str(row.when[name]) for name in names})
    return {"cron": cron, "time_zone": str(row.when.get("timezone") or "UTC")}


def _interval(row: BeatRow) -> dict[str, Any]:
    period, every = row.when["period"], row.when["every"]
    if period not in _PERIODS:
        raise ValueError(f"period {short_repr(period)} is unknown")
    try:
        interval = timedelta(**{period: every})
    except OverflowError:
        raise ValueError(f"every {every} {period}: the interval is too long") from None
    options: dict[str, Any] = {"interval": interval}
    # The rhythm goes on: Celery counts from the last run.
    if (last := row.columns.get("last_run_at")) is not None:
        options["start"] = _moment(row, last).replace(microsecond=0)
    return options


def _clocked(row: BeatRow) -> dict[str, Any]:
    return {"at": _moment(row, row.when["clocked_time"])}


_WHEN_OPTIONS: Mapping[str, Callable[[BeatRow], dict[str, Any]]] = {
    "crontab": _crontab,
    "interval": _interval,
    "clocked": _clocked,
}


def _json(row: BeatRow, column: str) -> Any:
    text = row.columns.get(column)
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"{column}: no JSON") from None


def _object(row: BeatRow, column: str) -> dict[str, Any]:
    found = _json(row, column) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{column}: expected an object, got {short_repr(found)}")
    return found


def _moment(row: BeatRow, value: Any) -> datetime:
    """Return a time as the database driver gives it: as text on SQLite, there without a zone."""
    moment = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise ValueError(f"{short_repr(value)} is no time")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=row.zone or UTC)
    return moment.astimezone(UTC)


def _read(using: str, table: str) -> list[dict[str, Any]]:
    """Return all columns of all rows: which there are depends on the release."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")  # noqa: S608 - a constant
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
