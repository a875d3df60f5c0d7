"""
The acts of people on failure groups: state, owner, ticket, notes, merge and split. All audited.

An act locks the rows of its groups in the order of their fingerprints. A group that was merged into
another one stands for that one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps

from ..durations import Duration, as_timedelta
from ..lifecycle.refusals import Refusal, RefusalReason
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, FailureGroup, GroupEvent, GroupState, primary_alias
from ..models.group import OPEN_STATES, RELEASE_LIMIT
from ..text import short_repr, storable_text
from . import audit
from .failure_groups import MOST_MERGED
from .filter_values import check_text

#: Groups of one act: some builds of SQLite take no more parameters.
MOST = 900
#: Characters of a note.
NOTE_LIMIT = 10_000
#: Characters of the address of a ticket.
TICKET_LIMIT = 500
#: A mute for a time ends within a year, one for growth within so many failures.
LONGEST_MUTE, MOST_GROWTH = "366d", 1_000_000_000
#: Categories of characters that an address of a ticket must not contain: controls, directions,
#: surrogates, unassigned ones, blanks.
_NOT_IN_ADDRESSES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}

_Event = GroupEvent.Kind


@dataclass(kw_only=True)
class GroupResult:
    """The result of an act on groups: each fingerprint is done, missing, or refused."""

    #: The groups that were changed; for a merged group, the group that it is shown in.
    done: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    #: Why, as a `Refusal`: an English sentence whose `label` is in the active language.
    refused: dict[str, str] = field(default_factory=dict)
    #: The audit entry; 0 if nothing was done or refused.
    entry_id: int = 0
    #: The note that was written, or None.
    note_id: int | None = None


def acknowledge_group(
    fingerprints: str | Iterable[str],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Say that someone knows of the failures; also ends a mute.

    Refused for groups that are acknowledged already, or resolved.
    """

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.state == GroupState.RESOLVED:
            return _refusal(RefusalReason.GROUP_RESOLVED, row)
        if row.state == GroupState.ACKNOWLEDGED:
            return _refusal(RefusalReason.GROUP_IS, row)
        return _set_state(row, GroupState.ACKNOWLEDGED, at)

    return _act(Act.ACK_GROUP, fingerprints, change, by=by, why=why, using=using)


