"""
What people do with the outbox: pauses, and an archive of published messages.

New tables, and for the outbox a column with a default in the database: nothing is rewritten, and
publishers of the release before go on beside it. The index of refused messages leaves out paused
ones from here on; it holds refused messages alone, so that it is small.
"""

from __future__ import annotations

from django.db import migrations, models

import deadletter.models.fields


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0016_outbox"),
    ]

    operations = [
        migrations.CreateModel(
            name="OutboxPause",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("broker", models.CharField(max_length=100, verbose_name="broker")),
                (
                    "topic",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="topic"),
                ),
                ("paused_at", models.DateTimeField(verbose_name="paused at")),
                (
                    "by",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="by"),
                ),
                ("why", models.TextField(blank=True, default="", verbose_name="why")),
            ],
            options={
                "verbose_name": "pause of the outbox",
                "verbose_name_plural": "pauses of the outbox",
                "db_table": "deadletter_outbox_pause",
                "ordering": ("broker", "topic"),
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("broker", "topic"), name="deadletter_outbox_pauses"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishedMessage",
            fields=[
                (
                    "id",
                    models.BigIntegerField(primary_key=True, serialize=False, verbose_name="id"),
                ),
                ("broker", models.CharField(max_length=100, verbose_name="broker")),
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
                ("published_at", models.DateTimeField(verbose_name="published at")),
            ],
            options={
                "verbose_name": "published message",
                "verbose_name_plural": "published messages",
                "db_table": "deadletter_outbox_archive",
                "ordering": ("-id",),
                "permissions": (("publish_again", "Can publish messages again"),),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        fields=["broker", "published_at", "id"], name="deadletter_archive_time"
                    ),
                    models.Index(fields=["topic", "id"], name="deadletter_archive_topic"),
                    models.Index(
                        condition=models.Q(("key__isnull", False)),
                        fields=["key", "id"],
                        name="deadletter_archive_key",
                    ),
                ],
            },
        ),
        migrations.AlterModelOptions(
            name="brokerstatus",
            options={
                "default_permissions": ("view",),
                "ordering": ("name",),
                "permissions": (("pause_outbox", "Can pause and resume brokers and topics"),),
                "verbose_name": "broker",
                "verbose_name_plural": "brokers",
            },
        ),
        migrations.RemoveIndex(model_name="outboxmessage", name="deadletter_outbox_refused"),
        migrations.AddField(
            model_name="outboxmessage",
            name="paused",
            field=models.BooleanField(db_default=False, default=False, verbose_name="paused"),
        ),
        migrations.AddIndex(
            model_name="outboxmessage",
            index=models.Index(
                condition=models.Q(("paused", False), ("retry_at__isnull", False)),
                fields=["broker", "lane", "retry_at"],
                name="deadletter_outbox_refused",
            ),
        ),
        migrations.AddIndex(
            model_name="outboxmessage",
            index=models.Index(
                condition=models.Q(("paused", True)),
                fields=["broker", "lane", "topic", "id"],
                name="deadletter_outbox_paused",
            ),
        ),
        migrations.AlterField(
            model_name="alert",
            name="rule",
            field=models.CharField(
                choices=[
                    ("new_group", "a new cause of death"),
                    ("poison_rate", "many deaths"),
                    ("poison_depth", "many dead letters"),
                    ("oldest_age", "a message waits too long"),
                    ("halted_stream", "streams stand still"),
                    ("worker_lost", "a worker is lost"),
                    ("breaker_opened", "a circuit breaker opened"),
                    ("unserved_queue", "a queue that no worker serves"),
                    ("stuck_instance", "instances are stuck"),
                    ("outbox_age", "a message of the outbox waits too long"),
                    ("broker_unavailable", "a broker accepts nothing"),
                ],
                max_length=32,
                verbose_name="rule",
            ),
        ),
        migrations.AlterField(
            model_name="auditentry",
            name="act",
            field=models.CharField(
                choices=[
                    ("retry", "retry poison"),
                    ("remove", "remove poison"),
                    ("retry_now", "retry a failed message now"),
                    ("release", "release by name"),
                    ("poison", "poison by hand"),
                    ("discard", "remove a waiting message"),
                    ("purge", "purge old poison"),
                    ("pause", "pause a queue"),
                    ("resume", "resume a queue"),
                    ("edit_queue", "change a queue"),
                    ("export", "export poison"),
                    ("cancel", "cancel an instance"),
                    ("import", "import messages"),
                    ("pause_outbox", "pause a broker or topic"),
                    ("resume_outbox", "resume a broker or topic"),
                    ("publish_again", "publish messages again"),
                ],
                max_length=16,
                verbose_name="act",
            ),
        ),
    ]
