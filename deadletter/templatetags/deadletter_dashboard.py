"""How does the template that Django chooses for the index of this app get at its numbers?"""

from __future__ import annotations

from typing import Any

from django import template

from ..admin.dashboard import Board, read_dashboard

register = template.Library()


@register.simple_tag(takes_context=True)
def dashboard(context: Any) -> Board:
    """Read the dashboard for the person and the AdminSite of this request."""
    return read_dashboard(context["request"], context.get("app_list", ()))
