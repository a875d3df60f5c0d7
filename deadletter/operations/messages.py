"""What people do to messages that are still in a queue: hurry, release, poison, remove."""

from __future__ import annotations

from collections.abc import Iterable

from ..lifecycle import recover
from .poison import Removal, Retrial


def retry_now(message_ids: int | Iterable[int], *, using: str | None = None) -> Retrial:
    """Retry failed messages now instead of at the end of their backoff, with a fresh count."""
    verdicts = recover.hurry(_several(message_ids), using=using)
    return Retrial(verdicts.done, verdicts.missing, verdicts.refused)


def release(message_ids: int | Iterable[int], *, using: str | None = None) -> recover.Verdicts:
    """Let messages pass a waiting or poisoned predecessor of their stream."""
    return recover.let_pass(_several(message_ids), using=using)


def poison(
    message_ids: int | Iterable[int],
    *,
    why: str,
    by: str | None = None,
    using: str | None = None,
) -> recover.Verdicts:
    """Quarantine messages by hand, with the reason OPERATOR."""
    return recover.poison(_several(message_ids), why=why, by=by or "operator", using=using)


def remove(message_ids: int | Iterable[int], *, using: str | None = None) -> Removal:
    """Remove waiting messages for good; those being handled count as missing."""
    verdicts = recover.discard(_several(message_ids), using=using)
    return Removal(verdicts.done, [*verdicts.missing, *verdicts.refused])


def _several(ids: int | Iterable[int]) -> list[int]:
    return [ids] if isinstance(ids, int) else list(ids)
