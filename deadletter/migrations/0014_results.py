"""
The table of results, and the kind "task" of messages.

Workers of the release before go on beside it: they do not know tasks and put them off.
"""

from __future__ import annotations

from django.db import migrations, models

from ..models.fields import JSONTextField

KINDS = [
    ("message", "message"),
    ("orchestration", "orchestration"),
    ("activity", "activity"),
    ("task", "task"),
]


class Migration(migrations.Migration):
    dependencies = [("deadletter", "0013_rules")]

    operations = [
        # Choices only: nothing changes in the database.
        migrations.AlterField(
            model_name="message",
            name="kind",
            field=models.CharField(
                choices=KINDS,
                db_default="message",
                default="message",
                max_length=16,
                verbose_name="kind",
            ),
        ),
        migrations.AlterField(
            model_name="poisonrecord",
            name="kind",
            field=models.CharField(
                choices=KINDS, default="message", max_length=16, verbose_name="kind"
            ),
        ),
        migrations.CreateModel(
            name="Result",
            fields=[
                (
                    "message_id",
                    models.BigIntegerField(
                        primary_key=True, serialize=False, verbose_name="message id"
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                (
                    "kind",
                    models.CharField(choices=KINDS, max_length=16, verbose_name="kind"),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("successful", "successful"),
                            ("removed", "removed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=16,
                        verbose_name="outcome",
                    ),
                ),
                ("payload", JSONTextField(null=True, verbose_name="payload")),
                ("headers", JSONTextField(null=True, verbose_name="headers")),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                ("value", JSONTextField(null=True, verbose_name="return value")),
                ("history", models.JSONField(null=True, verbose_name="history")),
                ("workers", models.JSONField(null=True, verbose_name="workers")),
                ("progress", models.JSONField(null=True, verbose_name="progress")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                (
                    "attempted_at",
                    models.DateTimeField(null=True, verbose_name="attempted at"),
                ),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
            ],
            options={
                "verbose_name": "result",
                "verbose_name_plural": "results",
                "db_table": "deadletter_task_result",
                "ordering": ("-message_id",),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False)),
                        fields=["expires_at"],
                        name="deadletter_result_expiry",
                    ),
                    models.Index(fields=["name", "finished_at"], name="deadletter_result_name"),
                ],
            },
        ),
    ]
