"""How does a template show text that anybody may have sent?"""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.formats import number_format

from ..visible import visible as _visible

register = template.Library()


@register.filter(is_safe=False)
def visible(value: Any, limit: int | None = None) -> str:
    """Show characters that hide or reorder others by their names; escaped like any text."""
    return _visible(value, limit=limit)


@register.filter
def number(value: Any) -> str:
    """Group the digits as the reader's language does, whatever USE_THOUSAND_SEPARATOR says."""
    return number_format(value, use_l10n=True, force_grouping=True)
