"""System checks of settings, handlers and databases. Their ids never change."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import ERROR, CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured, ValidationError
from django.db import DatabaseError, connections, router, transaction
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import module_has_submodule

from . import clock, conf, payload_types, schedules, timetable
from .alerts import mail
from .descriptions import describe
from .exceptions import TwoHandlers
from .logs import event
from .models import Message, OnPoison, Queue, Schedule, StreamPolicy, WorkerProcess, primary_alias
from .models.queue import with_destination
from .operations import ScheduleDifference, compare_schedules
from .tasks import frameworks, lookup

_IDS = {"type": "deadletter.E001", "unknown": "deadletter.E002", "value": "deadletter.E003"}


@register()
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = [
        Error(f"DEADLETTER: {problem.text}.", hint=problem.hint, id=_IDS[problem.kind])
        for problem in conf.problems()
    ]
    return found or [
        *_check_time_zones(),
        *_check_queues(),
        *_check_alerts(),
        *_check_brokers(),
    ]


def _check_brokers() -> list[CheckMessage]:
    """Build the transport of each broker, which connects to nothing."""
    found: list[CheckMessage] = []
    for name, broker in conf.get_settings().brokers.items():
        try:
            broker.new_transport()
        except (ImproperlyConfigured, ImportError) as error:
            found.append(
                Error(
                    f"DEADLETTER['BROKERS'][{name!r}]: {error}",
                    hint="Its messages wait in the outbox until it is corrected: docs/outbox.md.",
                    id="deadletter.E016",
                )
            )
    return found


def _check_time_zones() -> list[CheckMessage]:
    """Require USE_TZ: leases and delays are points in time, and local time repeats an hour."""
    if settings.USE_TZ:
        return []
    return [
        Error(
            "deadletter needs USE_TZ = True.",
            hint="Set it; TIME_ZONE may have any value. Or run deadletter in a project of its own.",
            id="deadletter.E011",
        )
    ]


def _check_queues() -> list[CheckMessage]:
    """Report declared policies that `migrate` could not store, without a query."""
    found: list[CheckMessage] = []
    queues = conf.get_settings().queues
    for name, policy in queues.items():
        for field, value in policy.items():
            problem = _field_problem(field, value)
            if field == "dead_queue":
                problem = _dead_queue_problem(name, value, queues)
            if problem:
                found.append(_queue_error(name, f"{field}: {problem}"))
        on_poison = with_destination(policy).get("on_poison", OnPoison.QUARANTINE)
        halts = policy.get("stream_policy") == StreamPolicy.HALT
        if halts and on_poison in (OnPoison.DEAD_QUEUE, OnPoison.DISCARD):
            problem = f"with {on_poison} no record is left to halt the stream."
            found.append(
                _queue_error(name, f"stream_policy: halt needs on_poison quarantine: {problem}")
            )
    return found


def _queue_error(name: str, problem: str) -> Error:
    return Error(
        f'DEADLETTER["QUEUES"]["{name}"]: {problem}',
        hint="See the fields of deadletter.models.Queue.",
        id="deadletter.E004",
    )


def _field_problem(name: str, value: Any) -> str:
    try:
        field = Queue._meta.get_field(name)
    except FieldDoesNotExist:
        return "a queue has no such field."
    if name not in Queue.policy_fields() and name != "paused":
        return "cannot be set here."
    if field.is_relation:
        return ""
    try:
        field.clean(value, None)  # type: ignore[union-attr]
    except ValidationError as error:
        return " ".join(error.messages)
    return ""


def _dead_queue_problem(name: str, target: Any, queues: Any) -> str:
    if target is None:
        return ""
    if target == name:
        return "a queue cannot be its own dead queue."
    if target not in queues and target != "default":
        return f"{target!r} is not declared; create it first or declare it here."
    if queues.get(target, {}).get("dead_queue"):
        return f"{target!r} already has a dead queue of its own; dead queues do not chain."
    return ""


def _check_alerts() -> list[CheckMessage]:
    """Report channels that cannot deliver a notice."""
    policy = conf.get_settings().alerts
    mails = [c for c in policy.channels if c.kind == "email"] if policy is not None else []
    found: list[CheckMessage] = [
        Error(
            f'DEADLETTER["ALERTS"]["channels"]["{channel.name}"] has no addresses, and ADMINS is '
            "empty.",
            hint='Give it "to": ["ops@example.org"], or set ADMINS.',
            id="deadletter.E009",
        )
        for channel in mails
        if not channel.to and not settings.ADMINS
    ]
    if mails:
        try:
            get_template(mail.TEMPLATE)
        except (TemplateDoesNotExist, ImproperlyConfigured):
            found.append(
                Error(
                    f"The template {mail.TEMPLATE} of the alerts is not found.",
                    hint='TEMPLATES needs a DjangoTemplates backend with "APP_DIRS": True.',
                    id="deadletter.E010",
                )
            )
    return found


@register()
def check_options(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the settings of the database that messages are sent to, without connecting to it."""
    return _check_options(primary_alias())


