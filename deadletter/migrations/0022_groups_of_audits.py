"""An index for the acts on the messages of a failure group; the table may be large and in use."""

from django.db import migrations, models
from django.db.models import Q

from ._busy_table import CreateIndexes


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("deadletter", "0021_releases"),
    ]

    operations = [
        CreateIndexes(
            "auditedmessage",
            [
                models.Index(
                    fields=["fingerprint", "entry"],
                    name="deadletter_audited_group",
                    condition=~Q(fingerprint=""),
                ),
            ],
        ),
    ]
