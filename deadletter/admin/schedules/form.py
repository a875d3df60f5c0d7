"""The form of a schedule: checked as a whole when it is sent, with a preview of its next runs."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock, operations
from ...exceptions import PayloadRejected, Undecodable
from ...models import Damaged, Queue, Schedule, Sends, primary_alias
from ...operations import redact
from ...operations.breakers import known_names
from ...operations.hidden_values import HiddenValueMoved, refuse_markers, restore
from ...payload import accept, decode
from ...schedules import CannotFire, check
from ...tasks import lookup
from ...text import escape_hidden
from ...timetable import TimetableError
from ..confirm import WHY_LIMIT
from ..render import pretty

if TYPE_CHECKING:  # the class is generic to the type checker only
    _ModelForm = forms.ModelForm[Schedule]
else:
    _ModelForm = forms.ModelForm

#: The name of the button that shows the next runs and saves nothing.
PREVIEW = "_preview"
#: Runs that a preview shows.
RUNS = 10
#: Suggestions of a field.
SUGGESTED = 500
#: JSON columns: the form shows them as text.
BODIES = ("payload", "headers")


def _json(label: Any, help_text: Any, rows: int) -> forms.CharField:
    attrs = {
        "rows": rows,
        "class": "vLargeTextField dl-editor",
        "spellcheck": "false",
        "autocapitalize": "off",
        "autocomplete": "off",
    }
    widget = forms.Textarea(attrs=attrs)
    return forms.CharField(label=label, required=False, widget=widget, help_text=help_text)


class ScheduleForm(_ModelForm):
    payload = _json(
        _("Payload (JSON)"),
        _("Of a task: {“args”: […], “kwargs”: {…}}. Empty: none."),
        4,
    )
    headers = _json(_("Headers (JSON)"), _("An object. Empty: none."), 2)
    why = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=WHY_LIMIT,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=_("Kept in the audit trail with your name."),
    )

    #: False for people who may not see payloads: the form then leaves the stored ones alone.
    shows_bodies = True

    class Meta:
        model = Schedule
        fields = ("name", *(name for name in Schedule.DEFINITION if name not in BODIES))
        help_texts: ClassVar[Any] = {"interval": _("30s, 10m, 1h30m, 1d: at least a second.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in BODIES:
            if not self.shows_bodies:
                self.fields.pop(name, None)
            elif (stored := getattr(self.instance, name)) is not None:
                self.initial[name] = escape_hidden(_shown(stored))
        for name, list_id in SUGGESTIONS.items():
            if name in self.fields:
                self.fields[name].widget.attrs |= {"list": list_id, "autocomplete": "off"}
        for field in self.fields.values():
            if isinstance(field.widget, forms.MultiWidget):
                # Django's label names neither the date nor the time.
                parts = (gettext("Date"), gettext("Time"))
                for part, text in zip(field.widget.widgets, parts, strict=True):
                    part.attrs["aria-label"] = f"{field.label}: {text}"
        #: Moments, after a click on "preview"; None: there was none, or the times are wrong.
        self.preview: list[datetime] | None = None

    @property
    def is_preview(self) -> bool:
        return self.is_bound and PREVIEW in self.data

    def is_valid(self) -> bool:
        """Return False for a preview, so that nothing is saved; its errors are shown as usual."""
        is_valid = super().is_valid()
        if not self.is_preview:
            return is_valid
        self._find_preview()
        return False

    def clean_payload(self) -> Any:
        return self._read("payload")

    def clean_headers(self) -> Any:
        found = self._read("headers")
        if found is not None and not isinstance(found, dict):
            raise ValidationError(gettext("Expected an object: {…}."))
        return found

    def _read(self, name: str) -> Any:
        """Decode a JSON field; values that were hidden from the editor are put back."""
        text = self.cleaned_data[name]
        if not text.strip():
            return None
        try:
            value = decode(text)
            before = getattr(self.instance, name)
            if before is None or isinstance(before, Damaged):
                refuse_markers(value)
            else:
                value = restore(value, before)
            accept(value, field=name, limit=2**62)
        except (Undecodable, HiddenValueMoved, PayloadRejected) as error:
            raise ValidationError(str(error)) from None
        return value

    def _post_clean(self) -> None:
        """Check the schedule as a whole, and that its message could be sent now."""
        super()._post_clean()  # type: ignore[misc]
        for name in BODIES:
            if name in self.cleaned_data:
                setattr(self.instance, name, self.cleaned_data[name])
        if self.errors:
            self._check_message()
            return
        try:
            operations.validate_schedule(self.instance)
        except ValidationError as error:
            self._add(error)

    def _check_message(self) -> None:
        """Check what is sent although the times are wrong: all errors are shown at once."""
        if not set(self.errors) & {"kind", "target", "queue", *BODIES}:
            try:
                check(self.instance, using=primary_alias())
            except CannotFire as error:
                self._add(ValidationError({error.field: [error.problem]}))

    def _add(self, error: ValidationError) -> None:
        if not hasattr(error, "error_dict"):
            self.add_error(None, error)
            return
        for name, found in error.message_dict.items():
            # A field that the form does not show has no place for its error.
            is_shown = name in self.fields
            for text in found:
                self.add_error(name if is_shown else None, text if is_shown else f"{name}: {text}")

    def _find_preview(self) -> None:
        if any(name in self.errors for name in Schedule.TIMING):
            return
        alias = primary_alias()
        try:
            self.preview = operations.next_runs(
                self.instance, RUNS, after=clock.now(alias), using=alias
            )
        except TimetableError as error:
            self.add_error(error.field if error.field in self.fields else None, str(error))


#: The ids of the lists of suggestions, by field.
SUGGESTIONS = {"target": "dl-targets", "queue": "dl-queues", "time_zone": "dl-zones"}


def suggestions() -> dict[str, list[str]]:
    """Return what the form suggests, by the id of its list. The number is bounded."""
    alias = primary_alias()
    targets = sorted({*known_names(using=alias), *lookup.known_paths()})
    queues = Queue.objects.using(alias).order_by("name").values_list("name", flat=True)
    return {
        "dl-targets": targets[:SUGGESTED],
        "dl-queues": list(queues[:SUGGESTED]),
        "dl-zones": sorted(available_timezones()),
    }


def as_options(cleaned: dict[str, Any], names: Any) -> dict[str, Any]:
    """Return the options of `create_schedule` and `set_schedule` for these fields of a form."""
    found = {name: cleaned[name] for name in names if name in cleaned}
    if "kind" in found:
        found["kind"] = Sends(found["kind"]).value
    return found


def _shown(value: Any) -> str:
    return pretty(redact(value.text if isinstance(value, Damaged) else value))
