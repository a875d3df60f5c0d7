"""
Keep the hot table fast on PostgreSQL.

Every message is inserted, updated by its claim and deleted, so dead rows arrive at three times the
message rate. The defaults (vacuum after 20 % of the table) are made for tables that grow; this one
should be vacuumed after so many rows, whatever its size. fillfactor stays 100: a claim changes an
indexed column, so room for HOT updates would only be empty space.
"""

from __future__ import annotations

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

OPTIONS = {
    "fillfactor": "100",
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_vacuum_insert_scale_factor": "0",
    "autovacuum_vacuum_insert_threshold": "50000",
    "autovacuum_analyze_scale_factor": "0",
    "autovacuum_analyze_threshold": "50000",
    "autovacuum_vacuum_cost_delay": "0",
    "toast.autovacuum_vacuum_scale_factor": "0",
    "toast.autovacuum_vacuum_threshold": "10000",
    "toast.autovacuum_vacuum_cost_delay": "0",
}


def tune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        options = ", ".join(f"{name} = {value}" for name, value in OPTIONS.items())
        schema_editor.execute(f"ALTER TABLE deadletter_message SET ({options})")


def untune(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER TABLE deadletter_message RESET ({', '.join(OPTIONS)})")


class Migration(migrations.Migration):
    dependencies = [("deadletter", "0001_initial")]

    operations = [migrations.RunPython(tune, untune, elidable=False)]
