"""Filters for templates: text from untrusted senders, numbers and times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.formats import number_format

from .. import times
from ..text import page_text

register = template.Library()


@register.filter(is_safe=False)
def visible(value: Any, limit: int | None = None) -> str:
    """Replace characters that hide or reorder others by their code points; escaped as usual."""
    return page_text(value, limit=limit)


@register.filter
def number(value: Any) -> str:
    """Group the digits by the active locale, also without USE_THOUSAND_SEPARATOR."""
    return number_format(value, use_l10n=True, force_grouping=True)


@register.filter
def moment(value: Any) -> str:
    """Show a time with seconds and zone; any other value as untrusted text."""
    return times.moment(value) if isinstance(value, datetime) else page_text(value, limit=100)


@register.filter
def ago(at: datetime, now: datetime | None = None) -> str:
    return times.ago(at, now or timezone.now())


@register.filter
def ahead(at: datetime, now: datetime | None = None) -> str:
    return times.ahead(at, now or timezone.now())


@register.filter
def lasting(at: datetime, now: datetime | None = None) -> str:
    return times.lasting(at, now or timezone.now())
