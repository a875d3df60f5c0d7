"""The database that decisions are made from."""

from __future__ import annotations

from django.db import router


def primary_alias(using: str | None = None) -> str:
    """
    Return `using`, or the alias that the routers give for writing messages.

    Decisions read from the primary: a replica may show rows that are already gone. Transitions
    write several tables in one transaction, so all of them have the same alias.
    """
    from .message import Message  # here, not above: the models import this module

    return using or router.db_for_write(Message)
