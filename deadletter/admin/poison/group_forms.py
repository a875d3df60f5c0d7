"""The forms of acts on failure groups; `operations` checks the values again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...durations import as_timedelta
from ...models import ApplicationRelease, FailureGroup, primary_alias
from ...models.group import RELEASE_LIMIT
from ...operations.group_acts import NOTE_LIMIT
from ...text import page_text
from ..confirm import WhyForm
from .group_texts import group_label

#: Names and releases that the browser suggests.
SUGGESTED = 100
#: The longest mute by time.
LONGEST_MUTE = timedelta(days=366)


def _text(label: Any, help_text: Any = "", **attrs: Any) -> forms.CharField:
    given = {"class": "vTextField", "autocomplete": "off", **attrs}
    return forms.CharField(
        label=label, required=False, help_text=help_text, widget=forms.TextInput(attrs=given)
    )


class GroupActForm(WhyForm):
    """A form whose first field has the focus; `suggestions` are the values of its lists."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shown = [field for field in self.fields.values() if not field.widget.is_hidden]
        if len(shown) > 1:
            self.fields["why"].widget.attrs.pop("autofocus", None)
            shown[0].widget.attrs["autofocus"] = True

    def suggestions(self) -> list[tuple[str, list[str]]]:
        """Return the lists that fields refer to: their ids and their values."""
        return []


class MuteGroupForm(GroupActForm):
    duration = _text(_("For how long"), _("30m, 4h or 2d. Empty: no end by time."), maxlength=40)
    grows_by = forms.IntegerField(
        label=_("Until it has failed so many times more"),
        required=False,
        min_value=1,
        max_value=1_000_000_000,
        help_text=_("Both empty: until a person reopens it."),
        widget=forms.NumberInput(attrs={"class": "vIntegerField", "min": 1}),
    )
    field_order = ("duration", "grows_by", "why")

    def clean_duration(self) -> timedelta | None:
        given = self.cleaned_data["duration"].strip()
        if not given:
            return None
        try:
            length = as_timedelta(given)
        except ValueError:
            text = gettext("This is no duration. Write 30m, 4h or 2d.")
            raise ValidationError(text) from None
        if not timedelta(0) < length <= LONGEST_MUTE:
            raise ValidationError(gettext("More than nothing and at most a year."))
        return length


class ResolveGroupForm(GroupActForm):
    in_release = _text(
        _("In the release"),
        _(
            "Empty: now, and the next failure opens it again. With a release, failures in releases "
            "before it are expected; one in it, or in a later one, opens it again."
        ),
        maxlength=RELEASE_LIMIT,
        list="dl-releases",
    )
    field_order = ("in_release", "why")

    def suggestions(self) -> list[tuple[str, list[str]]]:
        rows = ApplicationRelease.objects.using(primary_alias()).order_by("-pk")
        return [("dl-releases", list(rows.values_list("name", flat=True)[:SUGGESTED]))]


class AssignGroupForm(GroupActForm):
    owner = _text(_("Owner"), _("A user name. Empty: nobody."), maxlength=200, list="dl-owners")
    field_order = ("owner", "why")

    def clean_owner(self) -> str:
        owner = str(self.cleaned_data["owner"]).strip()
        users: Any = get_user_model()
        rows = users._default_manager.filter(is_active=True)
        if owner and not rows.filter(**{users.USERNAME_FIELD: owner}).exists():
            raise ValidationError(gettext("There is no active user with this name."))
        return owner

    def suggestions(self) -> list[tuple[str, list[str]]]:
        users: Any = get_user_model()
        rows = users._default_manager.filter(is_active=True, is_staff=True)
        column = users.USERNAME_FIELD
        names = rows.order_by(column).values_list(column, flat=True)[:SUGGESTED]
        return [("dl-owners", [str(name) for name in names])]


class TicketForm(GroupActForm):
    url = _text(
        _("Address of the ticket"),
        _("https://… Empty: no ticket."),
        maxlength=500,
        placeholder="https://",
        inputmode="url",
    )
    field_order = ("url", "why")

    def clean_url(self) -> str:
        given = str(self.cleaned_data["url"]).strip()
        if given and not given.startswith(("http://", "https://")):
            raise ValidationError(gettext("An address begins with https:// or http://."))
        return given


class NoteForm(GroupActForm):
    """A note needs no reason: it is one."""

    text = forms.CharField(
        label=_("Note"),
        max_length=NOTE_LIMIT,
        help_text=_("Everybody who may see the group can read it, with your name."),
        error_messages={"required": _("Write something.")},
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
    )
    answers = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)
    field_order = ("text", "answers")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["why"]


class MergeGroupsForm(GroupActForm):
    """Asks which group stays, and which others are shown in it."""

    main = forms.ChoiceField(label=_("Shown as"))
    others = forms.MultipleChoiceField(
        label=_("Groups that are shown in it"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    more = _text(_("Other groups"), _("Their fingerprints, separated by blanks."), maxlength=1_000)
    field_order = ("main", "others", "more", "why")

    def set_groups(
        self, selected: Sequence[FailureGroup], candidates: Sequence[FailureGroup]
    ) -> None:
        """Offer the selected groups as the main one, and the candidates as the others."""
        main, others = self.fields["main"], self.fields["others"]
        assert isinstance(main, forms.ChoiceField)  # noqa: S101 - declared above
        assert isinstance(others, forms.MultipleChoiceField)  # noqa: S101 - declared above
        main.choices = [(group.fingerprint, _choice(group)) for group in selected]
        if len(selected) == 1:
            main.widget = forms.HiddenInput()
            main.initial = selected[0].fingerprint
        others.choices = [(group.fingerprint, _choice(group)) for group in candidates]
        if not candidates:
            del self.fields["others"]
        if len(selected) > 1:
            del self.fields["more"]

    def clean_more(self) -> list[str]:
        return str(self.cleaned_data["more"]).replace(",", " ").split()


def _choice(group: FailureGroup) -> str:
    """Name a group so that two of one message name can be told apart."""
    parts = (
        group_label(group),
        page_text(group.frame, limit=200),
        page_text(group.name, limit=100),
    )
    return f"{', '.join(filter(None, parts))} ({group.fingerprint})"
