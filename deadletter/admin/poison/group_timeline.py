"""The timeline of a failure group on a page: what happened, each entry in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Act, GroupEvent, GroupState, primary_alias
from ...operations import FailureGroupRow, TimelineEntry
from ...operations.group_timeline import COUNTED
from ...operations.retry_outcomes import Outcomes
from ...text import page_text
from ...times import moment
from ..counts import Capped
from .frame import PoisonPageView

#: Entries on a page.
PER_PAGE = 20
_Kind = GroupEvent.Kind


@dataclass(frozen=True, kw_only=True)
class ShownEntry:
    """One line: what happened, who did it, and what they wrote."""

    at: datetime
    kind: str
    title: str
    by: str
    text: str
    is_note: bool = False
    #: The note to answer; 0: none.
    event_id: int = 0
    #: The audit entry; "" where this person may not see it.
    audit_url: str = ""
    #: What became of the retried messages, in words.
    outcomes: str = ""
    #: The merged group that it happened to.
    merged: str = ""
    replies: list[ShownEntry] = field(default_factory=list)


@dataclass(frozen=True)
class GroupTimeline:
    entries: list[ShownEntry]
    #: The address of the entries before these; "": there are none.
    older: str
    is_first: bool


def read_timeline(
    page: PoisonPageView, group: FailureGroupRow, before: datetime | None
) -> GroupTimeline:
    found = operations.timeline(
        group.fingerprint, limit=PER_PAGE, before=before, using=primary_alias()
    )
    query = {"older": found[-1].last_at.isoformat()} if len(found) >= PER_PAGE else {}
    older = page.url("group", group.fingerprint, **query) if query else ""
    may_audit = page.request.user.has_perm("deadletter.view_auditentry")
    return GroupTimeline(
        [_shown(entry, page if may_audit else None) for entry in found if not _is_echo(entry)],
        f"{older}#dl-timeline" if older else "",
        before is None,
    )


def _shown(entry: TimelineEntry, audit: PoisonPageView | None) -> ShownEntry:
    is_note = entry.kind == _Kind.NOTE
    audit_url = ""
    if audit is not None and entry.entry_id is not None:
        audit_url = audit.link("auditentry_change", entry.entry_id)
    return ShownEntry(
        at=entry.at,
        kind=entry.kind,
        title=_title(entry),
        by=page_text(entry.by, limit=100),
        # The name of a release is in the title.
        text="" if entry.kind == "release" else page_text(entry.text, limit=10_000),
        is_note=is_note,
        event_id=entry.event_id or 0 if is_note else 0,
        audit_url=audit_url,
        outcomes=_outcomes(entry.outcomes),
        merged=entry.merged,
        replies=[_shown(reply, audit) for reply in entry.replies],
    )


def _is_echo(entry: TimelineEntry) -> bool:
    """True for the event of a merged group that the event of the main group tells already."""
    return bool(entry.merged) and entry.kind == _Kind.MERGE and "into" in entry.detail


def _outcomes(found: Outcomes | None) -> str:
    """Say what became of retried messages, without the numbers that are 0."""
    if found is None:
        return ""
    known = (
        (gettext("%(n)s succeeded"), found.succeeded),
        (gettext("%(n)s died again of the same cause"), found.died_same),
        (gettext("%(n)s died of another cause"), found.died_other),
        (gettext("%(n)s removed before they were handled"), found.removed),
        (gettext("%(n)s wait or run"), found.open),
    )
    return ", ".join(
        text % {"n": number_format(n, use_l10n=True, force_grouping=True)} for text, n in known if n
    )


def _title(entry: TimelineEntry) -> str:
    detail = entry.detail
    if entry.kind in (Act.RETRY, Act.REMOVE, "edit"):
        return _messages(entry)
    titles = {
        _Kind.NOTE: gettext("Note"),
        _Kind.UNMUTED: gettext("The mute ended"),
        _Kind.SPLIT: _split(detail),
        _Kind.MERGE: _merge(detail),
        _Kind.STATE: _state(detail),
        _Kind.OWNER: _owner(detail),
        _Kind.TICKET: _ticket(detail),
        _Kind.REGRESSED: _regressed(detail),
        "release": gettext("Release %(release)s began")
        % {"release": page_text(entry.text, limit=100)},
    }
    return titles.get(entry.kind) or _act_label(entry.kind)


def _act_label(kind: str) -> str:
    """Return the label of an act or event; the kind itself if a later version wrote it."""
    labels = {**dict(Act.choices), **dict(_Kind.choices)}
    return page_text(str(labels.get(kind, kind)), limit=100)


def _messages(entry: TimelineEntry) -> str:
    more = entry.messages == COUNTED + 1
    n = Capped(COUNTED if more else entry.messages, more)
    values = {"n": str(n)}
    if entry.kind == "edit":
        text = ngettext(
            "Edited and retried %(n)s message", "Edited and retried %(n)s messages", n.n
        )
    elif entry.kind == Act.RETRY:
        text = ngettext("Retried %(n)s message", "Retried %(n)s messages", n.n)
    else:
        text = ngettext("Removed %(n)s message", "Removed %(n)s messages", n.n)
    return text % values


def _state(detail: Mapping[str, Any]) -> str:
    state = detail.get("state")
    release = page_text(detail.get("release"), limit=100)
    if state == GroupState.ACKNOWLEDGED:
        return gettext("Acknowledged")
    if state == GroupState.RESOLVED:
        text = gettext("Resolved in %(release)s") if release else gettext("Resolved")
        return text % {"release": release} if release else text
    if state == GroupState.MUTED:
        return _muted(detail)
    if state == GroupState.NEW:
        return gettext("Reopened")
    return page_text(state, limit=50)


def _muted(detail: Mapping[str, Any]) -> str:
    ends = []
    if until := _time(detail.get("until")):
        ends.append(gettext("until %(until)s") % {"until": moment(until)})
    if isinstance(n := detail.get("grows_by"), int):
        text = ngettext("for %(n)s more failure", "for %(n)s more failures", n)
        ends.append(text % {"n": number_format(n, use_l10n=True, force_grouping=True)})
    if not ends:
        return gettext("Muted")
    return gettext("Muted %(end)s") % {"end": gettext(" or ").join(ends)}


def _owner(detail: Mapping[str, Any]) -> str:
    owner = page_text(detail.get("owner"), limit=200)
    return gettext("Assigned to %(owner)s") % {"owner": owner} if owner else gettext("No owner")


def _ticket(detail: Mapping[str, Any]) -> str:
    ticket = page_text(detail.get("ticket"), limit=200)
    if not ticket:
        return gettext("No ticket")
    return gettext("Ticket %(ticket)s") % {"ticket": ticket}


def _regressed(detail: Mapping[str, Any]) -> str:
    release = page_text(detail.get("release"), limit=100)
    if not release:
        return gettext("It failed again, after it was resolved")
    return gettext("It failed again in %(release)s, after it was resolved") % {"release": release}


def _merge(detail: Mapping[str, Any]) -> str:
    if into := page_text(detail.get("into"), limit=50):
        return gettext("Merged into %(group)s") % {"group": into}
    merged = detail.get("merged")
    names = merged if isinstance(merged, list) else [merged] if merged else []
    text = gettext("Merged: %(groups)s is shown here")
    return text % {"groups": page_text(", ".join(str(one) for one in names), limit=300)}


def _split(detail: Mapping[str, Any]) -> str:
    if main := page_text(detail.get("from"), limit=50):
        return gettext("Split off from %(group)s") % {"group": main}
    text = gettext("%(group)s was split off")
    return text % {"group": page_text(detail.get("split"), limit=50)}


def _time(value: Any) -> datetime | None:
    try:
        return parse_datetime(value)
    except (TypeError, ValueError):
        return None
