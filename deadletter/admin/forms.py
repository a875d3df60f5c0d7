"""What is an operator asked before an act?"""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from ..models import Queue
from .pages import alias

#: Characters of a reason; the audit trail keeps it for good.
WHY_LIMIT = 2_000


class WhyForm(forms.Form):
    """Why it is done: kept in the audit trail with the operator's name."""

    why = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=WHY_LIMIT,
        help_text=_("Kept in the audit trail with your name."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class RetryForm(WhyForm):
    """Where to as well."""

    queue = forms.ChoiceField(label=_("Into the queue"), required=False)
    field_order = ["queue", "rate", "why"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Queue.objects.using(alias()).order_by("name").values_list("name", flat=True)
        queue = self.fields["queue"]
        assert isinstance(queue, forms.ChoiceField)  # noqa: S101 - declared above
        queue.choices = [("", _("the one it came from")), *((name, name) for name in names)]


class BulkRetryForm(RetryForm):
    """And how fast: a dependency that has just come back should not be run over."""

    rate = forms.FloatField(
        label=_("At most per second"),
        required=False,
        min_value=0.001,
        max_value=1_000_000,
        help_text=_("Empty: all at once. 10: the last of 600 is tried a minute from now."),
        widget=forms.NumberInput(attrs={"step": "any", "min": "0.001", "class": "vIntegerField"}),
    )


class EditForm(WhyForm):
    """The payload as JSON."""

    payload = forms.CharField(
        label=_("Payload (JSON)"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={
                "rows": 18,
                "class": "vLargeTextField dl-editor",
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
            }
        ),
    )
    field_order = ["payload", "why"]
