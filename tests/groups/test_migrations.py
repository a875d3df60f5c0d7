"""The migrations of failure groups: safe beside rows and workers of the release before."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter.lifecycle import Failure, claim, enqueue, fail
from deadletter.models import Message, PoisonRecord, Queue

RELEASES = importlib.import_module("deadletter.migrations.0021_releases").Migration
#: The first migration, and the one before it.
BEFORE, LAST = "0019", "0021"


@pytest.fixture
def back(transactional_db) -> Iterator[None]:
    """A poison record, and a database of the release before."""
    Queue.objects.create(name="q", max_attempts=1)
    enqueue.send("mail", {}, queue="q")
    batch = claim(["q"])
    fail(batch.token, [Failure(batch.ids[0], error="boom", release="2.7.0")])
    assert Message.objects.count() == 0
    call_command("migrate", "deadletter", BEFORE, verbosity=0)
    yield
    call_command("migrate", "deadletter", verbosity=0)


def columns(table: str) -> dict[str, bool]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_description(cursor, table)
    return {column.name: column.null_ok for column in found}


def forward() -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        call_command("migrate", "deadletter", LAST, verbosity=0)
    return [query["sql"] for query in queries.captured_queries]


def test_the_columns_come_and_go_with_rows_in_place(back):
    assert "release" not in columns("deadletter_poison")
    forward()

    assert columns("deadletter_poison")["release"] is False
    assert columns("deadletter_worker")["release"] is False
    call_command("migrate", "deadletter", verbosity=0)
    assert PoisonRecord.objects.get().release == ""


def test_no_row_is_written_again(back):
    statements = forward()

    of_poison = [text for text in statements if "deadletter_poison" in text]
    read = ("SELECT", "PRAGMA")
    changes = [text for text in of_poison if not text.strip().startswith(read)]
    (change,) = changes
    assert change.startswith('ALTER TABLE "deadletter_poison" ADD COLUMN')
    assert "DEFAULT '' NOT NULL" in change
    assert not [text for text in statements if "deadletter_audit_entry" in text]


def test_a_record_of_the_release_before_has_no_release(back):
    forward()
    names = [name for name in columns("deadletter_poison") if name not in ("id", "release")]
    listed = ", ".join(f'"{name}"' for name in names)
    values = listed.replace('"message_id"', '"message_id" + 1')
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO deadletter_poison ({listed}) SELECT {values} FROM deadletter_poison"
        )

    call_command("migrate", "deadletter", verbosity=0)
    assert [*PoisonRecord.objects.values_list("release", flat=True)] == ["", ""]


@pytest.mark.parametrize("place", range(len(RELEASES.operations)))
@pytest.mark.parametrize("way", ["forwards", "backwards"])
def test_an_interrupted_migration_can_be_run_again(back, monkeypatch, place, way):
    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    if way == "backwards":
        forward()
    target = LAST if way == "forwards" else BEFORE
    with monkeypatch.context() as broken:
        broken.setattr(RELEASES.operations[place], f"database_{way}", crash)
        with pytest.raises(KeyboardInterrupt):
            call_command("migrate", "deadletter", target, verbosity=0)
    call_command("migrate", "deadletter", target, verbosity=0)

    assert ("release" in columns("deadletter_poison")) == (way == "forwards")
    assert ("release" in columns("deadletter_worker")) == (way == "forwards")


def test_a_column_without_a_constant_default_is_refused(transactional_db):
    from django.db import models

    from deadletter.migrations._busy_table import _with_default

    field = models.TextField()
    field.set_attributes_from_name("x")
    with connection.schema_editor() as editor, pytest.raises(TypeError, match="constant default"):
        _with_default(editor, field)
