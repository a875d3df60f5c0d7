"""The answer of every page whose act met a lock: nothing was changed, and who may hold it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from ..exceptions import LockNotAvailable

View = Callable[..., HttpResponseBase]


def with_lock_page(model_admin: Any, view: View) -> View:
    """Answer with a page that says who is in the way, where an act of the view met a lock."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except LockNotAvailable as error:
            return _page(model_admin, request, error)

    return guarded


def _page(model_admin: Any, request: HttpRequest, error: LockNotAvailable) -> TemplateResponse:
    """Not a redirect: the browser's way back leads to the form, with all that was entered."""
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
