"""Failure groups: their numbers, hours, tags and events, and what is not yet added to them."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0019_held_breakers"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApplicationRelease",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True, verbose_name="name")),
                ("first_seen_at", models.DateTimeField(verbose_name="first seen")),
                ("last_seen_at", models.DateTimeField(verbose_name="last seen")),
            ],
            options={
                "verbose_name": "release",
                "verbose_name_plural": "releases",
                "db_table": "deadletter_release",
                "ordering": ("-first_seen_at", "-id"),
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="GroupChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("fingerprint", models.CharField(max_length=16, verbose_name="fingerprint")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("exception", models.CharField(max_length=200, verbose_name="exception")),
                ("frame", models.CharField(max_length=300, verbose_name="place")),
                ("reason", models.SmallIntegerField(verbose_name="reason")),
                ("error", models.TextField(verbose_name="error")),
                ("release", models.CharField(max_length=100, verbose_name="release")),
                ("failures", models.PositiveIntegerField(default=0, verbose_name="failures")),
                ("deaths", models.PositiveIntegerField(default=0, verbose_name="deaths")),
                ("tags", models.JSONField(default=list, verbose_name="tags")),
                ("at", models.DateTimeField(verbose_name="at")),
            ],
            options={
                "verbose_name": "group change",
                "verbose_name_plural": "group changes",
                "db_table": "deadletter_group_change",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="FailureGroup",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "fingerprint",
                    models.CharField(max_length=16, unique=True, verbose_name="fingerprint"),
                ),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("queue", models.CharField(blank=True, max_length=200, verbose_name="queue")),
                (
                    "exception",
                    models.CharField(blank=True, max_length=200, verbose_name="exception"),
                ),
                ("frame", models.CharField(blank=True, max_length=300, verbose_name="place")),
                (
                    "reason",
                    models.PositiveSmallIntegerField(
                        choices=[
                            (1, "transport unavailable"),
                            (2, "handler exception"),
                            (3, "validation failure"),
                            (4, "timeout exceeded"),
                            (5, "serialization error"),
                            (6, "dependency failure"),
                            (7, "poison message"),
                            (8, "expired"),
                            (9, "unregistered"),
                            (10, "worker lost"),
                            (11, "operator"),
                            (99, "unknown"),
                        ],
                        default=99,
                        verbose_name="reason",
                    ),
                ),
                ("error", models.TextField(blank=True, verbose_name="last error")),
                (
                    "failures",
                    models.BigIntegerField(db_default=0, default=0, verbose_name="failures"),
                ),
                ("deaths", models.BigIntegerField(db_default=0, default=0, verbose_name="deaths")),
                ("first_failed_at", models.DateTimeField(verbose_name="first failure")),
                ("last_failed_at", models.DateTimeField(verbose_name="last failure")),
                ("first_died_at", models.DateTimeField(null=True, verbose_name="first death")),
                ("last_died_at", models.DateTimeField(null=True, verbose_name="last death")),
                (
                    "first_release",
                    models.CharField(blank=True, max_length=100, verbose_name="first release"),
                ),
                (
                    "last_release",
                    models.CharField(blank=True, max_length=100, verbose_name="last release"),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("new", "new"),
                            ("acknowledged", "acknowledged"),
                            ("muted", "muted"),
                            ("resolved", "resolved"),
                            ("regressed", "regressed"),
                        ],
                        default="new",
                        max_length=16,
                        verbose_name="state",
                    ),
                ),
                ("state_at", models.DateTimeField(verbose_name="state since")),
                (
                    "state_by",
                    models.CharField(blank=True, max_length=200, verbose_name="state set by"),
                ),
                ("muted_until", models.DateTimeField(null=True, verbose_name="muted until")),
                (
                    "muted_until_failures",
                    models.BigIntegerField(null=True, verbose_name="muted until failures"),
                ),
                (
                    "resolved_in",
                    models.CharField(blank=True, max_length=100, verbose_name="resolved in"),
                ),
                ("owner", models.CharField(blank=True, max_length=200, verbose_name="owner")),
                ("ticket", models.CharField(blank=True, max_length=500, verbose_name="ticket")),
                (
                    "merged_into",
                    models.CharField(
                        blank=True, default="", max_length=16, verbose_name="merged into"
                    ),
                ),
            ],
            options={
                "verbose_name": "failure group",
                "verbose_name_plural": "failure groups",
                "db_table": "deadletter_group",
                "ordering": ("-last_failed_at", "-id"),
                "permissions": (
                    ("triage_group", "Can acknowledge, mute, resolve and assign failure groups"),
                    ("note_group", "Can write notes on failure groups"),
                    ("merge_group", "Can merge and split failure groups"),
                ),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["last_failed_at", "id"], name="deadletter_group_time"),
                    models.Index(
                        fields=["state", "last_failed_at", "id"], name="deadletter_group_state"
                    ),
                    models.Index(
                        fields=["name", "last_failed_at", "id"], name="deadletter_group_name"
                    ),
                    models.Index(
                        condition=models.Q(("owner", ""), _negated=True),
                        fields=["owner", "last_failed_at", "id"],
                        name="deadletter_group_owner",
                    ),
                    models.Index(
                        condition=models.Q(("merged_into", ""), _negated=True),
                        fields=["merged_into"],
                        name="deadletter_group_merged",
                    ),
                    models.Index(
                        condition=models.Q(("muted_until__isnull", False), ("state", "muted")),
                        fields=["muted_until"],
                        name="deadletter_group_muted",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="GroupHour",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("fingerprint", models.CharField(max_length=16, verbose_name="fingerprint")),
                ("at", models.DateTimeField(verbose_name="from")),
                ("release", models.CharField(blank=True, max_length=100, verbose_name="release")),
                ("failures", models.BigIntegerField(default=0, verbose_name="failures")),
                ("deaths", models.BigIntegerField(default=0, verbose_name="deaths")),
            ],
            options={
                "verbose_name": "hour of a group",
                "verbose_name_plural": "hours of groups",
                "db_table": "deadletter_group_hour",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["at"], name="deadletter_group_hour_time"),
                    models.Index(
                        fields=["fingerprint", "release"], name="deadletter_group_hour_of"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("fingerprint", "at", "release"), name="deadletter_group_hour_row"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="GroupTag",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("fingerprint", models.CharField(max_length=16, verbose_name="fingerprint")),
                ("key", models.CharField(max_length=100, verbose_name="key")),
                ("value", models.CharField(blank=True, max_length=200, verbose_name="value")),
                ("failures", models.BigIntegerField(default=0, verbose_name="failures")),
                ("last_at", models.DateTimeField(verbose_name="last failure")),
            ],
            options={
                "verbose_name": "tag of a group",
                "verbose_name_plural": "tags of groups",
                "db_table": "deadletter_group_tag",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["key", "value"], name="deadletter_group_tag_value"),
                    models.Index(fields=["last_at"], name="deadletter_group_tag_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("fingerprint", "key", "value"), name="deadletter_group_tag_row"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="MessageTag",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField(verbose_name="message id")),
                ("key", models.CharField(max_length=100, verbose_name="key")),
                ("value", models.CharField(max_length=200, verbose_name="value")),
                ("at", models.DateTimeField(verbose_name="at")),
            ],
            options={
                "verbose_name": "tag of a message",
                "verbose_name_plural": "tags of messages",
                "db_table": "deadletter_message_tag",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        fields=["key", "value", "message_id"], name="deadletter_tag_value"
                    ),
                    models.Index(fields=["at", "id"], name="deadletter_tag_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_id", "key", "value"), name="deadletter_tag_row"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="GroupEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("fingerprint", models.CharField(max_length=16, verbose_name="fingerprint")),
                ("at", models.DateTimeField(verbose_name="at")),
                ("by", models.CharField(blank=True, max_length=200, verbose_name="by")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("note", "note"),
                            ("state", "state"),
                            ("owner", "owner"),
                            ("ticket", "ticket"),
                            ("merge", "merged"),
                            ("split", "split"),
                            ("regressed", "came back"),
                            ("unmuted", "mute ended"),
                        ],
                        max_length=16,
                        verbose_name="kind",
                    ),
                ),
                ("text", models.TextField(blank=True, verbose_name="text")),
                ("detail", models.JSONField(default=dict, verbose_name="detail")),
                (
                    "answers",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="replies",
                        to="deadletter.groupevent",
                    ),
                ),
            ],
            options={
                "verbose_name": "event of a group",
                "verbose_name_plural": "events of groups",
                "db_table": "deadletter_group_event",
                "ordering": ("id",),
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["fingerprint", "id"], name="deadletter_group_event_of")
                ],
            },
        ),
    ]
