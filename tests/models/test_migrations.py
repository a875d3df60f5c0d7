from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections

from deadletter.models import Queue

ALIAS = "second"
TABLES = {"deadletter_message", "deadletter_poison", "deadletter_queue"}


def tables() -> set[str]:
    names = connections[ALIAS].introspection.table_names()
    return {name for name in names if name.startswith("deadletter_")}


def test_no_migration_is_missing(db):
    call_command("makemigrations", "deadletter", check=True, dry_run=True, stdout=StringIO())


@pytest.mark.django_db(transaction=True, databases=["default", ALIAS])
def test_the_migrations_can_be_undone_and_done_again():
    try:
        call_command("migrate", "deadletter", "zero", database=ALIAS, verbosity=0)
        undone = tables()
    finally:
        call_command("migrate", "deadletter", database=ALIAS, verbosity=0)

    assert undone == set()
    assert tables() >= TABLES
    assert Queue.objects.using(ALIAS).filter(name="default").exists()


@pytest.mark.postgresql_only(reason="SQLite has no storage parameters")
def test_the_hot_table_is_vacuumed_by_count_not_by_share(db):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = 'deadletter_message'")
        options = cursor.fetchone()[0]

    assert "autovacuum_vacuum_scale_factor=0" in options
    assert "autovacuum_vacuum_threshold=10000" in options


@pytest.mark.postgresql_only(reason="SQLite locks the whole file anyway")
def test_a_message_has_no_foreign_key_that_would_lock_its_queue_row(db):
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_constraint WHERE contype = 'f'"
            " AND conrelid = 'deadletter_message'::regclass"
        )
        assert cursor.fetchone() == (0,)
