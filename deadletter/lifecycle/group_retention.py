"""How long failure groups, their hours and tags are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q

from ..conf import get_settings
from ..models import (
    OPEN_STATES,
    FailureGroup,
    GroupEvent,
    GroupHour,
    GroupState,
    GroupTag,
    Message,
    MessageTag,
    PoisonRecord,
)
from .transaction import Transaction

#: How long the failures of a group are known by the hour.
HOURS_KEPT = timedelta(days=90)


def delete_old_groups(tx: Transaction, *, limit: int) -> int:
    """
    Delete some groups past DEADLETTER["GROUPS_KEPT"] with all that belongs to them.

    Kept are groups that have dead messages, that are muted, that others are merged into, and open
    ones about which a person has written or decided since.
    """
    kept = get_settings().groups_kept
    if kept is None:
        return 0
    end = tx.time() - kept
    of_group: Any = {"fingerprint": OuterRef("fingerprint")}
    dead = PoisonRecord.objects.using(tx.using).filter(**of_group).order_by()
    copies = Message.objects.using(tx.using).filter(**of_group).order_by()
    merged = FailureGroup.objects.using(tx.using).filter(merged_into=OuterRef("fingerprint"))
    recent = GroupEvent.objects.using(tx.using).filter(**of_group, at__gt=end).order_by()
    groups = (
        FailureGroup.objects.using(tx.using)
        .filter(last_failed_at__lte=end)
        .exclude(state=GroupState.MUTED)
        .exclude(Q(state__in=OPEN_STATES) & Exists(recent))
        .filter(~Exists(dead), ~Exists(copies), ~Exists(merged.order_by()))
    )
    fingerprints = list(
        groups.select_for_update(skip_locked=True, of=("self",))
        .order_by("last_failed_at", "id")
        .values_list("fingerprint", flat=True)[:limit]
    )
    if fingerprints:
        for model in (GroupHour, GroupTag, GroupEvent, FailureGroup):
            model._base_manager.using(tx.using).filter(fingerprint__in=fingerprints).delete()
    return len(fingerprints)


def delete_old_hours(tx: Transaction, *, limit: int) -> int:
    """Delete some hours of groups older than HOURS_KEPT; return how many."""
    return _delete_before(tx, GroupHour, "at", HOURS_KEPT, limit)


def delete_old_tags(tx: Transaction, *, limit: int) -> int:
    """Delete some tags past DEADLETTER["TAGS_KEPT"]; return how many."""
    kept = get_settings().tags_kept
    if kept is None:
        return 0
    of_groups = _delete_before(tx, GroupTag, "last_at", kept, limit)
    return of_groups + _delete_before(tx, MessageTag, "at", kept, limit)


def _delete_before(tx: Transaction, model: Any, column: str, kept: timedelta, limit: int) -> int:
    rows = model.objects.using(tx.using).filter(**{f"{column}__lte": tx.time() - kept})
    ids = list(
        rows.select_for_update(skip_locked=True)
        .order_by(column, "id")
        .values_list("pk", flat=True)[:limit]
    )
    if ids:
        # By the ids alone: Django would read them again for a condition on a time.
        model._base_manager.using(tx.using).filter(pk__in=ids).delete()
    return len(ids)