@register()
def check_handlers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Import every handlers module, as a worker does, to report errors before one starts."""
    found: list[CheckMessage] = []
    for module, error in _modules_that_fail():
        if isinstance(error, TwoHandlers):
            found.append(
                Error(
                    str(error),
                    hint="A worker refuses to start until each name has one function.",
                    id="deadletter.E012",
                )
            )
        else:
            # A warning: machines without workers may lack packages that handlers import.
            found.append(
                Warning(
                    f"{module} cannot be imported: {type(error).__name__}: {error}",
                    hint="A worker cannot start here. Where none runs, silence deadletter.W003.",
                    id="deadletter.W003",
                )
            )
    found += [
        Error(
            f"{problem}.",
            hint="A worker refuses to start until the class can be used.",
            id="deadletter.E013",
        )
        for problem in payload_types.problems()
    ]
    if not conf.problems():
        from .worker.registry import registry

        brokers = conf.get_settings().brokers
        found += [
            Error(
                f"handler {name} publishes to broker {publication.broker!r}, which is not in "
                'DEADLETTER["BROKERS"].',
                hint="Its messages would fail. Add the broker, or name another one.",
                id="deadletter.E017",
            )
            for name, publication in registry.publications()
            if publication.broker not in brokers
        ]
    return found


@cache
def look_up_handlers() -> None:
    """
    Import handlers as the check does, to know their payload types; once, and without an error.

    For pages and commands: their process may be one that lacks packages of workers. The names of a
    module that cannot be imported stay unknown.
    """
    for module, error in _modules_that_fail():
        event(
            logging.WARNING,
            "handlers_unreadable",
            "handlers cannot be imported, so their payloads are not checked: {error}",
            error=f"{module}: {describe(error).text}",
        )


def _modules_that_fail() -> Iterator[tuple[str, Exception]]:
    for app in apps.get_app_configs():
        if module_has_submodule(app.module, "handlers"):
            module = f"{app.name}.handlers"
            try:
                import_module(module)
            except Exception as error:  # noqa: BLE001 - the check reports any exception
                yield module, error


@register()
def check_tasks(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Import the modules of tasks, as a worker does. The backend checks its own options."""
    if not lookup.has_backend():
        return []
    if not frameworks.is_available():
        return [
            Error(
                "TASKS names deadletter, but there are no Django Tasks here.",
                hint='On Django 5.2 install the backport: pip install "django-deadletter[tasks]".',
                id="deadletter.E015",
            )
        ]
    found: list[CheckMessage] = []
    for module in lookup.task_modules():
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 - the check reports any exception
            found.append(
                Warning(
                    f"{module} cannot be imported: {type(error).__name__}: {error}",
                    hint="Its tasks wait, and become poison in the end. Where no worker runs, or "
                    "if the tasks are another system's, silence deadletter.W004.",
                    id="deadletter.W004",
                )
            )
    return found


