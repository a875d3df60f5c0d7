"""
The release of the application on poison records and workers, and the acts on failure groups.

Safe beside a busy table: the new columns have a constant default, so that only the catalogue
changes, under a lock that is asked for half a second at a time; SQLite rewrites no row either. A
migration that was interrupted can be run again. Workers of the release before go on beside it.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from ._busy_table import AddColumns

_RELEASE: dict[str, Any] = {
    "blank": True,
    "db_default": "",
    "default": "",
    "max_length": 100,
    "verbose_name": "release",
}


class Migration(migrations.Migration):
    # Each step commits by itself.
    atomic = False
    dependencies = [("deadletter", "0020_failure_groups")]

    operations = [
        AddColumns("poisonrecord", [("release", models.CharField(**_RELEASE))]),
        AddColumns("workerprocess", [("release", models.CharField(**_RELEASE))]),
        # Choices are not part of the column: the table of the audit is not touched.
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
                    ("hold_breaker", "hold a message name"),
                    ("reset_breaker", "reset a circuit breaker"),
                    ("ack_group", "acknowledge a failure group"),
                    ("mute_group", "mute a failure group"),
                    ("resolve_group", "resolve a failure group"),
                    ("reopen_group", "reopen a failure group"),
                    ("assign_group", "assign a failure group"),
                    ("ticket_group", "link a ticket to a failure group"),
                    ("note_group", "write a note on a failure group"),
                    ("merge_group", "merge failure groups"),
                    ("split_group", "split a merged failure group off"),
                ],
                max_length=16,
                verbose_name="act",
            ),
        ),
    ]
