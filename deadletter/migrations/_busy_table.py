"""Operations for tables that are in use and may be large: nobody waits for them for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import OperationalError, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddField, SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

#: How long one try may keep others waiting behind it, the seconds between two, and how many.
LOCK_TIMEOUT, PAUSE, TRIES = "500ms", 1.0, 120
#: SQLSTATE of a lock that was not available in time.
_NOT_AVAILABLE = "55P03"


class AddColumns(Operation):
    """
    Add columns to one table that are nullable, or have a constant default in the database.

    On PostgreSQL in one statement, which changes the catalogue alone and waits half a second at
    most for its lock, again and again. A column that is there already is left as it is: the
    migration may have been interrupted.
    """

    reversible = True
    reduces_to_sql = False

    def __init__(self, model_name: str, fields: Sequence[tuple[str, models.Field[Any, Any]]]):
        self.model_name = model_name
        self.fields = list(fields)

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        for name, field in self.fields:
            state.add_field(app_label, self.model_name, name, field, True)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model: Any = to_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        fields = [model._meta.get_field(name) for name, _field in self.fields]
        if schema_editor.connection.vendor != "postgresql":
            before: Any = from_state.apps.get_model(app_label, self.model_name)
            there = _columns(schema_editor, model._meta.db_table)
            with transaction.atomic(schema_editor.connection.alias):
                for field in fields:
                    if field.column in there:
                        continue
                    if field.null:
                        schema_editor.add_field(before, field)
                    else:
                        # add_field would write every row again.
                        table = schema_editor.quote_name(model._meta.db_table)
                        column = _with_default(schema_editor, field)
                        schema_editor.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            return
        quote = schema_editor.quote_name
        columns = ", ".join(
            f"ADD COLUMN IF NOT EXISTS {quote(field.column)} "
            f"{field.db_type(schema_editor.connection)} NULL"
            if field.null
            else f"ADD COLUMN IF NOT EXISTS {_with_default(schema_editor, field)}"
            for field in fields
        )
        execute_patiently(schema_editor, f"ALTER TABLE {quote(model._meta.db_table)} {columns}")

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model: Any = from_state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        fields = [model._meta.get_field(name) for name, _field in self.fields]
        if schema_editor.connection.vendor != "postgresql":
            there = _columns(schema_editor, model._meta.db_table)
            with transaction.atomic(schema_editor.connection.alias):
                for field in fields:
                    if field.column in there:
                        schema_editor.remove_field(model, field)
            return
        quote = schema_editor.quote_name
        columns = ", ".join(f"DROP COLUMN IF EXISTS {quote(field.column)}" for field in fields)
        execute_patiently(schema_editor, f"ALTER TABLE {quote(model._meta.db_table)} {columns}")

    def describe(self) -> str:
        names = ", ".join(name for name, _field in self.fields)
        return f"Add {names} to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.model_name}_columns"


def _with_default(schema_editor: BaseDatabaseSchemaEditor, field: Any) -> str:
    """Return the definition of a column whose default is a constant of the database."""
    default = field.db_default
    if isinstance(default, models.Value):
        default = default.value
    if default is models.NOT_PROVIDED or isinstance(default, models.Expression):
        raise TypeError(f"{field.name} is not nullable and has no constant default")
    name, kind = schema_editor.quote_name(field.column), field.db_type(schema_editor.connection)
    return f"{name} {kind} DEFAULT {schema_editor.quote_value(default)} NOT NULL"


class _Indexes(Operation):
    """Create or drop indexes and unique constraints, on PostgreSQL concurrently."""

    reversible = True
    reduces_to_sql = False

    def __init__(
        self, model_name: str, parts: Sequence[models.Index | models.UniqueConstraint]
    ) -> None:
        self.model_name = model_name
        self.parts = list(parts)

    def _add_to(self, app_label: str, state: ProjectState) -> None:
        for part in self.parts:
            if isinstance(part, models.Index):
                state.add_index(app_label, self.model_name, part)
            else:
                state.add_constraint(app_label, self.model_name, part)

    def _remove_from(self, app_label: str, state: ProjectState) -> None:
        for part in self.parts:
            if isinstance(part, models.Index):
                state.remove_index(app_label, self.model_name, part.name)
            else:
                state.remove_constraint(app_label, self.model_name, part.name)

    def _create(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: Any) -> None:
        model: Any = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(editor.connection.alias, model):
            return
        for part in self.parts:
            # One that an interrupted migration left behind may not be valid.
            self._drop_index(editor, part)
            if editor.connection.vendor == "postgresql":
                statement = str(part.create_sql(model, editor))
                words = "CREATE UNIQUE INDEX" if "UNIQUE" in statement[:20] else "CREATE INDEX"
                editor.execute(statement.replace(words, f"{words} CONCURRENTLY", 1), params=None)
            elif isinstance(part, models.Index):
                editor.add_index(model, part)
            else:
                editor.add_constraint(model, part)

    def _drop(self, app_label: str, editor: BaseDatabaseSchemaEditor, state: Any) -> None:
        model: Any = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(editor.connection.alias, model):
            return
        for part in self.parts:
            self._drop_index(editor, part)

    def _drop_index(
        self, editor: BaseDatabaseSchemaEditor, part: models.Index | models.UniqueConstraint
    ) -> None:
        # A unique constraint with a condition is an index on both databases.
        how = "CONCURRENTLY" if editor.connection.vendor == "postgresql" else ""
        name = editor.quote_name(part.name)
        editor.execute(f"DROP INDEX {how} IF EXISTS {name}", params=None)

    def _names(self) -> str:
        return ", ".join(part.name for part in self.parts)


class CreateIndexes(_Indexes):
    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        self._add_to(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._create(app_label, schema_editor, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._drop(app_label, schema_editor, from_state)

    def describe(self) -> str:
        return f"Create {self._names()} on {self.model_name}"


class DropIndexes(_Indexes):
    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        self._remove_from(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._drop(app_label, schema_editor, from_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._create(app_label, schema_editor, to_state)

    def describe(self) -> str:
        return f"Drop {self._names()} of {self.model_name}"


class ForgetOrigins(Operation):
    """
    On the way back, take the ids of other systems from imported messages.

    An older release takes them for ids of its own, each of which a queue has once.
    """

    reversible = True
    reduces_to_sql = False

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        pass

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        pass

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model: Any = from_state.apps.get_model(app_label, self.model_name)
        alias = schema_editor.connection.alias
        if not self.allow_migrate_model(alias, model):
            return
        # It may have been interrupted after the column was dropped.
        if "origin" in _columns(schema_editor, model._meta.db_table):
            rows = model._base_manager.using(alias).filter(origin__isnull=False)
            rows.update(source_id=None)

    def describe(self) -> str:
        return f"Forget the origins of {self.model_name} on the way back"


class InOneTransaction(SeparateDatabaseAndState):
    """
    Operations on small tables that are done together, without making others wait for long.

    The first adds a field: where its column is, all of them are done, and nothing is done again
    after an interruption.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        if not isinstance(operations[0], AddField):
            raise TypeError("the first operation says by its column whether all are done")
        super().__init__(database_operations=operations, state_operations=operations)

    def deconstruct(self) -> Any:
        return self.__class__.__qualname__, [self.database_operations], {}

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if self._is_done(app_label, schema_editor, to_state):
            return
        forwards = super().database_forwards
        patiently(schema_editor, lambda: forwards(app_label, schema_editor, from_state, to_state))

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if not self._is_done(app_label, schema_editor, from_state):
            return
        backwards = super().database_backwards
        patiently(schema_editor, lambda: backwards(app_label, schema_editor, from_state, to_state))

    def _is_done(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState
    ) -> bool:
        first: Any = self.database_operations[0]
        model: Any = state.apps.get_model(app_label, first.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return False
        column = model._meta.get_field(first.name).column
        return column in _columns(schema_editor, model._meta.db_table)


def execute_patiently(schema_editor: BaseDatabaseSchemaEditor, statement: str) -> None:
    """Execute a statement that needs a lock on a busy table. Raises: OperationalError."""
    patiently(schema_editor, lambda: schema_editor.execute(statement))


def patiently(schema_editor: BaseDatabaseSchemaEditor, work: Callable[[], None]) -> None:
    """
    Do work that needs locks on busy tables in a transaction, without making others wait for long.

    Raises: OperationalError when the tables are in use all the time.
    """
    is_postgresql = schema_editor.connection.vendor == "postgresql"
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(schema_editor.connection.alias):
                if is_postgresql:
                    schema_editor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                work()
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


def _columns(schema_editor: BaseDatabaseSchemaEditor, table: str) -> set[str]:
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        return {
            column.name for column in connection.introspection.get_table_description(cursor, table)
        }
