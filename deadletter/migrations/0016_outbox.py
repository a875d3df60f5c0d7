"""
The outbox, its lanes and relays, what is known of brokers, and the inbox.

Tables only: nothing that exists is rewritten. The outbox is vacuumed after so many rows, whatever
its size, as the table of messages is (migration 0002).
"""

from __future__ import annotations

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

import deadletter.models.fields

OPTIONS = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "50000",
    "autovacuum_vacuum_cost_delay": "0",
}


def tune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        options = ", ".join(f"{name} = {value}" for name, value in OPTIONS.items())
        schema_editor.execute(f"ALTER TABLE deadletter_outbox SET ({options})")


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0015_workers_and_progress"),
    ]

    operations = [
        migrations.CreateModel(
            name="BrokerStatus",
            fields=[
                (
                    "name",
                    models.CharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="broker"
                    ),
                ),
                (
                    "unavailable_since",
                    models.DateTimeField(null=True, verbose_name="unavailable since"),
                ),
                ("error", models.TextField(default="", verbose_name="error")),
                ("confirmed_at", models.DateTimeField(null=True, verbose_name="last confirm")),
            ],
            options={
                "verbose_name": "broker",
                "verbose_name_plural": "brokers",
                "db_table": "deadletter_broker",
                "ordering": ("name",),
                "default_permissions": ("view",),
            },
        ),
        migrations.AlterField(
            model_name="message",
            name="kind",
            field=models.CharField(
                choices=[
                    ("message", "message"),
                    ("orchestration", "orchestration"),
                    ("activity", "activity"),
                    ("task", "task"),
                    ("event", "event"),
                ],
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
                choices=[
                    ("message", "message"),
                    ("orchestration", "orchestration"),
                    ("activity", "activity"),
                    ("task", "task"),
                    ("event", "event"),
                ],
                default="message",
                max_length=16,
                verbose_name="kind",
            ),
        ),
        migrations.AlterField(
            model_name="result",
            name="kind",
            field=models.CharField(
                choices=[
                    ("message", "message"),
                    ("orchestration", "orchestration"),
                    ("activity", "activity"),
                    ("task", "task"),
                    ("event", "event"),
                ],
                max_length=16,
                verbose_name="kind",
            ),
        ),
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("consumer", models.CharField(max_length=200, verbose_name="consumer")),
                ("message_id", models.CharField(max_length=200, verbose_name="message id")),
                ("handled_at", models.DateTimeField(verbose_name="handled at")),
            ],
            options={
                "verbose_name": "inbox message",
                "verbose_name_plural": "inbox",
                "db_table": "deadletter_inbox",
                "ordering": ("-id",),
                "default_permissions": (),
                "indexes": [models.Index(fields=["handled_at"], name="deadletter_inbox_age")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("consumer", "message_id"), name="deadletter_inbox_handled"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxLane",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("broker", models.CharField(max_length=100, verbose_name="broker")),
                ("number", models.SmallIntegerField(verbose_name="number")),
                ("token", models.CharField(default="", max_length=32, verbose_name="token")),
                ("worker", models.CharField(default="", max_length=200, verbose_name="worker")),
                ("leased_until", models.DateTimeField(null=True, verbose_name="leased until")),
            ],
            options={
                "verbose_name": "lane",
                "verbose_name_plural": "lanes",
                "db_table": "deadletter_outbox_lane",
                "ordering": ("broker", "number"),
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("broker", "number"), name="deadletter_outbox_lanes"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("broker", models.CharField(max_length=100, verbose_name="broker")),
                ("lane", models.SmallIntegerField(verbose_name="lane")),
                ("topic", models.CharField(max_length=200, verbose_name="topic")),
                ("key", models.CharField(max_length=200, null=True, verbose_name="key")),
                (
                    "payload",
                    deadletter.models.fields.JSONTextField(null=True, verbose_name="payload"),
                ),
                (
                    "headers",
                    deadletter.models.fields.JSONTextField(null=True, verbose_name="headers"),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("held", models.BooleanField(db_default=False, default=False, verbose_name="held")),
                (
                    "attempts",
                    models.PositiveIntegerField(db_default=0, default=0, verbose_name="attempts"),
                ),
                ("retry_at", models.DateTimeField(null=True, verbose_name="retry at")),
                ("history", models.JSONField(null=True, verbose_name="history")),
                ("message_id", models.BigIntegerField(null=True, verbose_name="message id")),
                (
                    "poison_count",
                    models.PositiveIntegerField(
                        db_default=0, default=0, verbose_name="poison count"
                    ),
                ),
            ],
            options={
                "verbose_name": "outbox message",
                "verbose_name_plural": "outbox",
                "db_table": "deadletter_outbox",
                "ordering": ("id",),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("held", False)),
                        fields=["broker", "lane", "id"],
                        name="deadletter_outbox_ready",
                    ),
                    models.Index(
                        condition=models.Q(("held", True)),
                        fields=["broker", "lane", "key", "id"],
                        name="deadletter_outbox_held",
                    ),
                    models.Index(
                        condition=models.Q(("retry_at__isnull", False)),
                        fields=["broker", "lane", "retry_at"],
                        name="deadletter_outbox_refused",
                    ),
                    models.Index(
                        condition=models.Q(("message_id__isnull", False)),
                        fields=["message_id"],
                        name="deadletter_outbox_retried",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxRelay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("broker", models.CharField(max_length=100, verbose_name="broker")),
                ("token", models.CharField(max_length=32, verbose_name="token")),
                ("worker", models.CharField(max_length=200, verbose_name="worker")),
                ("seen_at", models.DateTimeField(verbose_name="seen at")),
            ],
            options={
                "verbose_name": "relay",
                "verbose_name_plural": "relays",
                "db_table": "deadletter_outbox_relay",
                "ordering": ("broker", "worker"),
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("broker", "token"), name="deadletter_outbox_relays"
                    )
                ],
            },
        ),
        migrations.RunPython(tune, migrations.RunPython.noop, elidable=False),
    ]
