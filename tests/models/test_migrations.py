from __future__ import annotations

import importlib
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext

from deadletter import operations, send
from deadletter.lifecycle import Failure, claim, complete, fail, release
from deadletter.models import Message, Queue
from deadletter.operations import import_messages

pytestmark = pytest.mark.slow

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


MIGRATION = importlib.import_module("deadletter.migrations.0011_priority_range")


@pytest.fixture
def back_to_0010(transactional_db) -> Iterator[None]:
    """The schema before 0011. What is there now was made by the code of today, before."""
    one_of_each()
    call_command("migrate", "deadletter", "0010", verbosity=0)
    yield
    call_command("migrate", "deadletter", verbosity=0)


def refuses(priority: int) -> bool:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("UPDATE deadletter_message SET priority = %s", [priority])
                cursor.execute("UPDATE deadletter_poison SET priority = %s", [priority])
            transaction.set_rollback(True)
    except IntegrityError:
        return True
    return False


def one_of_each() -> None:
    """A message and a poison record, with what the range must not touch."""
    message = send("m", {"a": 1}, priority=9, key="k", stream="s")
    poison = send("m", priority=0)
    batch = claim()
    fail(batch.token, [Failure(poison.id, permanent=True)])
    release(batch.token, [message.id])


def stored() -> list[dict[str, object]]:
    """Every message and poison record, column by column."""
    rows = []
    with connection.cursor() as cursor:
        for table in ("deadletter_message", "deadletter_poison"):
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            names = [column[0] for column in cursor.description]
            rows += [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return rows


def test_the_range_of_priorities_grows_and_shrinks_with_rows_in_place(back_to_0010):
    before = stored()
    narrow = [refuses(priority) for priority in (-1, 0, 9, 10)]

    call_command("migrate", "deadletter", "0011", verbosity=0)
    wide = [refuses(priority) for priority in (-101, -100, -1, 0, 9, 10, 100)]
    same = stored()
    call_command("migrate", "deadletter", "0010", verbosity=0)
    again = [refuses(priority) for priority in (-1, 0, 9, 10)]

    assert narrow == again == [True, False, False, True]
    assert wide == [True, False, False, False, False, False, False]
    assert same == before


@pytest.mark.postgresql_only(reason="SQLite copies the table")
def test_the_new_check_is_validated_and_the_migration_may_be_run_twice(back_to_0010):
    call_command("migrate", "deadletter", "0011", verbosity=0)
    # As after a crash between the last step and the record of the migration.
    MigrationRecorder(connection).record_unapplied("deadletter", "0011_priority_range")
    call_command("migrate", "deadletter", "0011", verbosity=0)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname, convalidated FROM pg_constraint WHERE contype = 'c'"
            " AND conrelid IN ('deadletter_message'::regclass, 'deadletter_poison'::regclass)"
            " AND pg_get_constraintdef(oid) LIKE '%priority%'"
        )
        assert cursor.fetchall() == [("deadletter_message_priority", True)]


@pytest.mark.postgresql_only(reason="SQLite has no lock timeout")
def test_a_long_transaction_does_not_make_everybody_wait_for_the_migration(
    back_to_0010, monkeypatch
):
    """It gives way again and again, so that others get through; then it says what to do."""
    monkeypatch.setattr(MIGRATION, "TRIES", 3)
    monkeypatch.setattr(MIGRATION, "PAUSE", 0.01)
    monkeypatch.setattr(MIGRATION, "LOCK_TIMEOUT", "100ms")
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM deadletter_message")

    with pytest.raises(OperationalError, match="run migrate again"):
        call_command("migrate", "deadletter", "0011", verbosity=0)
    [message] = Message.objects.values_list("id", flat=True)
    other.rollback()
    other.close()
    call_command("migrate", "deadletter", verbosity=0)

    assert claim().ids == [message]
    assert not refuses(-100)


