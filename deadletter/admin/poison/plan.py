"""A signed plan of a bulk act: it goes out with the question, and comes back with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.core.exceptions import SuspiciousOperation
from django.db.models.functions import Left
from django.http import HttpRequest

from ...models import Act, primary_alias
from ...models.poison import PoisonQuerySet
from ...operations import PoisonFilter
from ..counts import Capped
from .query import count, window

#: Records that one request acts on, by id; more are done in the background, by filter.
AT_ONCE = 1_000
#: Seconds for which a confirmation is valid.
GOOD_FOR = 3600
#: Records shown with a question.
SAMPLE = 5
#: Acts on many records.
ACTS = (Act.RETRY, Act.REMOVE)
_SALT = "deadletter.admin.poison.plan"


@dataclass(frozen=True, kw_only=True)
class Selected(PoisonFilter):
    """Records named one by one."""

    ids: tuple[int, ...] = ()

    def records(self, using: str) -> PoisonQuerySet:
        return super().records(using).filter(pk__in=self.ids)


@dataclass(frozen=True, kw_only=True)
class BulkPlan:
    """
    An act on `ids`, or on the records that `wanted` matches.

    Records that die later are never part of it: ids are exact, and a filter ends at its `up_to`.
    """

    act: str
    ids: tuple[int, ...] = ()
    wanted: PoisonFilter | None = None
    counted: Capped
    #: Some of the records that `wanted` matches, to be shown.
    newest: tuple[int, ...] = ()

    @property
    def in_background(self) -> bool:
        return self.wanted is not None

    def signed(self, request: HttpRequest) -> str:
        found = {
            "act": str(self.act),
            "ids": list(self.ids),
            "filter": None if self.wanted is None else self.wanted.as_dict(),
            "counted": [self.counted.n, self.counted.more],
            "user": str(request.user.pk),
        }
        return signing.dumps(found, salt=_SALT, compress=True)


def plan_ids(act: str, ids: Sequence[int]) -> BulkPlan:
    there = Selected(ids=tuple(ids[:AT_ONCE])).records(primary_alias()).values_list("pk", flat=True)
    found = tuple(there)
    return BulkPlan(act=act, ids=found, counted=Capped(len(found)))


def plan_matching(act: str, wanted: PoisonFilter, *, first: int | None = None) -> BulkPlan:
    """Plan for all records that match now, or for the `first` oldest, to test a repair."""
    fixed = wanted.fixed(primary_alias())
    if first is not None:
        rows = (
            fixed.records(primary_alias())
            .order_by("poisoned_at", "pk")
            .values_list("pk", flat=True)
        )
        return plan_ids(act, list(rows[: min(first, AT_ONCE)]))
    found = window(fixed, primary_alias())
    ids = tuple(found.rows.values_list("pk", flat=True)[: AT_ONCE + 1])
    if found.end is None and len(ids) <= AT_ONCE:
        return BulkPlan(act=act, ids=tuple(sorted(ids)), counted=Capped(len(ids)))
    return BulkPlan(act=act, wanted=fixed, counted=count(found), newest=ids[:SAMPLE])


def read_plan(act: str, signed: str, request: HttpRequest) -> BulkPlan | None:
    """
    Read a plan back; None when it is too old.

    Raises SuspiciousOperation (a 400) for a plan that was not signed here for this act and person.
    """
    try:
        found: dict[str, Any] = signing.loads(signed, salt=_SALT, max_age=GOOD_FOR)
    except signing.SignatureExpired:
        return None
    except signing.BadSignature:
        raise SuspiciousOperation("a confirmation of deadletter was tampered with") from None
    if found["act"] != str(act) or found["user"] != str(request.user.pk):
        raise SuspiciousOperation("a confirmation of deadletter was used for something else")
    wanted = found["filter"]
    return BulkPlan(
        act=act,
        ids=tuple(found["ids"]),
        wanted=None if wanted is None else PoisonFilter.from_dict(wanted),
        counted=Capped(*found["counted"]),
    )


def sample(plan: BulkPlan) -> list[Any]:
    """Return some records of a plan, newest first, with the beginning of each error."""
    if plan.wanted is None or plan.newest:
        rows = Selected(ids=plan.newest or plan.ids).records(primary_alias()).order_by("-pk")
    else:  # asked again, after the form refused the answer
        rows = window(plan.wanted, primary_alias()).rows
    light = rows.short_columns()
    return list(light.annotate(start=Left("last_error", 200))[:SAMPLE])
