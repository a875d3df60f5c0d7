"""What people do to messages that are still in a queue: hurry, release, poison, remove."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..lifecycle import recover
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act
from . import audit
from .poison import Removal, Retrial, alias_of, several

Verdicts = recover.Verdicts


def retry_now(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Retrial:
    """
    Retry failed messages now instead of at the end of their backoff, with a fresh count.

    A message in any other state is refused, naming the state.
    """
    verdicts = _act(Act.RETRY_NOW, recover.hurry, message_ids, by, why, using)
    return Retrial(verdicts.done, verdicts.missing, verdicts.refused)


def release(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Verdicts:
    """Let messages pass a waiting or poisoned predecessor of their stream."""
    return _act(Act.RELEASE, recover.let_pass, message_ids, by, why, using)


def poison(
    message_ids: int | Iterable[int],
    *,
    why: str,
    by: str | None = None,
    using: str | None = None,
) -> Verdicts:
    """Quarantine messages by hand, with the reason OPERATOR."""

    def work(tx: Transaction, ids: list[int]) -> Verdicts:
        return recover.poison(tx, ids, why=why, by=by or "operator")

    return _act(Act.POISON, work, message_ids, by, why, using)


def remove(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Removal:
    """Remove waiting messages for good; one that is being handled is refused."""
    verdicts = _act(Act.DISCARD, recover.discard, message_ids, by, why, using)
    return Removal(verdicts.done, verdicts.missing, verdicts.refused)


def _act(
    act: Act,
    verb: Callable[[Transaction, list[int]], Verdicts],
    message_ids: int | Iterable[int],
    by: str | None,
    why: str,
    using: str | None,
) -> Verdicts:
    ids = several(message_ids)

    def work(tx: Transaction) -> Verdicts:
        entry = audit.record(tx, act, by=by, why=why, selection=audit.of_ids(ids))
        verdicts = verb(tx, ids)
        audit.name_ids(tx, entry, verdicts.done)
        audit.count(
            tx,
            entry,
            done=len(verdicts.done),
            missing=len(verdicts.missing),
            refused=len(verdicts.refused),
        )
        return verdicts

    return in_transaction(work, using=alias_of(using))
