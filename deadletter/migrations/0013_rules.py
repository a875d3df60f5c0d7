"""
Columns for stages, policies by reason, unregistered names, dead queues, imports and worker deaths.

Safe beside a busy table of messages: its columns are nullable and have no default, so that only the
catalogue changes, under a lock that is asked for half a second at a time; its indexes are built
concurrently and hold no plain message. A migration that was interrupted can be run again. SQLite
rewrites no message either.

Older workers go on beside it, with one exception: they look for the index that is dropped here when
they move a message to a dead queue, and fail to do so until they are replaced. So where queues have
a dead queue, stop the old workers before this migration.
"""

from __future__ import annotations

from django.core.validators import MaxValueValidator
from django.db import migrations, models

from ..models.fields import JSONFact
from ._busy_table import (
    AddColumns,
    CreateIndexes,
    DropIndexes,
    ForgetOrigins,
    InOneTransaction,
)


class Migration(migrations.Migration):
    # Indexes are built concurrently, and each step commits by itself.
    atomic = False
    dependencies = [("deadletter", "0012_stuck_instances")]

    operations = [
        AddColumns(
            "message",
            [
                (
                    "reason_counts",
                    models.JSONField(blank=True, null=True, verbose_name="failures by reason"),
                ),
                (
                    "unregistered_count",
                    models.IntegerField(blank=True, null=True, verbose_name="unregistered count"),
                ),
                (
                    "unregistered_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="unregistered at"),
                ),
                (
                    "origin",
                    models.CharField(blank=True, max_length=200, null=True, verbose_name="origin"),
                ),
                ("death", models.JSONField(blank=True, null=True, verbose_name="death")),
                (
                    "fingerprint",
                    models.CharField(
                        blank=True, max_length=16, null=True, verbose_name="fingerprint"
                    ),
                ),
                ("died_at", models.DateTimeField(blank=True, null=True, verbose_name="died at")),
            ],
        ),
        AddColumns(
            "poisonrecord",
            [
                ("origin", models.CharField(max_length=200, null=True, verbose_name="origin")),
                ("death", models.JSONField(null=True, verbose_name="death")),
                ("moved_at", models.DateTimeField(null=True, verbose_name="moved at")),
            ],
        ),
        CreateIndexes(
            "message",
            [
                models.Index(
                    condition=models.Q(("fingerprint__isnull", False)),
                    fields=["fingerprint", "died_at", "id"],
                    name="deadletter_dead_group",
                ),
                models.Index(
                    condition=models.Q(("died_at__isnull", False)),
                    fields=["queue", "died_at", "id"],
                    name="deadletter_dead_time",
                ),
                models.Index(
                    JSONFact("death", key="origin"),
                    JSONFact("death", key="source_id"),
                    condition=models.Q(("death__isnull", False)),
                    name="deadletter_dead_origin",
                ),
                models.UniqueConstraint(
                    condition=models.Q(("origin", None), ("source_id__isnull", False)),
                    fields=("queue", "source_id"),
                    name="deadletter_message_moved",
                ),
                models.UniqueConstraint(
                    condition=models.Q(("origin__isnull", False)),
                    fields=("queue", "origin", "source_id"),
                    name="deadletter_message_origin",
                ),
            ],
        ),
        CreateIndexes(
            "poisonrecord",
            [
                models.Index(
                    condition=models.Q(("origin", None), _negated=True),
                    fields=["queue", "origin", "source_id"],
                    name="deadletter_poison_origin",
                ),
                models.Index(
                    condition=models.Q(("origin", None), ("source_id__isnull", False)),
                    fields=["source_id"],
                    name="deadletter_poison_moved",
                ),
                models.Index(
                    JSONFact("death", key="origin"),
                    JSONFact("death", key="source_id"),
                    condition=models.Q(("death__isnull", False)),
                    name="deadletter_poison_dead_origin",
                ),
            ],
        ),
        DropIndexes(
            "message",
            [
                models.UniqueConstraint(
                    condition=models.Q(("source_id__isnull", False)),
                    fields=("queue", "source_id"),
                    name="deadletter_message_source",
                ),
            ],
        ),
        ForgetOrigins("poisonrecord"),
        ForgetOrigins("message"),
        InOneTransaction(
            [
                migrations.AddField(
                    model_name="queue",
                    name="reason_policies",
                    field=models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text=(
                            "What differs for one failure reason, for example "
                            '{"TRANSPORT_UNAVAILABLE": {"max_attempts": 20, "backoff_base": 5}}.'
                        ),
                        verbose_name="policies by reason",
                    ),
                ),
                migrations.AddField(
                    model_name="queue",
                    name="unregistered_attempts",
                    field=models.PositiveIntegerField(
                        blank=True,
                        help_text=(
                            "How often a message whose name no worker knows is put off before it "
                            "is dead. Empty: as often as max attempts."
                        ),
                        null=True,
                        validators=[MaxValueValidator(1000000)],
                        verbose_name="unregistered attempts",
                    ),
                ),
                migrations.AddField(
                    model_name="workerprocess",
                    name="handlers",
                    field=models.JSONField(db_default=[], default=list, verbose_name="handlers"),
                ),
                migrations.AddField(
                    model_name="auditentry",
                    name="payload_after",
                    field=models.TextField(null=True, verbose_name="payload after"),
                ),
                migrations.AddField(
                    model_name="auditentry",
                    name="payload_before",
                    field=models.TextField(null=True, verbose_name="payload before"),
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
                        ],
                        max_length=16,
                        verbose_name="act",
                    ),
                ),
                migrations.CreateModel(
                    name="WorkerDeath",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        ("name", models.CharField(max_length=200, verbose_name="name")),
                        ("host", models.CharField(max_length=200, verbose_name="host")),
                        ("pid", models.PositiveIntegerField(verbose_name="process id")),
                        ("died_at", models.DateTimeField(verbose_name="died at")),
                        (
                            "signal",
                            models.PositiveSmallIntegerField(null=True, verbose_name="signal"),
                        ),
                        ("exit_code", models.IntegerField(null=True, verbose_name="exit code")),
                        (
                            "peak_memory",
                            models.BigIntegerField(null=True, verbose_name="peak memory"),
                        ),
                        ("held", models.JSONField(default=list, verbose_name="held")),
                        (
                            "successor",
                            models.CharField(blank=True, max_length=200, verbose_name="successor"),
                        ),
                    ],
                    options={
                        "verbose_name": "worker death",
                        "verbose_name_plural": "worker deaths",
                        "db_table": "deadletter_worker_death",
                        "ordering": ("-id",),
                        "default_permissions": (),
                    },
                ),
                migrations.AddIndex(
                    model_name="workerdeath",
                    index=models.Index(fields=["died_at", "id"], name="deadletter_worker_died"),
                ),
            ]
        ),
        CreateIndexes(
            "auditentry",
            [
                models.Index(
                    condition=models.Q(("payload_after__isnull", False)),
                    fields=["at", "id"],
                    name="deadletter_audit_payloads",
                ),
            ],
        ),
    ]
