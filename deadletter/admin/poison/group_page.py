"""The page of a failure group: its state, its acts, what happened, and what it has in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from ... import clock, operations
from ...models import GroupState, PoisonRecord, primary_alias
from ...operations import Comparison, FailureGroupDetails, FailureGroupRow
from ...operations.failure_groups import COUNTED, STREAMS_COUNTED, STREAMS_SHOWN, read_sizes
from ...operations.streams import COUNTED as WAITING_COUNTED
from ...text import page_text
from ..base import tell
from ..confirm import command
from ..counts import Capped
from ..history import Attempt
from ..history import timeline as attempts_of
from ..lookups import refuse_others
from ..outside_links import links_of_group
from ..urls import to_group
from .frame import GroupPageView
from .group_chart import draw_group, group_windows
from .group_forms import NoteForm
from .group_texts import group_label, group_state
from .group_timeline import read_timeline

#: Merged groups that the page lists.
MERGED_SHOWN = 25


class GroupView(GroupPageView):
    details: FailureGroupDetails

    def prepare(self) -> HttpResponse | None:
        refuse_others(self.request, ("window", "older"))
        wanted = self.kwargs["fingerprint"]
        chosen = self.request.GET.get("window", "")
        self.window = next((one for one in group_windows() if one.name == chosen), None)
        length = self.window.length if self.window else None
        found = operations.get_failure_group(wanted, window=length, using=primary_alias())
        if found is None:
            text = gettext("There is no group %(group)s, or its failures are not counted yet.")
            tell(self.request, text % {"group": page_text(wanted, limit=50)}, messages.WARNING)
            return HttpResponseRedirect(self.url("records", fingerprint=wanted[:100]))
        if found.group.fingerprint != wanted:
            text = gettext("Group %(group)s was merged: it is shown in this one.")
            tell(self.request, text % {"group": page_text(wanted, limit=50)}, messages.INFO)
            return HttpResponseRedirect(self.url("group", found.group.fingerprint))
        self.details = found
        return None

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        details, now, texts = self.details, clock.now(primary_alias()), self.rights.payload
        group = details.group
        records_url = self.url("records", fingerprint=group.fingerprint)
        sample = find_sample(group)
        return self.page(
            "poison/group",
            group_label(group),
            tab="group",
            group=group,
            label=group_label(group),
            state=group_state(group, now),
            numbers=GroupNumbers.of(group),
            acts=self.acts(group),
            records_url=records_url,
            dead_queues_url=to_group(self.site_name, group.fingerprint),
            advice=self.advice(group),
            figure=draw_group(details.series, records_url),
            windows=self.windows(),
            releases=details.releases,
            sample=sample,
            attempt=last_attempt(sample, texts=texts),
            comparison=compare(group, texts=texts),
            tags=details.tags if texts else None,
            tag_url=self.url("tag"),
            streams=[(one, _capped(one.waiting, WAITING_COUNTED)) for one in details.streams],
            more_streams=group.halted > STREAMS_SHOWN,
            merged=self.merged(),
            timeline=read_timeline(self, group, self.older()),
            note_form=self.note_form(),
            commands=self.commands(group),
            outside=links_of_group(group),
            now=now,
        )

    def advice(self, group: FailureGroupRow) -> list[operations.Advice]:
        """Return what to know before a retry, for those who may retry what is there."""
        if not (group.records and self.rights.retry):
            return []
        return operations.retry_advice(group.fingerprint, using=primary_alias())

    def older(self) -> datetime | None:
        """Return the place where this page of the timeline begins; None: at the newest entry."""
        try:
            at = parse_datetime(self.request.GET.get("older", ""))
        except ValueError:
            return None
        return at if at is not None and at.utcoffset() is not None else None

    def windows(self) -> list[dict[str, Any]]:
        all_of_it = {"label": gettext("All"), "url": "?", "here": self.window is None}
        return [
            all_of_it,
            *(
                {"label": one.label, "url": f"?window={one.name}", "here": one == self.window}
                for one in group_windows()
            ),
        ]

    def acts(self, group: FailureGroupRow) -> list[dict[str, str]]:
        """Return the acts that this person may do in this state, the usual next one first."""
        found = []
        if self.rights.triage:
            if group.state in (GroupState.NEW, GroupState.REGRESSED):
                found.append(("acknowledge", gettext("Acknowledge…")))
            if group.state != GroupState.RESOLVED:
                found.append(("resolve", gettext("Resolve…")))
                found.append(("mute", gettext("Mute…")))
            if group.state not in (GroupState.NEW, GroupState.REGRESSED):
                found.append(("reopen", gettext("Reopen…")))
            found.append(("assign", gettext("Assign…")))
            found.append(("ticket", gettext("Ticket…")))
        if self.rights.merge:
            found.append(("merge", gettext("Merge…")))
        return [
            {"slug": act, "label": label, "url": self.url(f"group_{act}", group=group.fingerprint)}
            for act, label in found
        ]

    def merged(self) -> list[dict[str, Any]]:
        """Return the groups that were merged into this one, each with its own records."""
        rows = self.details.merged[:MERGED_SHOWN]
        sizes = read_sizes([row.fingerprint for row in rows], using=primary_alias())
        return [
            {
                "group": row,
                "label": group_label(row),
                "count": _capped(sum(sizes.get(row.fingerprint, (0, 0, 0))[:2]), COUNTED),
                "records_url": self.url("records", fingerprint=row.fingerprint),
                "split_url": self.url("group_split", group=row.fingerprint)
                if self.rights.merge
                else "",
            }
            for row in rows
        ]

    def note_form(self) -> NoteForm | None:
        """Return the form below the chart; it must not take the focus from the top of the page."""
        if not self.rights.note:
            return None
        form = NoteForm()
        form.fields["text"].widget.attrs.pop("autofocus", None)
        return form

    def commands(self, group: FailureGroupRow) -> list[str]:
        found = [command("group", "show", group.fingerprint)]
        if self.rights.triage:
            found.append(command("group", "resolve", group.fingerprint, why="…"))
        if self.rights.retry and group.records:
            found.append(command("retry", fingerprint=group.fingerprint, why="…"))
        return found


@dataclass(frozen=True)
class GroupNumbers:
    """What is left of a group in the tables now, capped."""

    records: Capped
    in_dead_queues: Capped
    halted: Capped

    @classmethod
    def of(cls, group: FailureGroupRow) -> GroupNumbers:
        return cls(
            _capped(group.records, COUNTED),
            _capped(group.in_dead_queues, COUNTED),
            _capped(group.halted, STREAMS_COUNTED),
        )


def compare(group: FailureGroupRow, *, texts: bool) -> Comparison:
    """Compare the messages of a group; what they contain comes before what they are."""
    found = operations.compare_records(group.fingerprint, payloads=texts, using=primary_alias())
    shared = sorted(
        found.shared, key=lambda one: (one.source == "message", one.source != "payload")
    )
    return replace(found, shared=tuple(shared))


def find_sample(group: FailureGroupRow) -> PoisonRecord | None:
    """Return the latest record of a group, without its large columns."""
    if not group.records:
        return None
    rows = PoisonRecord.objects.using(primary_alias()).without_bodies()
    found = rows.defer("last_error", "verdict").filter(fingerprint__in=group.fingerprints)
    return found.order_by("-poisoned_at", "-pk").first()


def last_attempt(sample: PoisonRecord | None, *, texts: bool) -> Attempt | None:
    """Return the attempt that a record died of, with its traceback if it has one."""
    if sample is None:
        return None
    lives = attempts_of(sample, payloads=texts).lives
    found = lives[0].attempts[0] if lives and lives[0].attempts else None
    return found if found is not None and found.traceback is not None else None


def _capped(n: int, limit: int) -> Capped:
    return Capped(min(n, limit), n > limit)
