"""How does the template that Django chooses for the index of this app get at its numbers?"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import template
from django.utils.translation import gettext

if TYPE_CHECKING:
    from ..admin.dashboard.board import Board

register = template.Library()


@register.simple_tag(takes_context=True)
def dashboard(context: Any) -> Board:
    """Read the dashboard for the person and the AdminSite of this request."""
    # Here, not above: Django loads every library of tags, also on a site without the admin.
    from ..admin.dashboard.board import read_dashboard

    return read_dashboard(context["request"], context.get("app_list", ()))


@register.filter
def age(at: datetime, now: datetime) -> str:
    """Say how long ago in one unit: 40 s, 12 min, 3 h, 2 d."""
    seconds = max(int((now - at).total_seconds()), 0)
    if seconds < 60:
        return gettext("%(n)s s") % {"n": seconds}
    if seconds < 3_600:
        return gettext("%(n)s min") % {"n": seconds // 60}
    if seconds < 172_800:
        return gettext("%(n)s h") % {"n": seconds // 3_600}
    return gettext("%(n)s d") % {"n": seconds // 86_400}
