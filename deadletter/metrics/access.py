"""Who may scrape the site? Nobody, unless they are known."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from ..conf import get_settings


def may_scrape(request: HttpRequest) -> bool:
    """Ask METRICS_ACCESS, if there is one; otherwise admit the token and staff who see queues."""
    own = get_settings().metrics_access
    if own is not None:
        return bool(own(request))
    return has_token(request) or is_operator(request)


def has_token(request: HttpRequest) -> bool:
    """Compare `Authorization: Bearer …` with METRICS_TOKEN, in constant time."""
    token = get_settings().metrics_token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if not token or scheme.lower() != "bearer":
        return False
    return constant_time_compare(given.strip(), token)


def is_operator(request: HttpRequest) -> bool:
    """Say whether somebody of the staff is logged in who may see queues."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return False
    return bool(user.has_perm("deadletter.view_queue"))
