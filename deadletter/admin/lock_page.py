"""The answer of an act that met a lock: nothing was changed, and which transactions hold it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from ..exceptions import LockNotAvailable

View = Callable[..., HttpResponseBase]


def with_lock_page(model_admin: admin.ModelAdmin[Any], view: View) -> View:
    """Return the view with an answer for the case that its act meets a lock."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except LockNotAvailable as error:
            return _page(model_admin, request, error)

    return guarded


def _page(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, error: LockNotAvailable
) -> TemplateResponse:
    """Answer with a page, not a redirect: the browser's back button keeps what was entered."""
    site = model_admin.admin_site
    request.current_app = site.name
    context = {
        **site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "error": error,
        "seconds": f"{error.waited:g}",
    }
    return TemplateResponse(request, "admin/deadletter/locked.html", context, status=409)
