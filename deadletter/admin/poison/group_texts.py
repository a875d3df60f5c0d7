"""Failure groups in words: their label, their state, and what is not counted yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

from ...models import GroupChange, GroupState, PoisonRecord, primary_alias
from ...text import page_text
from ...times import ago, ahead, lasting
from ..render import reason_name

#: Changes are added up about every second; older ones wait for a housekeeper.
_PATIENCE = timedelta(minutes=1)
#: The kind of a badge: it decides the colour, the label is always there.
_KINDS = {GroupState.REGRESSED: "halted", GroupState.NEW: "new"}


class GroupFacts(Protocol):
    """What the texts read: a row of the table, or one with the numbers of merged groups."""

    exception: str
    reason: int
    state: str
    state_at: datetime
    state_by: str
    failures: int
    last_release: str
    resolved_in: str
    muted_until: datetime | None
    muted_until_failures: int | None


@dataclass(frozen=True)
class GroupStateText:
    """The state of a group: a word for its badge, its colour, and a sentence."""

    label: str
    kind: str
    text: str


def group_label(group: GroupFacts) -> str:
    """Name a group by its exception, or by its reason where there is none."""
    return page_text(group.exception, limit=200) or reason_name(group.reason)


def group_state(group: GroupFacts, now: datetime) -> GroupStateText:
    label = str(dict(GroupState.choices).get(group.state, group.state))
    kind = _KINDS.get(group.state, "quiet")  # type: ignore[call-overload]
    return GroupStateText(page_text(label, limit=50), kind, _sentence(group, now))


def _sentence(group: GroupFacts, now: datetime) -> str:
    """Say who set the state and when, and when it ends."""
    names = {
        "by": page_text(group.state_by, limit=100) or gettext("nobody"),
        "ago": ago(group.state_at, now, depth=1),
        "release": page_text(group.resolved_in, limit=100),
    }
    if group.state == GroupState.ACKNOWLEDGED:
        return gettext("by %(by)s, %(ago)s") % names
    if group.state == GroupState.RESOLVED:
        if group.resolved_in:
            return gettext("in %(release)s, by %(by)s, %(ago)s") % names
        return gettext("by %(by)s, %(ago)s") % names
    if group.state == GroupState.MUTED:
        return gettext("by %(by)s, %(end)s") % {**names, "end": _mute_end(group, now)}
    if group.state == GroupState.REGRESSED:
        release = page_text(group.last_release, limit=100)
        if release:
            text = gettext("it failed again %(ago)s, after it was resolved; last in %(last)s")
            return text % {**names, "last": release}
        return gettext("it failed again %(ago)s, after it was resolved") % names
    return ""


def _mute_end(group: GroupFacts, now: datetime) -> str:
    ends = []
    if group.muted_until is not None:
        ends.append(gettext("ends %(time)s") % {"time": ahead(group.muted_until, now)})
    if group.muted_until_failures is not None:
        left = max(group.muted_until_failures - group.failures, 0)
        text = ngettext("ends after %(n)s more failure", "ends after %(n)s more failures", left)
        ends.append(text % {"n": number_format(left, use_l10n=True, force_grouping=True)})
    return gettext(" or ").join(ends) or gettext("until a person reopens it")


def uncounted(now: datetime, *, empty: bool) -> str:
    """Say why a failure of today may be missing from the groups; "": none is."""
    alias = primary_alias()
    changes = GroupChange.objects.using(alias).order_by("id")
    waits_since = changes.values_list("at", flat=True).first()
    if waits_since is not None and waits_since < now - _PATIENCE:
        text = gettext(
            "Failures of the last %(time)s are not counted here yet: workers count them, and none "
            "does it now."
        )
        return text % {"time": lasting(waits_since, now, depth=1)}
    if empty and PoisonRecord.objects.using(alias).values("pk")[:1]:
        return gettext(
            "The records are not in groups yet: workers do that, in pieces, about every second."
        )
    return ""
