"""
Which statements does the server keep planned? The claim and the insert, in PostgreSQL alone.

Planning one of them takes longer than executing it for one message. A statement is prepared once
for each connection that repeats it, under a name made of its own text: behind a pooler that hands
sessions around, a name stands for the same text whoever prepared it, or for nothing, and then the
plain text is used.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper

#: Worth keeping, from which use on of a connection: a worker claims all day, but many a request
#: sends one message and is gone. Not those that join arrays: planned without knowing how long these
#: are, 500 messages were compared with each other, one by one.
NAMES = {"claim": 1, "read_levels": 1, "read_levels_of": 1, "insert": 5}
#: SQLSTATEs of a prepared statement that is gone, that is there already (both: a pooler has handed
#: us another session since we looked), or whose tables were altered.
STALE = frozenset(("26000", "42P05", "0A000"))

_PARAMETER = re.compile(r"%\((\w+)\)s")

#: By connection of the driver: how often each was used there, or None where keeping does not work.
_used: WeakKeyDictionary[Any, dict[str, int] | None] = WeakKeyDictionary()


@dataclass(frozen=True)
class Kept:
    """A statement as SQL that prepares it, and SQL that executes it."""

    name: str
    prepare: str
    execute: str


@cache
def kept(name: str, text: str) -> Kept:
    unique = f"deadletter_{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    numbers = {key: n for n, key in enumerate(dict.fromkeys(_PARAMETER.findall(text)), 1)}
    body = _PARAMETER.sub(lambda found: f"${numbers[found[1]]}", text).replace("%%", "%")
    given = ", ".join(f"%({key})s" for key in numbers)
    return Kept(unique, f"PREPARE {unique} AS {body}", f"EXECUTE {unique} ({given})")


def ready(connection: BaseDatabaseWrapper, cursor: Any, name: str, text: str) -> str:
    """Return what to execute: the prepared statement, or the text where that cannot be."""
    if connection.settings_dict["OPTIONS"].get("server_side_binding"):
        return text  # EXECUTE takes no parameters of the protocol
    used = _used.setdefault(connection.connection, {})
    if used is None:
        return text
    statement = kept(name, text)
    times = used[name] = used.get(name, 0) + 1
    if times < NAMES[name]:
        return text
    if times == NAMES[name]:
        # A pooler may have given us a session that has it already.
        cursor.execute(
            "SELECT pg_backend_pid(), EXISTS"
            " (SELECT FROM pg_prepared_statements WHERE name = %(name)s)",
            {"name": statement.name},
        )
        pid, is_there = cursor.fetchone()
        if not connection.in_atomic_block and pid != connection.connection.info.backend_pid:
            # A pooler, which makes up the number that it tells: outside a transaction each of these
            # statements may meet another session.
            give_up(connection)
            return text
        if not is_there:
            cursor.execute(statement.prepare)
    return statement.execute


def is_alone(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the next statement is a transaction by itself: its failure undoes no other."""
    if not connection.get_autocommit():
        return False
    # Somebody may have begun a transaction in SQL, which Django does not notice.
    raw = connection.connection
    return raw is None or not raw.info.transaction_status


def is_stale(error: BaseException | None) -> bool:
    """Whether a transaction failed only because a prepared statement was used."""
    return getattr(error, "sqlstate", None) in STALE


def give_up(connection: BaseDatabaseWrapper) -> None:
    """Use plain text on this connection from now on."""
    if connection.connection is not None:
        _used[connection.connection] = None
