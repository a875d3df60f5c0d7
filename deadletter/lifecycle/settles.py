"""What every settle shares: the guard on the lease, and the answer to the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..exceptions import CompletionRefused, LeaseLost
from ..models import Queue
from .transaction import Transaction, in_transaction
from .values import Outcome, Refused

#: What became of each message, by id. Ids that are not the caller's are absent.
Outcomes = dict[int, Outcome]
#: The token that the caller presents for each message, by id.
Tokens = Mapping[int, str]


class LeaseGuard(NamedTuple):
    """
    Messages and the leases under which the caller settles them, as the statements compare them.

    Sorted by id: rows are locked in that order.
    """

    ids: list[int]
    #: "token-id" of each message: one text comparison checks lease and id together.
    pairs: list[str]


def lease_guard(reports: Sequence[Any]) -> LeaseGuard:
    """Return the guard of reports that have an `id` and a `token`."""
    return lease_guard_for({item.id: item.token for item in reports})


def lease_guard_for(tokens: Tokens) -> LeaseGuard:
    """Return the guard of messages given as id and token."""
    # A batch has few tokens and many messages: each token is checked once.
    safe = {}
    for token in set(tokens.values()):
        text = str(token)
        # No claim gives out another text; "" matches no row.
        is_safe = text.isalnum() and text.isascii() and len(text) <= 32
        safe[token] = text if is_safe else ""
    ids = sorted(tokens)
    return LeaseGuard(ids, [f"{safe[tokens[id]]}-{id}" for id in ids])


def settle(
    reports: Sequence[Any], work: Callable[[Transaction], Outcomes], using: str | None
) -> Outcomes:
    """
    Settle reports in one transaction and return their outcomes.

    Raises: LeaseLost naming the ids that were not the caller's; CompletionRefused. The other
    reports are applied.
    """
    if not reports:
        return {}
    outcomes = in_transaction(work, using=using)
    missing = {item.id for item in reports} - outcomes.keys()
    refused = {id: what.why for id, what in outcomes.items() if isinstance(what, Refused)}
    if refused:
        raise CompletionRefused(refused, missing)
    if missing:
        raise LeaseLost(missing)
    return outcomes


def queue_names(tx: Transaction, ids: Iterable[int]) -> dict[int, str]:
    """Return the names of queues by id, for the signals about settled messages."""
    queues = Queue.objects.using(tx.using).filter(pk__in=set(ids))
    return dict(queues.values_list("pk", "name"))
