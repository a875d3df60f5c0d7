"""Tags for the dashboard, which Django renders from the template of the app's index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

from .. import times

if TYPE_CHECKING:
    from ..admin.dashboard.board import Dashboard

register = template.Library()
register.filter(times.age)


@register.simple_tag(takes_context=True)
def dashboard(context: Any) -> Dashboard:
    """Read the dashboard for the user and the AdminSite of this request."""
    # Imported here: Django loads every tag library, also on a site without the admin.
    from ..admin.dashboard.board import read_dashboard

    return read_dashboard(context["request"], context.get("app_list", ()))
