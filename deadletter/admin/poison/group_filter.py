"""Which groups an address asks for. An address that cannot be read matches nothing and says why."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import ApplicationRelease, GroupState, Queue, primary_alias
from ...operations import GroupFilter
from ...operations.failure_groups import OPEN, STATE_ORDER

#: Releases that the browser suggests.
SUGGESTED = 50
#: Fields that quote payloads or texts of errors.
_WITH_PAYLOAD = ("tag", "text")


def _text(label: Any, **attrs: Any) -> forms.CharField:
    # The length is checked by GroupFilter; this only stops the browser.
    widget = forms.TextInput(attrs={"maxlength": 1_000, **attrs})
    return forms.CharField(label=label, required=False, widget=widget)


class GroupFilterForm(forms.Form):
    """
    The filter of the list of groups.

    An empty field filters nothing; groups without an owner are asked for with `nobody`.
    """

    state = forms.CharField(label=_("State"), required=False, widget=forms.Select)
    owner = _text(_("Owner"))
    nobody = forms.BooleanField(label=_("Without an owner"), required=False)
    release = _text(_("Release"), list="dl-release-list")
    queue = _text(_("Queue"), list="dl-queue-list")
    name = _text(_("Name"))
    tag = _text(_("Tag"), placeholder="customer.id=1041")
    text = _text(_("Text"), placeholder=_("exception, place, error, ticket"))

    def __init__(
        self, given: QueryDict, *, texts: bool, besides: frozenset[str] = frozenset()
    ) -> None:
        """Read a query; `besides` are parameters of the page itself; `texts`: may read payloads."""
        super().__init__(given, auto_id="dl-%s")
        self.unknown = sorted(set(given) - {*GROUP_FIELDS, *besides})
        self.forbidden = not texts and any(given.get(key, "").strip() for key in _WITH_PAYLOAD)
        if not texts:
            for key in _WITH_PAYLOAD:
                del self.fields[key]
        self.wanted = GroupFilter()
        self.full_clean()

    def clean(self) -> None:
        if self.unknown:
            text = gettext("There is no filter “%(name)s”.")
            raise ValidationError(text % {"name": self.unknown[0][:100]})
        if self.forbidden:
            text = gettext("You do not have permission to see error texts or search them.")
            raise ValidationError(text)
        values = {key: value.strip() for key, value in self.cleaned_data.items() if key != "nobody"}
        found: dict[str, str] = {key: value for key, value in values.items() if value}
        if self.cleaned_data.get("nobody"):
            found["owner"] = ""
        try:
            self.wanted = GroupFilter(**found)
        except ValueError as error:
            raise ValidationError(str(error)[:500]) from error

    @property
    def problem(self) -> str:
        """Why the filter cannot be read; "": it can."""
        return next((str(text) for texts in self.errors.values() for text in texts), "")

    @property
    def query(self) -> dict[str, str]:
        """The filter as an address carries it."""
        given = {key: self.data.get(key, "").strip() for key in self.fields}
        return {key: value for key, value in given.items() if value}

    @property
    def shown(self) -> list[tuple[str, str]]:
        """The filter in words: label and value of each field that is not empty."""
        query = self.query
        found = []
        for key, value in query.items():
            if key == "state":
                value = dict(state_choices()).get(value, value)
            found.append((str(self.fields[key].label), "" if key == "nobody" else str(value)))
        return found

    def address(self, **changed: str | None) -> str:
        """Return the query with some values changed; None or "" takes one out."""
        query = QueryDict(mutable=True)
        for key, value in {**self.query, **changed}.items():
            if value:
                query[key] = value
        return f"?{query.urlencode()}"

    def with_choices(self) -> GroupFilterForm:
        """Add the choices that a page shows."""
        widget = self.fields["state"].widget
        assert isinstance(widget, forms.Select)  # noqa: S101 - declared above
        widget.choices = [("", gettext("any")), *state_choices()]
        return self

    def queue_names(self) -> list[str]:
        """Return the queues that the browser suggests."""
        rows = Queue.objects.using(primary_alias()).order_by("name")
        return list(rows.values_list("name", flat=True))

    def releases(self) -> list[str]:
        """Return the releases that the browser suggests, the latest first."""
        rows = ApplicationRelease.objects.using(primary_alias()).order_by("-pk")
        return list(rows.values_list("name", flat=True)[:SUGGESTED])


#: Parameters of the filter, in the order of the form.
GROUP_FIELDS = tuple(GroupFilterForm.base_fields)


def state_choices() -> list[tuple[str, str]]:
    """Return the states of the filter with their labels."""
    states = [(str(state), str(GroupState(state).label)) for state in STATE_ORDER]
    return [(OPEN, gettext("needs a person")), *states]
