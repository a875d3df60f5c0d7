"""The rule of alerts for groups that came back; choices are not in the database."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deadletter", "0022_groups_of_audits")]

    operations = [
        migrations.AlterField(
            model_name="alert",
            name="rule",
            field=models.CharField(
                choices=[
                    ("new_group", "a new cause of death"),
                    ("regressed_group", "a cause came back after it was resolved"),
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
    ]
