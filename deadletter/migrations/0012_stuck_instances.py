from django.db import migrations, models


class Migration(migrations.Migration):
    """
    A mark for instances that wait for what was lost.

    Safe beside running workers, also older ones: the column is nullable, so no row is rewritten and
    no INSERT has to name it; the lock on the table of instances lasts for the change of the
    catalogue. The index is empty at first; building it reads that table once under a lock that
    lets readers through. The table of messages is not touched.
    """

    dependencies = [
        ("deadletter", "0011_priority_range"),
    ]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="stuck_since",
            field=models.DateTimeField(null=True, verbose_name="stuck since"),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("stuck_since__isnull", False)),
                fields=["stuck_since", "id"],
                name="deadletter_instance_stuck",
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
                ],
                max_length=32,
                verbose_name="rule",
            ),
        ),
    ]
