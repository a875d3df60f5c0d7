"""Where is a page? In the same AdminSite; nowhere when that site does not have it."""

from __future__ import annotations

from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode


def link(site_name: str, page: str, *args: object, **query: Any) -> str:
    """Return the address of `deadletter_<page>`, or "" when its model is not registered there."""
    try:
        found = reverse(f"admin:deadletter_{page}", args=args, current_app=site_name)
    except NoReverseMatch:
        return ""
    return f"{found}?{urlencode(query)}" if query else found
