"""The tables of django-celery-beat in the database of a test, made from its own models."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from django.apps import AppConfig, apps
from django.db import connection


def beat_models() -> Iterator[ModuleType]:
    """Create the tables, and yield the models. The app is installed only for so long."""
    label = "django_celery_beat"
    config = AppConfig.create(label)
    config.apps = apps
    config.models = apps.all_models[label]
    apps.app_configs[label] = config
    apps.clear_cache()
    try:
        from django_celery_beat import models

        # Not in `with`: inside a transaction SQLite's editor refuses to begin.
        editor = connection.SchemaEditorClass(connection)
        editor.deferred_sql = []
        tables = (
            models.CrontabSchedule,
            models.IntervalSchedule,
            models.ClockedSchedule,
            models.SolarSchedule,
            models.PeriodicTasks,
            models.PeriodicTask,
        )
        with connection.cursor() as cursor:
            for table in tables:
                statement, parameters = editor.table_sql(table)
                cursor.execute(statement, parameters or None)
        yield models
    finally:
        del apps.app_configs[label]
        apps.clear_cache()
