"""
The views of a site: health for load balancers and monitors, metrics for Prometheus.

    path("health/", health, {"max_wait": 300})
    path("metrics/", metrics)

Health answers 200 or 503 and shows any caller that status and nothing else. The reasons, the
workers, and health by other limits are for callers who may read the metrics: METRICS_TOKEN as a
bearer token, staff who may view queues, or METRICS_ACCESS. Limits chosen by a stranger would reveal
exact numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from . import operations
from .conf import get_settings
from .durations import Duration, as_timedelta
from .metrics.cache import TableReader
from .models import primary_alias
from .operations.deadline import without_transaction
from .operations.health_checks import MOST

#: Seconds after which a database that does not answer counts as down.
TIMEOUT = 5.0
_LIMITS_REFUSED = (
    "limits in the query are for callers who may read the metrics: send METRICS_TOKEN as a bearer "
    "token, or give the limits to the path in urls.py"
)


def _health(
    request: HttpRequest, *, timeout: Duration = TIMEOUT, using: str | None = None, **limits: Any
) -> HttpResponse:
    """
    Answer 200 or 503; 400 for a query that cannot be read, 403 for limits of a stranger.

    The limits of `operations.health` are arguments of the path and, for callers who may read the
    metrics, parameters of the query that take precedence: max_age, max_wait, max_poison, window,
    min_workers.
    """
    try:
        asked = _read_limits(request)
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    given = limits | asked if has_token(request) else limits
    found = operations.health(**given, timeout=timeout, using=using)
    may_know_more = _may_know_more(request, found)
    if asked and found.reachable and not has_token(request):
        # Permission first: the time that a refused query takes must not depend on its limits.
        if not may_know_more:
            return JsonResponse({"error": _LIMITS_REFUSED}, status=403)
        found = operations.health(**(limits | asked), timeout=timeout, using=using)
    status = {"status": "ok" if found.ok else "failing"}
    if may_know_more:
        status |= found.as_dict()
    response = JsonResponse(status, status=200 if found.ok else 503)
    # Otherwise Django sends ADMINS an e-mail about every 503.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _view(function: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Make sure that nothing before the view needs the database or a login."""
    return without_transaction(login_not_required(never_cache(require_safe(function))))


health = _view(_health)


def _read_limits(request: HttpRequest) -> dict[str, float | int]:
    """Read the limits of the query. Errors do not repeat its text, which may be hostile."""
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
        return False  # no database, no session; reading one could hang
    try:
        return may_scrape(request)
    except Exception:  # noqa: BLE001 - raised by the backend of sessions or users
        # A caller who cannot be identified is a stranger; the answer must not depend on it.
        return False


@without_transaction
@login_not_required
@never_cache
@require_GET
def metrics(request: HttpRequest, using: str | None = None) -> HttpResponse:
    """
    Answer a scrape of the database `using`; refuse callers that METRICS_ACCESS does not admit.

    Contains what the tables contain. The measurements of worker processes (durations, lost leases)
    are on the port of the worker only.
    """
    if not may_scrape(request):
        return _refuse(request)
    try:
        from .metrics.exposition import render
    except ImportError:
        return HttpResponse(
            "prometheus-client is not installed: pip install 'django-deadletter[metrics]'\n",
            status=503,
            content_type="text/plain; charset=utf-8",
        )
    reading = _tables(primary_alias(using)).latest()
    page = render(request.headers.get("Accept", ""), reading=reading)
    return HttpResponse(page.body, content_type=page.type)


@cache
def _tables(using: str) -> TableReader:
    """Return the one reader of a database in this process, so that scrapes share answers."""
    return TableReader(using)


def _refuse(request: HttpRequest) -> HttpResponse:
    known = getattr(getattr(request, "user", None), "is_authenticated", False)
    response = HttpResponse(
        "not admitted: see METRICS_TOKEN and METRICS_ACCESS of deadletter\n",
        status=403 if known else 401,
        content_type="text/plain; charset=utf-8",
    )
    if not known:
        response["WWW-Authenticate"] = 'Bearer realm="deadletter"'
    return response


def may_scrape(request: HttpRequest) -> bool:
    """Ask METRICS_ACCESS, if it is set; else admit the token and staff who may view queues."""
    access = get_settings().metrics_access
    if access is not None:
        return bool(access(request))
    return has_token(request) or is_operator(request)


def has_token(request: HttpRequest) -> bool:
    """Compare `Authorization: Bearer …` with METRICS_TOKEN, in constant time."""
    token = get_settings().metrics_token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if not token or scheme.lower() != "bearer":
        return False
    return constant_time_compare(given.strip(), token)


def is_operator(request: HttpRequest) -> bool:
    """Return True if an active member of the staff is logged in who may view queues."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return False
    return bool(user.has_perm("deadletter.view_queue"))
