"""
Is it healthy? For load balancers and monitors: 200 or 503, and as much as the caller may know.

    path("health/", health, {"max_wait": 300})

Anybody learns whether it is, and nothing else. Why not, who works, and whether it would be healthy
by other limits is for those who may read the metrics: METRICS_TOKEN as a bearer token, staff who
may view queues, or METRICS_ACCESS. Limits of a stranger's choice would tell exact numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import operations
from .durations import Duration, as_timedelta
from .metrics.access import has_token, may_scrape
from .operations.deadline import without_transaction
from .operations.health_checks import MOST

#: Seconds after which a database that does not answer is away.
TIMEOUT = 5.0
_LIMITS_REFUSED = (
    "limits in the query are for callers who may read the metrics: send METRICS_TOKEN as a bearer "
    "token, or give the limits to the path in urls.py"
)


def _health(
    request: HttpRequest, *, timeout: Duration = TIMEOUT, using: str | None = None, **limits: Any
) -> HttpResponse:
    """
    Answer 200 or 503; 400 for a question that makes no sense, 403 for a stranger's limits.

    The limits of `operations.health` are arguments of the path and, for callers who may read the
    metrics, parameters of the query that take precedence: max_age, max_wait, max_poison, window,
    min_workers.
    """
    try:
        asked = _read(request)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    given = limits | asked if has_token(request) else limits
    found = operations.health(**given, timeout=timeout, using=using)
    may_know_more = _may_know_more(request, found)
    if asked and found.reachable and not has_token(request):
        # Rights come first: how long a refused question takes must not depend on its limits.
        if not may_know_more:
            return JsonResponse({"error": _LIMITS_REFUSED}, status=403)
        found = operations.health(**(limits | asked), timeout=timeout, using=using)
    status = {"status": "ok" if found.ok else "failing"}
    if may_know_more:
        status |= found.as_dict()
    response = JsonResponse(status, status=200 if found.ok else 503)
    # Django would send ADMINS an e-mail about every answer that is not 200. This is one.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _view(function: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Let nothing stand before the view that needs the database or a login."""
    return without_transaction(login_not_required(never_cache(require_safe(function))))


health = _view(_health)


def _read(request: HttpRequest) -> dict[str, float | int]:
    """Read the limits of the query. Its own words are not repeated: they may be anybody's."""
    limits: dict[str, float | int] = {}
    for name, values in request.GET.lists():
        reader = _READERS.get(name)
        if reader is None:
            raise ValueError(f"unknown parameter; known are {', '.join(_READERS)}")
        if len(values) != 1:
            raise ValueError(f"{name}: given more than once")
        try:
            limits[name] = reader(values[0])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return limits


def _seconds(text: str) -> float:
    try:
        return as_timedelta(text).total_seconds()
    except ValueError:
        raise ValueError("expected a duration, for example 30 or 5m") from None


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > MOST:
        raise ValueError(f"expected a number from 0 to {MOST}")
    return int(text)


_READERS: dict[str, Callable[[str], float | int]] = {
    "max_age": _seconds,
    "max_wait": _seconds,
    "max_poison": _number,
    "window": _seconds,
    "min_workers": _number,
}


def _may_know_more(request: HttpRequest, found: operations.Health) -> bool:
    if has_token(request):
        return True
    if not found.reachable:
        return False  # no database, no session; and looking for one might hang
    try:
        return may_scrape(request)
    except Exception:  # noqa: BLE001 - of whatever keeps sessions and users
        # Who cannot be identified is nobody; the answer itself must not depend on it.
        return False
