"""
Priorities from -100 (first) to 100 instead of 0 to 9.

On PostgreSQL the checks are replaced in three steps, each a transaction of its own:

1. `deadletter_message`: drop the old checks, add the new one without validating it. ACCESS
   EXCLUSIVE, for about a millisecond whatever the size of the table. To get it the statement waits
   for the transactions that use the table, and everybody else waits behind it; so it waits half a
   second at most, gives way, and tries again after a second.
2. Validate the new check. SHARE UPDATE EXCLUSIVE: reads the table once, and nobody who sends,
   claims or settles waits for it. Measured with 10,000,000 messages: see docs/performance.md.
3. `deadletter_poison`: drop the old check, like step 1.

A migration that was interrupted can be run again. SQLite copies both tables once, under its write
lock.

Older code goes on working with the new checks: it stores and claims 0 to 9, and does not see
messages of other priorities. So update all workers before the first producer uses the new range.
Backwards, what is outside 0 to 9 is refused, and the checks stay as they are: let such messages be
handled first.
"""

from __future__ import annotations

import time
from typing import Any

from django.db import IntegrityError, OperationalError, migrations, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

#: How long one try may keep others waiting behind it, the seconds between two, and how many.
LOCK_TIMEOUT, PAUSE, TRIES = "500ms", 1.0, 120
#: SQLSTATE of a lock that was not available in time.
_NOT_AVAILABLE = "55P03"

WIDE = models.Q(priority__gte=-100, priority__lte=100)

FORWARDS = (
    """
    ALTER TABLE deadletter_message
        DROP CONSTRAINT IF EXISTS deadletter_message_priority_check,
        DROP CONSTRAINT IF EXISTS deadletter_message_priority,
        ADD CONSTRAINT deadletter_message_priority
            CHECK (priority >= -100 AND priority <= 100) NOT VALID
    """,
    "ALTER TABLE deadletter_message VALIDATE CONSTRAINT deadletter_message_priority",
    "ALTER TABLE deadletter_poison DROP CONSTRAINT IF EXISTS deadletter_poison_priority_check",
)
BACKWARDS = (
    """
    ALTER TABLE deadletter_message
        DROP CONSTRAINT IF EXISTS deadletter_message_priority_check,
        DROP CONSTRAINT IF EXISTS deadletter_message_priority,
        ADD CONSTRAINT deadletter_message_priority
            CHECK (priority >= 0 AND priority <= 9) NOT VALID,
        ADD CONSTRAINT deadletter_message_priority_check CHECK (priority >= 0) NOT VALID
    """,
    """
    ALTER TABLE deadletter_message
        VALIDATE CONSTRAINT deadletter_message_priority,
        VALIDATE CONSTRAINT deadletter_message_priority_check
    """,
    """
    ALTER TABLE deadletter_poison
        DROP CONSTRAINT IF EXISTS deadletter_poison_priority_check,
        ADD CONSTRAINT deadletter_poison_priority_check CHECK (priority >= 0) NOT VALID
    """,
    "ALTER TABLE deadletter_poison VALIDATE CONSTRAINT deadletter_poison_priority_check",
)


class WidenPriority(Operation):
    """Alter the two columns and the constraint: in one copy of each table on SQLite."""

    reversible = True
    reduces_to_sql = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        state.alter_field(
            app_label,
            "message",
            "priority",
            models.SmallIntegerField(db_default=0, default=0, verbose_name="priority"),
            preserve_default=True,
        )
        state.alter_field(
            app_label,
            "poisonrecord",
            "priority",
            models.SmallIntegerField(default=0, verbose_name="priority"),
            preserve_default=True,
        )
        name = "deadletter_message_priority"
        state.remove_constraint(app_label, "message", name)
        state.add_constraint(
            app_label, "message", models.CheckConstraint(condition=WIDE, name=name)
        )

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._alter(app_label, schema_editor, from_state, to_state, FORWARDS)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        is_postgresql = schema_editor.connection.vendor == "postgresql"
        if is_postgresql:
            _refuse_what_would_be_left_behind(schema_editor)
        try:
            self._alter(app_label, schema_editor, from_state, to_state, BACKWARDS)
        except IntegrityError as error:
            if not is_postgresql:
                raise
            # Sent since it was looked at. A check that is not validated refuses every change of
            # such a message all the same, and with it the claim that would have it handled.
            self._alter(app_label, schema_editor, to_state, from_state, FORWARDS)
            raise IntegrityError(_LEFT_BEHIND) from error

    def describe(self) -> str:
        return "Alter priority of message and poisonrecord to the range of -100 to 100"

    @property
    def migration_name_fragment(self) -> str:
        return "priority_range"

    def _alter(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
        statements: tuple[str, ...],
    ) -> None:
        if not self.allow_migrate_model(
            schema_editor.connection.alias, to_state.apps.get_model(app_label, "message")
        ):
            return
        if schema_editor.connection.vendor == "postgresql":
            for statement in statements:
                _execute_patiently(schema_editor, statement)
            return
        with transaction.atomic(schema_editor.connection.alias):
            for name in ("message", "poisonrecord"):
                before: Any = from_state.apps.get_model(app_label, name)
                after: Any = to_state.apps.get_model(app_label, name)
                # The copy is made with the constraints of the model that it is given.
                before._meta.constraints = after._meta.constraints
                old, new = before._meta.get_field("priority"), after._meta.get_field("priority")
                schema_editor.alter_field(before, old, new)


_LEFT_BEHIND = (
    "deadletter: there are messages or poison records with a priority outside 0 to 9; let them be "
    "handled, or remove them, and run migrate again"
)


def _refuse_what_would_be_left_behind(schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Raises: IntegrityError, before anything is changed."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM deadletter_message WHERE priority NOT BETWEEN 0 AND 9)"
            " OR EXISTS (SELECT FROM deadletter_poison WHERE priority < 0)"
        )
        if cursor.fetchone()[0]:
            raise IntegrityError(_LEFT_BEHIND)


def _execute_patiently(schema_editor: BaseDatabaseSchemaEditor, statement: str) -> None:
    """
    Execute a statement that needs a lock on a busy table without making others wait for long.

    Raises: OperationalError when the table is in use all the time.
    """
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(schema_editor.connection.alias):
                schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                schema_editor.execute(statement)
            return
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != _NOT_AVAILABLE:
                raise
            if not left:
                raise OperationalError(
                    f"deadletter: a transaction has used the table for {TRIES} tries of "
                    f"{LOCK_TIMEOUT}; end it (see pg_stat_activity) and run migrate again"
                ) from error
        time.sleep(PAUSE)


class Migration(migrations.Migration):
    # Each step commits by itself: together they would hold the first one's lock.
    atomic = False
    dependencies = [("deadletter", "0010_cancelling")]

    operations = [WidenPriority()]
