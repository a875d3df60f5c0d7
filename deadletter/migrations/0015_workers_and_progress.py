"""
What a result needs of a message: the workers of its attempts, and the progress of its handler.

Safe beside a busy table of messages: the new columns are nullable and have no default, so that only
the catalogue changes, under a lock that is asked for half a second at a time. A migration that was
interrupted can be run again. Workers of the release before go on beside it.
"""

from __future__ import annotations

from django.db import migrations, models

from ._busy_table import AddColumns


class Migration(migrations.Migration):
    # Each step commits by itself.
    atomic = False
    dependencies = [("deadletter", "0014_results")]

    operations = [
        AddColumns(
            "message",
            [
                ("workers", models.JSONField(blank=True, null=True, verbose_name="workers")),
                ("progress", models.JSONField(blank=True, null=True, verbose_name="progress")),
            ],
        ),
        AddColumns(
            "poisonrecord",
            [
                ("workers", models.JSONField(null=True, verbose_name="workers")),
                ("progress", models.JSONField(null=True, verbose_name="progress")),
            ],
        ),
    ]
