"""Counters: what happened, per queue, name and span of time."""

from __future__ import annotations

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

#: A row is updated by every transaction of its writer for a minute: in place, if its page has room.
OPTIONS = "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000"


def tune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER TABLE deadletter_count SET ({OPTIONS})")


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0006_poison_in_list_order"),
    ]

    operations = [
        migrations.CreateModel(
            name="Count",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "span",
                    models.PositiveIntegerField(
                        choices=[(0, "all before"), (60, "minute"), (3600, "hour"), (86400, "day")],
                        verbose_name="span",
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="from")),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("kind", models.CharField(max_length=20, verbose_name="kind")),
                (
                    "reason",
                    models.SmallIntegerField(db_default=-1, default=-1, verbose_name="reason"),
                ),
                (
                    "writer",
                    models.CharField(
                        blank=True, db_default="", default="", max_length=100, verbose_name="writer"
                    ),
                ),
                ("sent", models.BigIntegerField(db_default=0, default=0, verbose_name="sent")),
                (
                    "completed",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="completed"),
                ),
                ("failed", models.BigIntegerField(db_default=0, default=0, verbose_name="failed")),
                (
                    "deferred",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="deferred"),
                ),
                (
                    "poisoned",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="poisoned"),
                ),
                (
                    "retried",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="retried"),
                ),
                (
                    "removed",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="removed"),
                ),
                ("seconds", models.FloatField(db_default=0, default=0, verbose_name="seconds")),
                ("longest", models.FloatField(db_default=0, default=0, verbose_name="longest")),
            ],
            options={
                "verbose_name": "count",
                "verbose_name_plural": "counts",
                "db_table": "deadletter_count",
                "indexes": [
                    models.Index(
                        fields=["span", "at"],
                        condition=models.Q(("writer", ""), _negated=True),
                        name="deadletter_count_unfolded",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("span", "at", "queue", "name", "kind", "reason", "writer"),
                        name="deadletter_count_row",
                    )
                ],
            },
        ),
        migrations.RunPython(tune, migrations.RunPython.noop, elidable=False),
    ]
