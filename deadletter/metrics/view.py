"""A page of the site that Prometheus can scrape: what the tables say, without a worker's port."""

from __future__ import annotations

from functools import cache

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ..models import primary_alias
from ..operations.deadline import without_transaction
from .access import may_scrape
from .cache import Rows


@without_transaction
@login_not_required
@never_cache
@require_GET
def metrics(request: HttpRequest, using: str | None = None) -> HttpResponse:
    """
    Answer a scrape of the database `using`; refuse those that METRICS_ACCESS does not admit.

    What worker processes measure (durations, lost leases) is on their own port only.
    """
    if not may_scrape(request):
        return _refuse(request)
    try:
        from .page import render
    except ImportError:
        return HttpResponse(
            "prometheus-client is not installed: pip install 'django-deadletter[metrics]'\n",
            status=503,
            content_type="text/plain; charset=utf-8",
        )
    reading = _rows(primary_alias(using)).latest()
    page = render(request.headers.get("Accept", ""), reading=reading)
    return HttpResponse(page.body, content_type=page.type)


@cache
def _rows(using: str) -> Rows:
    """One per database and process, so that scrapes share answers."""
    return Rows(using)


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
