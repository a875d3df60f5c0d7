"""Database errors: outages, which pass by themselves, and refusals, which do not."""

from __future__ import annotations

from django.db import DataError, IntegrityError, ProgrammingError, connections

#: Classes of SQLSTATE that pass by themselves: connections, transaction rollbacks, resources,
#: operator intervention (shutdowns, timeouts, cancelled statements), system and internal errors.
_PASSING_CLASSES = frozenset(("08", "40", "53", "57", "58", "XX"))
#: Single codes that pass: read-only (a standby, or one that was just promoted), sessions that were
#: ended inside a transaction, locks not available, statements prepared in another session.
_PASSING = frozenset(("25006", "25P02", "25P03", "25P04", "55P03", "55006", "26000", "42P05"))
#: Missing tables, columns, schemas or functions.
_MISSING = frozenset(("42P01", "42703", "3F000", "42883"))
_DENIED = "42501"

#: Error texts of SQLite for missing tables or columns; it has no codes for them.
_MISSING_TEXTS = ("no such table", "no such column", "has no column named")
_CLOSED_TEXT = "closed database"


class DatabaseUnusable(Exception):
    """The database answers, but the worker cannot use it as it is."""


def is_outage(error: BaseException) -> bool:
    """
    Return True if a database error may pass by itself.

    An error without a code is a connection that was lost or could not be made, unless its class
    says that the statement or its data were wrong.
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
    """Return what to do about an error that is no outage; empty if that is not known."""
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


def _state(error: BaseException) -> str | None:
    """Return the driver's SQLSTATE. Django's errors have the driver's error as their cause."""
    for one in (error, error.__cause__):
        state = getattr(one, "sqlstate", None)
        if state is not None:
            return str(state)
    return None