@register()
def check_schedules(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check the declared schedules, of the settings and of `@schedule`, without a query."""
    if conf.problems():
        return []  # reported by check_settings
    declared = schedules.read_declarations()
    return [
        Error(
            f"{item.where}: {item.problem}",
            hint="See docs/schedules.md for the options of a schedule.",
            id="deadletter.E018",
        )
        for item in declared.every
        if item.problem
    ]


@register(Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for alias in databases or ():
        if router.allow_migrate_model(alias, Message):
            found += _check_database(alias)
            if alias != primary_alias():  # else check_options has checked it
                found += _check_options(alias)
            if not any(message.level >= ERROR for message in found):
                found += _check_task_queues(alias)
                found += _check_schedule_rows(alias)
    return found


def _check_schedule_rows(alias: str) -> list[CheckMessage]:
    """Report schedules whose rows and declarations differ, and rows that cannot be read here."""
    try:
        with transaction.atomic(using=alias):
            differences = compare_schedules(using=alias)
            unsendable = schedules.find_unsendable(schedules.read_declarations(), using=alias)
            rows = Schedule.objects.using(alias).exclude(cron="").order_by("name")
            cron = [] if timetable.is_cron_available() else rows.values_list("name", flat=True)[:5]
            names = list(cron)
    except DatabaseError:
        return []  # before the first migration
    found: list[CheckMessage] = [_difference_warning(item, alias) for item in differences]
    found += [
        Warning(
            f"Schedule {name!r} cannot fire: {problem}.",
            hint="Correct its declaration or its row; until then an alert is all that it sends.",
            id="deadletter.W011",
        )
        for name, problem in unsendable.items()
    ]
    if names:
        text = ", ".join(names)
        found.append(
            Error(
                f"Cron expressions need the package cronsim, which is not installed: {text}.",
                hint=f"{timetable.REQUIREMENT}. Schedules with an interval need no package.",
                id="deadletter.E019",
            )
        )
    return found


def _difference_warning(item: ScheduleDifference, alias: str) -> Warning:
    sync = '"manage.py deadletter schedules sync"'
    if item.is_missing:
        return Warning(
            f"Schedule {item.name!r} is declared, but database {alias!r} has no row of it.",
            hint='Run "manage.py migrate", which creates it.',
            id="deadletter.W008",
        )
    if item.is_orphaned:
        return Warning(
            f"Schedule {item.name!r} is no longer declared; it does not fire.",
            hint="Delete its row, or declare it again.",
            id="deadletter.W009",
        )
    why = "its declaration has changed" if item.is_declaration_new else "its row was edited"
    return Warning(
        f"Schedule {item.name!r} is not as declared in {item.where} ({why}): "
        f"{', '.join(item.fields)}.",
        hint=f"The row applies. {sync} gives it the values of the declaration.",
        id="deadletter.W010",
    )


def _check_task_queues(alias: str) -> list[CheckMessage]:
    """Report queues of TASKS that do not exist, or that no live worker serves."""
    names = lookup.task_queues(alias)
    if not names:
        return []
    try:
        with transaction.atomic(using=alias):
            queues = Queue.objects.using(alias).filter(name__in=names)
            existing = set(queues.values_list("name", flat=True))
            alive = WorkerProcess.objects.using(alias).alive(clock.now(alias))
            served = alive.served() if alive.exists() else None
    except DatabaseError:
        return []  # before the first migration
    found: list[CheckMessage] = [
        Warning(
            f"TASKS names the queue {name!r}, which does not exist in database {alias!r}.",
            hint='Run "manage.py migrate", which creates it, or correct QUEUES.',
            id="deadletter.W005",
        )
        for name in names
        if name not in existing
    ]
    found += [
        Warning(
            f"No live worker serves the queue {name!r}, which TASKS names.",
            hint="Its tasks wait. Start a worker for it, or name it in --queues of one.",
            id="deadletter.W006",
        )
        for name in sorted(existing)
        if served is not None and name not in served
    ]
    return found


def _check_database(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _check_sqlite(alias)
    if connection.vendor == "postgresql":
        return _check_postgresql(alias)
    return [
        Error(
            f"deadletter does not run on {connection.display_name} (database {alias!r}).",
            hint="Use SQLite or PostgreSQL, or keep its tables elsewhere with a database router.",
            id="deadletter.E005",
        )
    ]


def _check_sqlite(alias: str) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if sqlite3.sqlite_version_info < (3, 38):
        found.append(
            Error(
                f"SQLite {sqlite3.sqlite_version} is too old for deadletter.",
                hint="Use SQLite 3.38 or newer: it needs RETURNING and the JSON functions.",
                id="deadletter.E006",
            )
        )
    return found


def _check_options(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor != "sqlite":
        return []
    found: list[CheckMessage] = []
    # From the settings: Django sets the attribute only when it connects.
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or ""
    if mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        found.append(
            Warning(
                f"Database {alias!r} does not begin transactions with BEGIN IMMEDIATE.",
                hint='Set DATABASES[…]["OPTIONS"]["transaction_mode"] = "IMMEDIATE": otherwise '
                "transactions of your own that read and then write fail with "
                '"database is locked" while a worker runs.',
                id="deadletter.W001",
            )
        )
    if connections[alias].timezone_name != "UTC":
        found.append(
            Warning(
                f"Database {alias!r} stores times in {connections[alias].timezone_name}.",
                hint='Remove "TIME_ZONE" from DATABASES[…]: when clocks are set back, an hour '
                "occurs twice, and leases and delays last longer or end too early. Pages show "
                "times in the site's TIME_ZONE anyway.",
                id="deadletter.W002",
            )
        )
    return found


def _check_postgresql(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    found: list[CheckMessage] = []
    if connection.pg_version < 140000:  # type: ignore[attr-defined]
        found.append(
            Error(
                "PostgreSQL 14 or newer is needed.",
                hint="Upgrade the server.",
                id="deadletter.E007",
            )
        )
    # In a transaction: Django sets the level of OPTIONS with BEGIN.
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        level = cursor.fetchone()[0]
    if level != "read committed":
        found.append(
            Error(
                f"Database {alias!r} runs transactions at {level!r}; deadletter needs "
                "'read committed'.",
                hint="A claim locks streams and then reads them: with a snapshot taken before the "
                "lock it would deliver messages twice. Give deadletter a database alias of its "
                "own without isolation_level, or remove default_transaction_isolation from the "
                "database, the role or the server.",
                id="deadletter.E008",
            )
        )
    return found
