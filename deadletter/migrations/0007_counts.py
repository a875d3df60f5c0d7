"""Counters: what happened, per queue, name and span of time."""

from __future__ import annotations

from django.db import migrations, models


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
                        choices=[(60, "minute"), (3600, "hour"), (86400, "day")],
                        verbose_name="span",
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="from")),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("kind", models.CharField(max_length=20, verbose_name="kind")),
                ("reason", models.SmallIntegerField(default=-1, verbose_name="reason")),
                (
                    "writer",
                    models.CharField(blank=True, default="", max_length=100, verbose_name="writer"),
                ),
                ("sent", models.BigIntegerField(default=0, verbose_name="sent")),
                ("completed", models.BigIntegerField(default=0, verbose_name="completed")),
                ("failed", models.BigIntegerField(default=0, verbose_name="failed")),
                ("deferred", models.BigIntegerField(default=0, verbose_name="deferred")),
                ("poisoned", models.BigIntegerField(default=0, verbose_name="poisoned")),
                ("retried", models.BigIntegerField(default=0, verbose_name="retried")),
                ("removed", models.BigIntegerField(default=0, verbose_name="removed")),
                ("seconds", models.FloatField(default=0, verbose_name="seconds")),
                ("longest", models.FloatField(default=0, verbose_name="longest")),
            ],
            options={
                "verbose_name": "count",
                "verbose_name_plural": "counts",
                "db_table": "deadletter_count",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("span", "at", "queue", "name", "kind", "reason", "writer"),
                        name="deadletter_count_row",
                    )
                ],
            },
        ),
    ]
