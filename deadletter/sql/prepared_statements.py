"""
Prepared statements: the claim and the insert, on PostgreSQL only.

Planning one of them takes longer than executing it for one message. A statement is prepared once
for each connection that repeats it. Its name contains a hash of its text: behind a pooler that
shares sessions, a name stands for the same text whichever client prepared it. Where the name is
unknown, the plain text is used.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper

#: The statements to prepare, and the use of a connection from which on: a worker claims all day,
#: but many requests send one message and end. Statements that join arrays are not among them:
#: planned without the length of the arrays, 500 messages were compared with each other one by one.
NAMES = {"claim": 1, "read_levels": 1, "read_levels_of": 1, "insert": 5, "insert_group_changes": 5}
#: SQLSTATEs of a prepared statement that does not exist, that exists already (both: a pooler has
#: switched to another session since the check), or whose tables were altered.
STALE = frozenset(("26000", "42P05", "0A000"))

_PARAMETER = re.compile(r"%\((\w+)\)s")

#: By connection of the driver: how often each statement was used, or None if prepared statements
#: do not work there.
_used: WeakKeyDictionary[Any, dict[str, int] | None] = WeakKeyDictionary()


@dataclass(frozen=True)
class PreparedStatement:
    """A statement as SQL that prepares it and SQL that executes it."""

    name: str
    prepare: str
    execute: str


@cache
def prepared_statement(name: str, text: str) -> PreparedStatement:
    unique = f"deadletter_{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    numbers = {key: n for n, key in enumerate(dict.fromkeys(_PARAMETER.findall(text)), 1)}
    body = _PARAMETER.sub(lambda found: f"${numbers[found[1]]}", text).replace("%%", "%")
    given = ", ".join(f"%({key})s" for key in numbers)
    return PreparedStatement(unique, f"PREPARE {unique} AS {body}", f"EXECUTE {unique} ({given})")


def ready(connection: BaseDatabaseWrapper, cursor: Any, name: str, text: str) -> str:
    """Prepare a statement if it is time; return the SQL to execute: EXECUTE …, or the text."""
    if connection.settings_dict["OPTIONS"].get("server_side_binding"):
        return text  # EXECUTE takes no parameters of the wire protocol
    used = _used.setdefault(connection.connection, {})
    if used is None:
        return text
    statement = prepared_statement(name, text)
    times = used[name] = used.get(name, 0) + 1
    if times < NAMES[name]:
        return text
    if times == NAMES[name]:
        # Behind a pooler the session may have it already.
        cursor.execute(
            "SELECT pg_backend_pid(), EXISTS"
            " (SELECT FROM pg_prepared_statements WHERE name = %(name)s)",
            {"name": statement.name},
        )
        pid, is_there = cursor.fetchone()
        if not connection.in_atomic_block and pid != connection.connection.info.backend_pid:
            # A pooler, which reports a made-up process id: outside a transaction each of these
            # statements may run in another session.
            give_up(connection)
            return text
        if not is_there:
            cursor.execute(statement.prepare)
    return statement.execute


def is_alone(connection: BaseDatabaseWrapper) -> bool:
    """Return True if the next statement is a transaction by itself: its failure undoes no other."""
    if not connection.get_autocommit():
        return False
    # Django does not notice a transaction that was begun with SQL.
    raw = connection.connection
    return raw is None or not raw.info.transaction_status


def is_stale(error: BaseException | None) -> bool:
    """Return True if a transaction failed only because a prepared statement was used."""
    return getattr(error, "sqlstate", None) in STALE


def give_up(connection: BaseDatabaseWrapper) -> None:
    """Use the plain text on this connection from now on."""
    if connection.connection is not None:
        _used[connection.connection] = None