@pytest.mark.parametrize("is_late", [False, True], ids=["there before", "sent meanwhile"])
def test_a_way_back_that_is_refused_leaves_every_message_to_be_handled(
    back_to_0010, monkeypatch, is_late
):
    """A check that was added, and could not be validated, would refuse the claim of such a row."""
    call_command("migrate", "deadletter", "0011", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_message SET priority = -50")
    if is_late:
        monkeypatch.setattr(MIGRATION, "_refuse_what_would_be_left_behind", lambda editor: None)

    with pytest.raises(IntegrityError):
        call_command("migrate", "deadletter", "0010", verbosity=0)

    call_command("migrate", "deadletter", verbosity=0)
    batch = claim()
    assert len(batch.ids) == 1
    complete(batch.token, batch.ids)
    assert not refuses(-100)


BUSY = importlib.import_module("deadletter.migrations._busy_table")
#: What 0013 adds to messages, and to poison records.
NEW = {
    "reason_counts",
    "unregistered_count",
    "unregistered_at",
    "origin",
    "death",
    "fingerprint",
    "died_at",
}
NEW_OF_POISON = {"origin", "death", "moved_at"}


@pytest.fixture
def back_to_0012(transactional_db) -> Iterator[None]:
    one_of_each()
    call_command("migrate", "deadletter", "0012", verbosity=0)
    yield
    call_command("migrate", "deadletter", verbosity=0)


def test_the_columns_of_the_rules_come_and_go_with_rows_in_place(back_to_0012):
    before = stored()

    call_command("migrate", "deadletter", "0013", verbosity=0)
    after = stored()
    call_command("migrate", "deadletter", "0012", verbosity=0)

    assert len(before) == 2
    assert stored() == before
    kept = [{name: new[name] for name in old} for old, new in zip(before, after, strict=True)]
    assert kept == before
    added = [new.keys() - old.keys() for old, new in zip(before, after, strict=True)]
    assert added == [NEW, NEW_OF_POISON]
    assert all(new[name] is None for names, new in zip(added, after, strict=True) for name in names)


def test_imported_messages_are_not_in_the_way_back(transactional_db):
    rows = [{"message_id": 7, "name": "mail", "payload": None}]
    for origin in ("x", "y"):
        import_messages(rows, origin=origin, queue="default")
    operations.poison(list(Message.objects.values_list("pk", flat=True)[:1]), why="a test")
    import_messages(rows, origin="z", queue="default")
    try:
        call_command("migrate", "deadletter", "0012", verbosity=0)
        with connection.cursor() as cursor:
            found = []
            for table in ("deadletter_message", "deadletter_poison"):
                cursor.execute(f"SELECT source_id FROM {table}")
                found += cursor.fetchall()
    finally:
        call_command("migrate", "deadletter", verbosity=0)

    # An older release would take the id for the one that a message had in another queue.
    assert found == [(None,)] * 3


RULES = importlib.import_module("deadletter.migrations.0013_rules").Migration


def schema() -> dict[str, tuple[set[str], dict[str, object]]]:
    """The columns, indexes and constraints of each table."""
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if not table.startswith("deadletter_"):
                continue
            columns = connection.introspection.get_table_description(cursor, table)
            parts = connection.introspection.get_constraints(cursor, table)
            found[table] = (
                {column.name for column in columns},
                {
                    # The names of checks on columns are SQLite's to choose.
                    name: part["columns"]
                    for name, part in parts.items()
                    if not name.startswith("__")
                },
            )
    return found


@pytest.mark.parametrize("place", range(len(RULES.operations)))
def test_the_migration_of_the_rules_may_be_run_again_after_a_crash(
    transactional_db, monkeypatch, place
):
    """It commits step by step, both ways: what is done already is not in the way."""
    one_of_each()
    new = schema()

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    def migrate_twice(target: str, way: str) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(RULES.operations[place], f"database_{way}", crash)
            with pytest.raises(KeyboardInterrupt):
                call_command("migrate", "deadletter", target, verbosity=0)
        call_command("migrate", "deadletter", target, verbosity=0)

    try:
        migrate_twice("0012", "backwards")
        old = schema()
        migrate_twice("0013", "forwards")
    finally:
        call_command("migrate", "deadletter", verbosity=0)

    assert schema() == new
    assert len(claim().ids) == 1
    added = {
        table: sorted((columns - old[table][0]) | (parts.keys() - old[table][1].keys()))
        for table, (columns, parts) in new.items()
        if table in old
    }
    assert NEW | {"deadletter_dead_origin"} <= set(added["deadletter_message"])
    assert "deadletter_message_source" in old["deadletter_message"][1]
    assert {"payload_after", "payload_before", "deadletter_audit_payloads"} <= set(
        added["deadletter_audit"]
    )
    # Others are of later migrations.
    assert "deadletter_worker_death" in new.keys() - old.keys()


@pytest.mark.postgresql_only(reason="SQLite has no lock timeout")
def test_the_migration_of_the_rules_gives_way_to_a_long_transaction(back_to_0012, monkeypatch):
    monkeypatch.setattr(BUSY, "TRIES", 3)
    monkeypatch.setattr(BUSY, "PAUSE", 0.01)
    monkeypatch.setattr(BUSY, "LOCK_TIMEOUT", "100ms")
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM deadletter_message")

    with pytest.raises(OperationalError, match="run migrate again"):
        call_command("migrate", "deadletter", "0013", verbosity=0)
    other.rollback()
    other.close()
    call_command("migrate", "deadletter", verbosity=0)

    assert len(claim().ids) == 1


@pytest.mark.postgresql_only(reason="SQLite builds an index under its one write lock")
def test_the_indexes_of_messages_are_built_while_others_write(back_to_0012):
    with CaptureQueriesContext(connection) as queries:
        call_command("migrate", "deadletter", "0013", verbosity=0)

    built = [query["sql"] for query in queries if "INDEX" in query["sql"]]
    of_messages = [sql for sql in built if 'ON "deadletter_message"' in sql]
    assert len(of_messages) == 5
    assert all("CONCURRENTLY" in sql for sql in of_messages)


@pytest.mark.django_db(transaction=True, databases=["default", ALIAS])
def test_an_empty_database_can_be_migrated_to_an_older_schema():
    """Queues that the settings declare are made by the schema of this code, at its end."""
    try:
        call_command("migrate", "deadletter", "zero", database=ALIAS, verbosity=0)
        call_command("migrate", "deadletter", "0012", database=ALIAS, verbosity=0)
        before = tables()
    finally:
        call_command("migrate", "deadletter", database=ALIAS, verbosity=0)

    assert before >= TABLES
    assert Queue.objects.using(ALIAS).filter(name="default").exists()
