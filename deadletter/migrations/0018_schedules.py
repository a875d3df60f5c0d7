"""Schedules and their runs: two new tables. Nothing that exists is rewritten."""

from __future__ import annotations

import datetime

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import deadletter.models.fields
import deadletter.models.schedule


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0017_outbox_operation"),
    ]

    operations = [
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
                    ("schedule_failed", "a schedule cannot fire"),
                    ("schedule_overdue", "schedules that no worker fires"),
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
                    ("edit_schedule", "change a schedule"),
                    ("pause_schedule", "pause a schedule"),
                    ("resume_schedule", "resume a schedule"),
                    ("run_schedule", "run a schedule now"),
                    ("sync_schedules", "synchronise schedules"),
                ],
                max_length=16,
                verbose_name="act",
            ),
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=200, unique=True, verbose_name="name")),
                (
                    "kind",
                    models.CharField(
                        choices=[("message", "message"), ("task", "task")],
                        default="message",
                        max_length=16,
                        verbose_name="sends",
                    ),
                ),
                (
                    "target",
                    models.CharField(
                        help_text="The name of the message, or the path of the task: shop.tasks.report.",
                        max_length=200,
                        verbose_name="message name or task",
                    ),
                ),
                (
                    "payload",
                    deadletter.models.fields.JSONTextField(
                        blank=True, null=True, verbose_name="payload"
                    ),
                ),
                (
                    "queue",
                    models.CharField(
                        blank=True,
                        help_text="Empty: the queue of the task, or default.",
                        max_length=200,
                        verbose_name="queue",
                    ),
                ),
                (
                    "stream",
                    models.CharField(blank=True, max_length=200, null=True, verbose_name="stream"),
                ),
                (
                    "key",
                    models.CharField(
                        blank=True,
                        help_text="Nothing is sent while the queue has an unfinished message of this key.",
                        max_length=200,
                        null=True,
                        verbose_name="key",
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        blank=True,
                        help_text="-100 (first) to 100 (last). Empty: that of the task, or 0.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(-100),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="priority",
                    ),
                ),
                (
                    "headers",
                    deadletter.models.fields.JSONTextField(
                        blank=True, null=True, verbose_name="headers"
                    ),
                ),
                (
                    "expires_in",
                    deadletter.models.fields.SecondsField(
                        blank=True,
                        help_text="A message not handled this long after its firing is dead.",
                        null=True,
                        verbose_name="expires in",
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True,
                        help_text="Minute, hour, day of month, month, day of week: 0 3 * * * is each day at 3.",
                        max_length=200,
                        verbose_name="cron expression",
                    ),
                ),
                (
                    "interval",
                    deadletter.models.fields.SecondsField(
                        blank=True, null=True, verbose_name="interval"
                    ),
                ),
                (
                    "at",
                    models.DateTimeField(
                        blank=True, help_text="A single moment.", null=True, verbose_name="at"
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(
                        default=deadletter.models.schedule.default_time_zone,
                        help_text="Of the cron expression: an IANA name such as Europe/Berlin.",
                        max_length=64,
                        verbose_name="time zone",
                    ),
                ),
                (
                    "start",
                    models.DateTimeField(
                        blank=True,
                        help_text="No moment before it.",
                        null=True,
                        verbose_name="start",
                    ),
                ),
                (
                    "end",
                    models.DateTimeField(
                        blank=True, help_text="No moment after it.", null=True, verbose_name="end"
                    ),
                ),
                (
                    "max_runs",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="The schedule ends after so many messages. Empty: it does not.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="max runs",
                    ),
                ),
                (
                    "jitter",
                    deadletter.models.fields.SecondsField(
                        default=datetime.timedelta(0),
                        help_text="Each moment is put off by up to this, always by the same.",
                        verbose_name="jitter",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("skip", "skip: send nothing while an earlier message waits or runs"),
                            ("one", "one: send if none waits; one may run"),
                            ("allow", "allow: send always"),
                        ],
                        default="skip",
                        max_length=16,
                        verbose_name="overlap",
                    ),
                ),
                (
                    "missed",
                    models.CharField(
                        choices=[
                            ("once", "once: fire the latest one, however late"),
                            ("skip", "skip: fire the latest one if it is not later than the grace"),
                            ("all", "all: fire each of them, the latest hundred at most"),
                        ],
                        default="once",
                        max_length=16,
                        verbose_name="missed runs",
                    ),
                ),
                (
                    "grace",
                    deadletter.models.fields.SecondsField(
                        default=datetime.timedelta(seconds=60),
                        help_text="With missed runs “skip”: how late the latest moment may be fired.",
                        verbose_name="grace",
                    ),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                (
                    "orphaned_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="orphaned since"),
                ),
                (
                    "declaration",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="declaration"
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                (
                    "last_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="last moment"),
                ),
                (
                    "next_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="next moment"),
                ),
                ("due_at", models.DateTimeField(blank=True, null=True, verbose_name="due at")),
                ("run_count", models.PositiveIntegerField(default=0, verbose_name="runs")),
                (
                    "last_outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("sent", "sent"),
                            ("skipped", "skipped"),
                            ("missed", "missed"),
                            ("failed", "failed"),
                        ],
                        default="",
                        max_length=16,
                        verbose_name="last outcome",
                    ),
                ),
                ("last_error", models.TextField(blank=True, default="", verbose_name="last error")),
                (
                    "failing_since",
                    models.DateTimeField(blank=True, null=True, verbose_name="failing since"),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "deadletter_schedule",
                "ordering": ("name",),
                "permissions": (
                    ("run_schedule", "Can run schedules now"),
                    ("pause_schedule", "Can pause and resume schedules"),
                ),
                "indexes": [
                    models.Index(
                        condition=models.Q(("due_at__isnull", False)),
                        fields=["due_at", "id"],
                        name="deadletter_schedule_due",
                    ),
                    models.Index(
                        condition=models.Q(("failing_since__isnull", False)),
                        fields=["failing_since", "id"],
                        name="deadletter_schedule_failing",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("moment", models.DateTimeField(null=True, verbose_name="moment")),
                ("fired_at", models.DateTimeField(verbose_name="fired at")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("sent", "sent"),
                            ("skipped", "skipped"),
                            ("missed", "missed"),
                            ("failed", "failed"),
                        ],
                        max_length=16,
                        verbose_name="outcome",
                    ),
                ),
                ("message_id", models.BigIntegerField(null=True, verbose_name="message id")),
                ("why", models.TextField(blank=True, default="", verbose_name="why")),
                ("by", models.CharField(blank=True, default="", max_length=200, verbose_name="by")),
                ("count", models.PositiveIntegerField(default=1, verbose_name="moments")),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="deadletter.schedule",
                        verbose_name="schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "run of a schedule",
                "verbose_name_plural": "runs of schedules",
                "db_table": "deadletter_schedule_run",
                "ordering": ("-id",),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["schedule", "id"], name="deadletter_schedule_runs")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("schedule", "moment"), name="deadletter_schedule_moment"
                    )
                ],
            },
        ),
    ]
