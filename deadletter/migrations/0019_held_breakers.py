"""A person can hold a message name: who and why, beside the breakers that workers open."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deadletter", "0018_schedules"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="breaker",
            options={
                "ordering": ("name",),
                "permissions": (("hold_breaker", "Can hold and reset circuit breakers"),),
                "verbose_name": "circuit breaker",
                "verbose_name_plural": "circuit breakers",
            },
        ),
        migrations.AddField(
            model_name="breaker",
            name="is_held",
            field=models.BooleanField(
                db_default=False, default=False, verbose_name="held by a person"
            ),
        ),
        migrations.AddField(
            model_name="breaker",
            name="why",
            field=models.TextField(blank=True, db_default="", default="", verbose_name="why"),
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
                    ("hold_breaker", "hold a message name"),
                    ("reset_breaker", "reset a circuit breaker"),
                ],
                max_length=16,
                verbose_name="act",
            ),
        ),
    ]
