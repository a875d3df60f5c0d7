"""Acts on failure groups: triage, owner, ticket, notes, merge and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext, ngettext

from ... import clock, operations
from ...models import FailureGroup, primary_alias
from ...operations import GroupResult
from ...text import page_text
from ..base import as_id, tell, write_log
from ..confirm import ActSubject, ActView, Question, WhyForm, command
from ..lookups import refuse_others
from ..render import refusal_text
from . import group_forms
from .frame import GroupPageView
from .group_texts import group_label, group_state

#: Groups that one act takes.
AT_ONCE = 100
#: Refusals that are told; candidates for a merge that are offered.
TOLD, CANDIDATES = 5, 15


class GroupActView(GroupPageView, ActView):
    """An act on the groups that the address names in its parameters "group"."""

    template = "poison/group_act"
    base_template = "admin/deadletter/poison/base.html"
    permission = "deadletter.triage_group"
    #: The name of the act on the command line.
    verb: str
    #: What was done, in words; set by `act`.
    done_text: str
    #: Parameters of the page besides the groups.
    also: tuple[str, ...] = ()
    #: Groups that are shown in another one; the others are left out.
    of_merged = False
    groups: list[FailureGroup]

    def prepare(self) -> HttpResponse | None:
        request = self.request
        refuse_others(request, ("group", "next", *self.also))
        given = request.POST if request.method == "POST" else request.GET
        wanted = given.getlist("group") or request.GET.getlist("group")
        self.now = clock.now(primary_alias())
        self.groups = self.read(list(dict.fromkeys(wanted))[:AT_ONCE])
        self.list_url = self.url("changelist")
        if not self.groups:
            tell(request, gettext("Select at least one group."), messages.WARNING)
            return HttpResponseRedirect(self.list_url)
        first = self.groups[0]
        own = self.url("group", first.merged_into or first.fingerprint)
        self.back = self.came_from(own if len(self.groups) == 1 else self.list_url)
        return None

    def read(self, fingerprints: Sequence[str]) -> list[FailureGroup]:
        """Return the groups that exist, in the order of the address."""
        known = [text for text in fingerprints if text.isascii() and text.isalnum()]
        rows = FailureGroup.objects.using(primary_alias()).filter(fingerprint__in=known)
        rows = rows.exclude(merged_into="") if self.of_merged else rows.main()
        found = {row.fingerprint: row for row in rows}
        return [found[text] for text in known if text in found]

    @property
    def fingerprints(self) -> list[str]:
        return [group.fingerprint for group in self.groups]

    def make_question(self, title: str, button: str, says: Sequence[str], **given: Any) -> Question:
        """Return the question; the title names the groups as %(groups)s."""
        return Question(
            title=title % {"groups": _named(self.groups)},
            button=button,
            says=says,
            subjects=[self._subject(group) for group in self.groups],
            hidden=[*(("group", text) for text in self.fingerprints), ("next", self.back)],
            back=self.back,
            **{"command": command("group", self.verb, *self.fingerprints, why="…"), **given},
        )

    def _subject(self, group: FailureGroup) -> ActSubject:
        state = group_state(group, self.now)
        about = (group.frame, group.name, ": ".join(filter(None, (state.label, state.text))))
        return ActSubject(
            label=group_label(group),
            about=[text for text in about if text],
            url=self.url("group", group.merged_into or group.fingerprint),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        try:
            result = self.act(form)
        except ValueError as problem:
            form.add_error(None, page_text(str(problem), limit=500))
            return self.ask(form)
        done = [group for group in self.groups if self.is_done(group, result)]
        if done:
            write_log(self.request, done, self.done_text, why=form.cleaned_data.get("why", ""))
            tell(self.request, f"{_named(done)}: {self.done_text}")
        for why in list(result.refused.values())[:TOLD]:
            text = gettext("Refused: %(why)s.") % {"why": refusal_text(why)}
            tell(self.request, text, messages.WARNING)
        if result.missing:
            tell(self.request, gettext("Some of the groups exist no more."), messages.WARNING)
        return HttpResponseRedirect(self.back)

    def is_done(self, group: FailureGroup, result: GroupResult) -> bool:
        return group.fingerprint in result.done

    def act(self, form: WhyForm) -> GroupResult:
        """Do it, and set `done_text`. Raises ValueError with a sentence for wrong values."""
        raise NotImplementedError


class AcknowledgeGroupView(GroupActView):
    verb = "ack"

    def question(self) -> Question:
        return self.make_question(
            gettext("Acknowledge %(groups)s?"),
            gettext("Acknowledge"),
            [
                gettext("It says, with your name, that somebody knows of the failures."),
                gettext("The group stays open. A mute ends."),
            ],
        )

    def act(self, form: WhyForm) -> GroupResult:
        self.done_text = gettext("acknowledged.")
        return operations.acknowledge_group(
            self.fingerprints, by=self.by, why=form.cleaned_data["why"]
        )


class MuteGroupView(GroupActView):
    verb = "mute"
    form_class = group_forms.MuteGroupForm

    def question(self) -> Question:
        return self.make_question(
            gettext("Mute %(groups)s?"),
            gettext("Mute"),
            [
                gettext("A muted group needs no person until its mute ends."),
                gettext("Its messages fail and die as before, and are counted."),
            ],
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        self.done_text = gettext("muted.")
        return operations.mute_group(
            self.fingerprints,
            duration=given["duration"],
            grows_by=given["grows_by"],
            by=self.by,
            why=given["why"],
        )


class ResolveGroupView(GroupActView):
    verb = "resolve"
    form_class = group_forms.ResolveGroupForm

    def question(self) -> Question:
        return self.make_question(
            gettext("Resolve %(groups)s?"),
            gettext("Resolve"),
            [
                gettext("It says that the cause is repaired. If it fails again, it is regressed."),
                gettext("Its poison records stay: retry or remove them as well."),
            ],
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        self.done_text = gettext("resolved.")
        return operations.resolve_group(
            self.fingerprints, in_release=given["in_release"], by=self.by, why=given["why"]
        )


class ReopenGroupView(GroupActView):
    verb = "reopen"

    def question(self) -> Question:
        return self.make_question(
            gettext("Reopen %(groups)s?"),
            gettext("Reopen"),
            [gettext("The group is new again: it needs a person.")],
        )

    def act(self, form: WhyForm) -> GroupResult:
        self.done_text = gettext("reopened.")
        return operations.reopen_group(self.fingerprints, by=self.by, why=form.cleaned_data["why"])


class AssignGroupView(GroupActView):
    verb = "assign"
    form_class = group_forms.AssignGroupForm
    also = ("owner",)

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = super().form(data)
        owners = {group.owner for group in self.groups}
        given = self.request.GET.get("owner", "")[:200]
        form.initial["owner"] = given or (owners.pop() if len(owners) == 1 else "") or self.by
        return form

    def question(self) -> Question:
        return self.make_question(
            gettext("Assign %(groups)s?"),
            gettext("Assign"),
            [gettext("The owner is the person who works on it. Others may act on it as well.")],
            command=command("group", "assign", *self.fingerprints, owner="…", why="…"),
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        owner = given["owner"].strip()
        self.done_text = gettext("assigned to %(owner)s.") % {"owner": page_text(owner, limit=200)}
        if not owner:
            self.done_text = gettext("without an owner now.")
        return operations.assign_group(self.fingerprints, owner, by=self.by, why=given["why"])


class TicketGroupView(GroupActView):
    verb = "ticket"
    form_class = group_forms.TicketForm

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = super().form(data)
        if len(self.groups) == 1:
            form.initial["url"] = self.groups[0].ticket
        return form

    def question(self) -> Question:
        return self.make_question(
            gettext("Link %(groups)s to a ticket"),
            gettext("Link"),
            [gettext("The address is shown with the group. Nothing is sent to it.")],
            command=command("group", "ticket", *self.fingerprints, url="…", why="…"),
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        self.done_text = gettext("linked to the ticket.")
        if not given["url"].strip():
            self.done_text = gettext("without a ticket now.")
        return operations.link_ticket(self.fingerprints, given["url"], by=self.by, why=given["why"])


class NoteGroupView(GroupActView):
    """Writes a note on one group; its form is on the page of the group as well."""

    verb = "note"
    permission = "deadletter.note_group"
    form_class = group_forms.NoteForm
    also = ("answers",)

    def read(self, fingerprints: Sequence[str]) -> list[FailureGroup]:
        return super().read(fingerprints)[:1]

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = self.form_class(data)
        form.initial["answers"] = as_id(self.request.GET.get("answers", ""))
        return form

    def question(self) -> Question:
        answered = "answers" in self.request.GET or bool(self.request.POST.get("answers"))
        return self.make_question(
            gettext("Answer a note on %(groups)s")
            if answered
            else gettext("Write a note on %(groups)s"),
            gettext("Write"),
            [gettext("The note is kept in the timeline of the group, with your name.")],
            command=command("group", "note", *self.fingerprints, text="…"),
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        self.done_text = gettext("note written.")
        return operations.write_note(
            self.fingerprints[0], given["text"], answers=given["answers"], by=self.by
        )


class MergeGroupsView(GroupActView):
    verb = "merge"
    permission = "deadletter.merge_group"
    form_class = group_forms.MergeGroupsForm

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = super().form(data)
        assert isinstance(form, group_forms.MergeGroupsForm)  # noqa: S101 - the class above
        form.set_groups(self.groups, self.candidates() if len(self.groups) == 1 else [])
        return form

    def candidates(self) -> list[FailureGroup]:
        """Return groups of the same message name, the latest failure first."""
        rows = FailureGroup.objects.using(primary_alias()).main()
        (group,) = self.groups
        same = rows.filter(name=group.name).exclude(fingerprint=group.fingerprint)
        return list(same.order_by("-last_failed_at", "-pk")[:CANDIDATES])

    def question(self) -> Question:
        return self.make_question(
            gettext("Merge %(groups)s with others")
            if len(self.groups) == 1
            else gettext("Merge %(groups)s"),
            gettext("Merge"),
            [
                gettext(
                    "The other groups are shown in the main one, and counted with it. Its state, "
                    "owner and ticket stay."
                ),
                gettext("Later failures of the others are shown there as well."),
                gettext("Each can be split off again. It is a new group then."),
            ],
        )

    def act(self, form: WhyForm) -> GroupResult:
        given = form.cleaned_data
        main = given["main"]
        chosen = [text for text in self.fingerprints if text != main]
        others = dict.fromkeys([*chosen, *given.get("others", []), *given.get("more", [])])
        if not others:
            raise ValueError(gettext("Choose at least one other group."))
        self.done_text = gettext("merged.")
        self.back = self.url("group", main)
        return operations.merge_groups(main, list(others), by=self.by, why=given["why"])

    def is_done(self, group: FailureGroup, result: GroupResult) -> bool:
        # The main group is changed, and is none of those that were merged.
        return bool(result.done)


class SplitGroupView(GroupActView):
    verb = "split"
    permission = "deadletter.merge_group"
    of_merged = True

    def question(self) -> Question:
        return self.make_question(
            gettext("Split %(groups)s off?"),
            gettext("Split off"),
            [gettext("The group is shown by itself again, as a new one, with its own failures.")],
        )

    def act(self, form: WhyForm) -> GroupResult:
        self.done_text = gettext("split off.")
        return operations.split_group(self.fingerprints, by=self.by, why=form.cleaned_data["why"])


#: The acts on groups by the name that they have in an address.
GROUP_ACTS: dict[str, type[GroupActView]] = {
    "acknowledge": AcknowledgeGroupView,
    "mute": MuteGroupView,
    "resolve": ResolveGroupView,
    "reopen": ReopenGroupView,
    "assign": AssignGroupView,
    "ticket": TicketGroupView,
    "note": NoteGroupView,
    "merge": MergeGroupsView,
    "split": SplitGroupView,
}


def _named(groups: Sequence[FailureGroup]) -> str:
    """Name the one group, or say how many they are."""
    n = len(groups)
    if n == 1:
        return group_label(groups[0])
    return ngettext("%(n)s group", "%(n)s groups", n) % {"n": n}