def mute_group(
    fingerprints: str | Iterable[str],
    *,
    until: datetime | None = None,
    duration: Duration | None = None,
    grows_by: int | None = None,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Keep groups quiet until a time (or for a duration), until they fail `grows_by` times more, or
    until somebody ends it.

    With a time and a growth, whichever comes first. A group that is muted already is muted anew.
    Refused for resolved groups. Raises ValueError for an end that is over, or further than a year.
    """
    if until is not None and duration is not None:
        raise ValueError("until: a mute has one end; give until or duration")
    if until is not None and until.tzinfo is None:
        raise ValueError("until: needs a time zone, for example 2026-01-31T12:00:00+00:00")
    length = None if duration is None else as_timedelta(duration, field="duration")
    if grows_by is not None and not (_is_number(grows_by) and 1 <= grows_by <= MOST_GROWTH):
        raise ValueError(
            f"grows_by: must be a number from 1 to {MOST_GROWTH:,}, got {short_repr(grows_by)}"
        )
    detail: dict[str, Any] = {} if grows_by is None else {"grows_by": grows_by}

    def prepare(now: datetime) -> dict[str, Any]:
        end = now + length if length is not None else until
        if end is not None and not now < end <= now + as_timedelta(LONGEST_MUTE):
            raise ValueError("until: must be later than now, and at most a year away")
        return detail if end is None else {**detail, "until": end}

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.state == GroupState.RESOLVED:
            return _refusal(RefusalReason.GROUP_RESOLVED, row)
        end = at.detail.get("until")
        goal = None if grows_by is None else _failures_of(row, at.tx) + grows_by
        before = _state_before_mute(row, at)
        found = _set_state(row, GroupState.MUTED, at, was=before)
        row.muted_until, row.muted_until_failures = end, goal
        if end is not None:
            found.detail["until"] = end.isoformat()
        if goal is not None:
            found.detail |= {"failures": goal, "grows_by": grows_by}
        return found

    return _act(Act.MUTE_GROUP, fingerprints, change, by=by, why=why, prepare=prepare, using=using)


def resolve_group(
    fingerprints: str | Iterable[str],
    *,
    in_release: str = "",
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Say that the cause is repaired: a failure after it makes the group regressed.

    With `in_release`, failures in releases that began before that one do not. Refused for groups
    that are resolved already, in the same release.
    """
    release = _release(in_release)

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.state == GroupState.RESOLVED and row.resolved_in == release:
            return _refusal(RefusalReason.GROUP_IS, row)
        found = _set_state(row, GroupState.RESOLVED, at)
        row.resolved_in = release
        if release:
            found.detail["release"] = release
        return found

    detail = {"release": release} if release else {}
    return _act(Act.RESOLVE_GROUP, fingerprints, change, by=by, why=why, detail=detail, using=using)


def reopen_group(
    fingerprints: str | Iterable[str],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Make groups new again: the end of a mute, and the correction of a resolution or acknowledgement.

    Refused for groups that are new or regressed.
    """

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.state in (GroupState.NEW, GroupState.REGRESSED):
            return _refusal(RefusalReason.GROUP_OPEN, row)
        return _set_state(row, GroupState.NEW, at)

    return _act(Act.REOPEN_GROUP, fingerprints, change, by=by, why=why, using=using)


def assign_group(
    fingerprints: str | Iterable[str],
    owner: str,
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Give groups an owner, or none with "".

    Raises ValueError for an owner who is no active user of the site.
    """
    _check_owner(owner)

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.owner == owner:
            is_owned = RefusalReason.GROUP_OWNED if owner else RefusalReason.GROUP_UNOWNED
            return Refusal(is_owned, group=row.fingerprint, owner=owner)
        found = _Change(_Event.OWNER, ("owner",), {"owner": owner, "was": row.owner})
        row.owner = owner
        return found

    return _act(
        Act.ASSIGN_GROUP, fingerprints, change, by=by, why=why, detail={"owner": owner}, using=using
    )


def link_ticket(
    fingerprints: str | Iterable[str],
    url: str,
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Link groups to a ticket, or to none with "".

    Raises ValueError for anything but an http or https address without a password.
    """
    address = _ticket(url)

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        if row.ticket == address:
            same = RefusalReason.GROUP_TICKET if address else RefusalReason.GROUP_NO_TICKET
            return Refusal(same, group=row.fingerprint)
        found = _Change(_Event.TICKET, ("ticket",), {"ticket": address, "was": row.ticket})
        row.ticket = address
        return found

    return _act(
        Act.TICKET_GROUP, fingerprints, change, by=by, why=why, detail={"ticket": address},
        using=using,
    )  # fmt: skip


def write_note(
    fingerprint: str,
    text: str,
    *,
    answers: int | None = None,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Write a note on a group, or an answer to one of its notes.

    Raises ValueError for an empty or very long note, and for an answer to a note that the group
    does not have.
    """
    shown = _note(text)
    if answers is not None and not _is_number(answers):
        raise ValueError(f"answers: expected the id of a note, got {short_repr(answers)}")

    def change(row: FailureGroup, at: _Moment) -> _Change | Refusal:
        detail: dict[str, Any] = {}
        if answers is not None:
            _check_note(row, answers, at.tx)
        return _Change(_Event.NOTE, (), detail, text=shown, answers=answers)

    detail = {} if answers is None else {"answers": answers}
    return _act(Act.NOTE_GROUP, [fingerprint], change, by=by, why=why, detail=detail, using=using)


def merge_groups(
    main: str,
    others: str | Iterable[str],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Show other groups in the main one; groups that were merged into them move along.

    `done` are the others that were merged. Refused: a group that is merged into another one, and
    more groups than one may hold. The state, the owner and the ticket of the main group stay.
    Raises ValueError if the main group does not exist, or is among the others.
    """
    (wanted_main,) = _fingerprints([main])
    wanted = _fingerprints(others)
    alias = primary_alias(using)

    def work(tx: Transaction) -> GroupResult:
        first = FailureGroup.objects.using(alias).filter(fingerprint=wanted_main).first()
        if first is None:
            raise ValueError(f"there is no group {short_repr(wanted_main)}")
        goal = first.merged_into or first.fingerprint
        if goal in wanted:
            raise ValueError(f"group {goal} cannot be merged into itself")
        rows = _lock({goal, *wanted}, tx)
        into = rows.get(goal)
        if into is None or into.merged_into:
            raise ValueError(f"group {goal} was merged or removed meanwhile; try again")
        result = GroupResult(missing=[one for one in wanted if one not in rows])
        moving = [rows[one] for one in wanted if one in rows]
        for row in moving:
            if row.merged_into:
                refusal = Refusal(
                    RefusalReason.GROUP_MERGED, group=row.fingerprint, main=row.merged_into
                )
                result.refused[row.fingerprint] = refusal
        _merge_rows(tx, into, [row for row in moving if not row.merged_into], result, by, why)
        detail = {"main": goal}
        _record(tx, Act.MERGE_GROUP, result, wanted, detail, by, why)
        return result

    return _in_own_or_savepoint(work, alias)


def split_group(
    fingerprints: str | Iterable[str],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> GroupResult:
    """
    Show merged groups by themselves again, as new ones: each keeps its own failures and hours.

    Refused for groups that are merged into no other.
    """
    wanted = _fingerprints(fingerprints)
    alias = primary_alias(using)

    def work(tx: Transaction) -> GroupResult:
        known = FailureGroup.objects.using(alias).filter(fingerprint__in=wanted)
        mains = set(known.exclude(merged_into="").values_list("merged_into", flat=True))
        rows = _lock({*wanted, *mains}, tx)
        at = _Moment(tx, tx.time(), audit.person(by), {})
        result = GroupResult(missing=[one for one in wanted if one not in rows])
        events = []
        for fingerprint in sorted(set(wanted) & rows.keys()):
            row = rows[fingerprint]
            main = row.merged_into
            if not main:
                result.refused[fingerprint] = Refusal(
                    RefusalReason.GROUP_NOT_MERGED, group=fingerprint
                )
                continue
            row.merged_into = ""
            _set_state(row, GroupState.NEW, at)
            row.save(using=alias, update_fields=[*_STATE_FIELDS, "merged_into"])
            events += [
                _event(at, fingerprint, _Event.SPLIT, why, {"from": main}),
                _event(at, main, _Event.SPLIT, why, {"split": fingerprint}),
            ]
            result.done.append(fingerprint)
        GroupEvent.objects.using(alias).bulk_create(events)
        _record(tx, Act.SPLIT_GROUP, result, wanted, {}, by, why)
        return result

    return _in_own_or_savepoint(work, alias)


@dataclass(frozen=True)
class _Moment:
    """What every change of one act has in common."""

    tx: Transaction
    now: datetime
    by: str
    detail: Mapping[str, Any]


@dataclass
class _Change:
    """The event of a change, and the columns that it writes."""

    kind: str
    columns: tuple[str, ...]
    detail: dict[str, Any] = field(default_factory=dict)
    #: The text of the event; None: the reason of the act.
    text: str | None = None
    answers: int | None = None


_ChangeRow = Callable[[FailureGroup, _Moment], _Change | Refusal]
_STATE_FIELDS = (
    "state",
    "state_at",
    "state_by",
    "muted_until",
    "muted_until_failures",
    "resolved_in",
)


def _act(
    act: Act,
    fingerprints: str | Iterable[str],
    change: _ChangeRow,
    *,
    by: str | None,
    why: str,
    detail: Mapping[str, Any] | None = None,
    prepare: Callable[[datetime], dict[str, Any]] | None = None,
    using: str | None,
) -> GroupResult:
    """Change each group under one audit entry, with an event for each."""
    wanted = _fingerprints(fingerprints)
    alias = primary_alias(using)

    def work(tx: Transaction) -> GroupResult:
        now = tx.time()
        given = dict(detail or {}) if prepare is None else prepare(now)
        at = _Moment(tx, now, audit.person(by), given)
        known = FailureGroup.objects.using(alias).filter(fingerprint__in=wanted)
        mains = {one: main or one for one, main in known.values_list("fingerprint", "merged_into")}
        rows = _lock(set(mains.values()), tx)
        result = GroupResult(missing=[one for one in wanted if mains.get(one) not in rows])
        for fingerprint in sorted(rows):
            row = rows[fingerprint]
            if row.merged_into:
                found: _Change | Refusal = Refusal(
                    RefusalReason.GROUP_MERGED_NOW, group=fingerprint, main=row.merged_into
                )
            else:
                found = change(row, at)
            if isinstance(found, Refusal):
                result.refused[fingerprint] = found
                continue
            if found.columns:
                row.save(using=alias, update_fields=found.columns)
            text = why if found.text is None else found.text
            event = _event(at, fingerprint, found.kind, text, found.detail, found.answers)
            event.save(using=alias, force_insert=True)
            if found.kind == _Event.NOTE:
                result.note_id = event.pk
            result.done.append(fingerprint)
        shown = {
            key: value.isoformat() if isinstance(value, datetime) else value
            for key, value in at.detail.items()
        }
        _record(tx, act, result, wanted, shown, by, why)
        return result

    return _in_own_or_savepoint(work, alias)


def _in_own_or_savepoint(work: Callable[[Transaction], GroupResult], alias: str) -> GroupResult:
    """Do an act; one that changes and refuses nothing keeps no lock in a caller's transaction."""
    return in_transaction(
        lambda tx: tx.undo_unless(lambda: work(tx), lambda result: bool(result.entry_id)),
        using=alias,
    )


def _lock(fingerprints: Iterable[str], tx: Transaction) -> dict[str, FailureGroup]:
    """Lock the rows of groups in the order of their fingerprints."""
    rows = FailureGroup.objects.using(tx.using).filter(fingerprint__in=list(fingerprints))
    locked = rows.order_by("fingerprint").select_for_update()
    return {row.fingerprint: row for row in locked}


def _merge_rows(
    tx: Transaction,
    into: FailureGroup,
    moving: Sequence[FailureGroup],
    result: GroupResult,
    by: str | None,
    why: str,
) -> None:
    rows = FailureGroup.objects.using(tx.using)
    # The groups are locked: nobody merges another one into them now.
    room = MOST_MERGED - rows.filter(merged_into=into.fingerprint).count()
    at = _Moment(tx, tx.time(), audit.person(by), {})
    events, merged = [], []
    for row in moving:
        below = rows.filter(merged_into=row.fingerprint).order_by("fingerprint")
        along = list(below.select_for_update().values_list("fingerprint", flat=True))
        if 1 + len(along) > room:
            result.refused[row.fingerprint] = Refusal(
                RefusalReason.GROUP_FULL, main=into.fingerprint, n=MOST_MERGED
            )
            continue
        room -= 1 + len(along)
        rows.filter(fingerprint__in=[row.fingerprint, *along]).update(merged_into=into.fingerprint)
        events.append(_event(at, row.fingerprint, _Event.MERGE, why, {"into": into.fingerprint}))
        merged += [row.fingerprint, *along]
        result.done.append(row.fingerprint)
    if merged:
        detail = {"merged": merged}
        events.append(_event(at, into.fingerprint, _Event.MERGE, why, detail))
    GroupEvent.objects.using(tx.using).bulk_create(events)


def _record(
    tx: Transaction,
    act: Act,
    result: GroupResult,
    wanted: Sequence[str],
    detail: Mapping[str, Any],
    by: str | None,
    why: str,
) -> None:
    """Write the audit entry of an act that did or refused something."""
    if not (result.done or result.refused):
        return
    selection = {"fingerprints": list(wanted)}
    new = audit.NewEntry(act=act, by=by, why=why, selection=selection, detail=detail)
    entry: AuditEntry = audit.record(tx, new)
    audit.add(
        tx, entry, done=len(result.done), missing=len(result.missing), refused=len(result.refused)
    )
    result.entry_id = entry.pk


def _event(
    at: _Moment,
    fingerprint: str,
    kind: str,
    text: str,
    detail: Mapping[str, Any],
    answers: int | None = None,
) -> GroupEvent:
    return GroupEvent(
        fingerprint=fingerprint,
        at=at.now,
        by=at.by,
        kind=kind,
        text=storable_text(text),
        detail=dict(detail),
        answers_id=answers,
    )


def _set_state(
    row: FailureGroup, state: GroupState, at: _Moment, *, was: str | None = None
) -> _Change:
    """Give a row a state, without the details of the state before."""
    before = str(row.state) if was is None else was
    row.state, row.state_at, row.state_by = state, at.now, at.by
    row.muted_until = row.muted_until_failures = None
    row.resolved_in = ""
    return _Change(_Event.STATE, _STATE_FIELDS, {"state": str(state), "was": before})


def _state_before_mute(row: FailureGroup, at: _Moment) -> str:
    """Return the state that the end of a mute gives back: acknowledged, or new."""
    if row.state != GroupState.MUTED:
        is_known = row.state == GroupState.ACKNOWLEDGED
        return str(GroupState.ACKNOWLEDGED if is_known else GroupState.NEW)
    events = GroupEvent.objects.using(at.tx.using).filter(
        fingerprint=row.fingerprint, kind=_Event.STATE
    )
    last = events.order_by("-pk").first()
    was = last.detail.get("was") if last is not None and isinstance(last.detail, dict) else None
    return str(was) if was in OPEN_STATES else str(GroupState.NEW)


def _failures_of(row: FailureGroup, tx: Transaction) -> int:
    """Return the failures of a group and of those merged into it, as the end of a mute does."""
    merged = FailureGroup.objects.using(tx.using).filter(merged_into=row.fingerprint)
    return row.failures + sum(merged.values_list("failures", flat=True))


def _refusal(reason: RefusalReason, row: FailureGroup) -> Refusal:
    return Refusal(reason, group=row.fingerprint, state=GroupState(row.state))


def _fingerprints(given: str | Iterable[str]) -> list[str]:
    """Return fingerprints without repetitions. Raises TypeError and ValueError."""
    found: list[object] = [given] if isinstance(given, str) else list(dict.fromkeys(given))
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"a fingerprint is a text, not {short_repr(one)}")
        check_text("fingerprint", one)
    if len(found) > MOST:
        raise ValueError(f"fingerprints: at most {MOST:,} groups in one act")
    return [str(one) for one in found]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _release(text: str) -> str:
    check_text("in_release", text)
    if len(text) > RELEASE_LIMIT:
        raise ValueError(f"in_release: longer than {RELEASE_LIMIT} characters")
    return text.strip()


def _check_owner(owner: str) -> None:
    check_text("owner", owner)
    limit = FailureGroup._meta.get_field("owner").max_length or 0
    if len(owner) > limit:
        raise ValueError(f"owner: longer than {limit} characters")
    if not owner or not apps.is_installed("django.contrib.auth"):
        return
    from django.contrib.auth import get_user_model

    users: Any = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: owner}).first()
    if user is None:
        raise ValueError(f"owner: there is no user {short_repr(owner)}")
    if not user.is_active:
        raise ValueError(f"owner: the user {short_repr(owner)} is not active")


def _ticket(url: str) -> str:
    """Return the address of a ticket. Raises ValueError."""
    address = url.strip()
    if not address:
        return ""
    if len(address) > TICKET_LIMIT:
        raise ValueError(f"url: longer than {TICKET_LIMIT} characters")
    if any(unicodedata.category(character) in _NOT_IN_ADDRESSES for character in address):
        raise ValueError(f"url: {short_repr(address)} contains blanks or hidden characters")
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"url: {short_repr(address)} is no address") from None
    if parts.scheme not in ("http", "https") or not host or "\\" in address:
        raise ValueError(
            f"url: expected an address that starts with http:// or https://, got "
            f"{short_repr(address)}"
        )
    if "@" in parts.netloc:
        raise ValueError("url: an address with a user name or password would be shown to everyone")
    return address


def _note(text: str) -> str:
    shown = storable_text(text.strip(), limit=4 * NOTE_LIMIT + 8)
    if not shown:
        raise ValueError("text: a note cannot be empty")
    if len(shown) > NOTE_LIMIT:
        raise ValueError(f"text: a note has at most {NOTE_LIMIT:,} characters")
    return shown


def _check_note(row: FailureGroup, answers: int, tx: Transaction) -> None:
    """Raise ValueError unless the note is one of the group, or of one that was merged into it."""
    merged = FailureGroup.objects.using(tx.using).filter(merged_into=row.fingerprint)
    own = [row.fingerprint, *merged.values_list("fingerprint", flat=True)]
    notes = GroupEvent.objects.using(tx.using).filter(kind=_Event.NOTE, fingerprint__in=own)
    if not (0 < answers < 2**63 and notes.filter(pk=answers).exists()):
        raise ValueError(f"answers: group {row.fingerprint} has no note {answers}")
