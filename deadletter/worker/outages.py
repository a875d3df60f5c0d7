"""Tell a database that is away, which passes, from one that refuses, which does not."""

from __future__ import annotations

from django.apps import apps
from django.db import DataError, IntegrityError, ProgrammingError, connections

#: Classes of SQLSTATE that pass by themselves: connections, transactions that were undone,
#: resources, operators (shutdowns, timeouts, cancelled statements), the system, the server itself.
_PASSING_CLASSES = frozenset(("08", "40", "53", "57", "58", "XX"))
#: And single ones: read-only (a standby, or one that was just promoted), a session that was ended
#: in the middle of a transaction, locks that were not to be had, statements that were prepared in
#: another session.
_PASSING = frozenset(("25006", "25P02", "25P03", "25P04", "55P03", "55006", "26000", "42P05"))
#: Tables, columns, schemas or functions that are not there.
_MISSING = frozenset(("42P01", "42703", "3F000", "42883"))
_DENIED = "42501"

#: How SQLite, which has no codes for them, says that tables or columns are not there.
_MISSING_TEXTS = ("no such table", "no such column", "has no column named")
_CLOSED_TEXT = "closed database"


class Unusable(Exception):
    """The database answers, and the worker can never work with it as it is."""


def is_outage(error: BaseException) -> bool:
    """
    Return whether a database error may pass by itself.

    What has no code is a connection that was lost or could not be made, unless its class says that
    the statement or its data were wrong.
    """
    state = _state(error)
    if state is not None:
        return state in _PASSING or state[:2] in _PASSING_CLASSES
    text = str(error)
    if _CLOSED_TEXT in text:
        return True
    if any(words in text for words in _MISSING_TEXTS):
        return False
    return not isinstance(error, DataError | IntegrityError | ProgrammingError)


def advice(error: BaseException, *, using: str) -> str:
    """Say what to do about an error that is no outage, or nothing where that is not known."""
    if _state(error) in _MISSING or any(words in str(error) for words in _MISSING_TEXTS):
        return (
            f"tables or columns of deadletter are missing in database {using!r}: "
            f"run manage.py migrate --database {using}"
        )
    if _state(error) == _DENIED:
        user = connections[using].settings_dict["USER"]
        return (
            f"user {user!r} of database {using!r} lacks rights: grant SELECT, INSERT, UPDATE and "
            "DELETE on the tables of deadletter, and USAGE on their sequences"
        )
    return ""


def check_tables(using: str) -> None:
    """Ask for every column of every table; raises what the database says of a missing one."""
    connection = connections[using]
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        for model in apps.get_app_config("deadletter").get_models():
            columns = [field.column for field in model._meta.concrete_fields]
            names = ", ".join(quote(column) for column in columns if column)
            cursor.execute(
                f"SELECT {names} FROM {quote(model._meta.db_table)} WHERE 1 = 0"  # noqa: S608
            )


def _state(error: BaseException) -> str | None:
    """Return the SQLSTATE that the driver gave; Django's own errors carry it as their cause."""
    for one in (error, error.__cause__):
        state = getattr(one, "sqlstate", None)
        if state is not None:
            return str(state)
    return None
