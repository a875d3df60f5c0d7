"""Tags over all groups: everything that failed for one customer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from ..models import FailureGroup, GroupTag, MessageTag, PoisonRecord, primary_alias
from ..redaction import redact_tag
from .failure_groups import FailureGroupRow, as_rows
from .filter_values import read_tag

#: Groups that a page of a tag shows, fingerprints that it reads, and records that it counts.
GROUPS, READ, COUNTED = 100, 900, 10_000


@dataclass(frozen=True, kw_only=True)
class TaggedGroup:
    """A group with the number of its failures that had the tag."""

    group: FailureGroupRow
    failures: int
    last_at: datetime


@dataclass(frozen=True, kw_only=True)
class TagPage:
    """What failed with one value of a tag."""

    key: str
    value: str
    #: The groups with the most recent failures first, at most GROUPS, and whether there are more.
    groups: tuple[TaggedGroup, ...] = ()
    has_more: bool = False
    #: Poison records that exist now, at most COUNTED + 1.
    records: int = 0
    #: True if DEADLETTER["REDACT"] hides the value: nothing is shown.
    is_hidden: bool = False


def tag_page(key: str, value: str, *, using: str | None = None) -> TagPage:
    """
    Return the groups and the number of poison records with one value of a tag.

    Raises ValueError for an empty key or value, and for text that no tag can have.
    """
    read_tag(f"{key}={value}")
    if redact_tag(key, value) != value:
        return TagPage(key=key, value=value, is_hidden=True)
    alias = primary_alias(using)
    tags = GroupTag.objects.using(alias).filter(key=key, value=value)
    # Under another name, so that it is not sorted by what is selected.
    ends = tags.order_by("-last_at", "fingerprint").annotate(end=F("last_at"))
    found = ends.values_list("fingerprint", "failures", "end")[:READ]
    counts = {fingerprint: (failures, end) for fingerprint, failures, end in found}
    rows = FailureGroup.objects.using(alias).filter(fingerprint__in=list(counts))
    mains = {one: main or one for one, main in rows.values_list("fingerprint", "merged_into")}
    numbers: dict[str, int] = {}
    latest: dict[str, datetime] = {}
    for fingerprint, main in mains.items():
        failures, last_at = counts[fingerprint]
        numbers[main] = numbers.get(main, 0) + failures
        latest[main] = max(latest.get(main, last_at), last_at)
    chosen = sorted(numbers, key=lambda one: (latest[one], one), reverse=True)
    listed = FailureGroup.objects.using(alias).filter(fingerprint__in=chosen[:GROUPS])
    shown = {row.fingerprint: row for row in as_rows(list(listed), using=alias)}
    marked = MessageTag.objects.using(alias).filter(key=key, value=value)
    records = PoisonRecord.objects.using(alias).filter(message_id__in=marked.values("message_id"))
    return TagPage(
        key=key,
        value=value,
        groups=tuple(
            TaggedGroup(group=shown[one], failures=numbers[one], last_at=latest[one])
            for one in chosen[:GROUPS]
            if one in shown
        ),
        has_more=len(chosen) > GROUPS,
        records=records.order_by().values("pk")[: COUNTED + 1].count(),
    )
