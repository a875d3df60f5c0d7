"""How is a person asked before something is done? One page: what will happen, to which, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.http import url_has_allowed_host_and_scheme

#: Characters of a reason; the audit trail keeps it for good.
WHY_LIMIT = 2_000


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One row the act is about; `refusal` says why it would not be touched."""

    label: str
    about: Sequence[str] = ()
    url: str = ""
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything the page says. `hidden` comes back: what was shown is what is done."""

    title: str
    button: str
    says: Sequence[str]
    subjects: Sequence[Subject] = ()
    hidden: Sequence[tuple[str, str]] = ()
    back: str
    danger: bool = False
    why_required: bool = False
    #: A checkbox: its name, its label, and whether it is checked.
    choice: tuple[str, Any, bool] | None = None
    possible: bool = True
    problems: Sequence[str] = field(default_factory=list)


def ask(model_admin: Any, request: HttpRequest, question: Question) -> TemplateResponse:
    """Show the question. Nothing has been changed yet."""
    site: admin.AdminSite = model_admin.admin_site
    context = {
        **site.each_context(request),
        "title": question.title,
        "question": question,
        "opts": model_admin.opts,
        "why": request.POST.get("why", ""),
        "why_limit": WHY_LIMIT,
        "media": model_admin.media,
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/deadletter/act.html", context)


def log_act(request: HttpRequest, rows: Sequence[Any], text: str) -> None:
    """Write the admin's own log, one entry a row; the audit trail is written by `operations`."""
    LogEntry.objects.log_actions(
        user_id=request.user.pk or 0,
        queryset=rows,
        action_flag=CHANGE,
        change_message=text,
    )


def answered_why(request: HttpRequest) -> str:
    return request.POST.get("why", "").strip()[:WHY_LIMIT]


def came_from(request: HttpRequest, otherwise: str) -> str:
    """Return where to go on; only a path of this site is followed."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    safe = url_has_allowed_host_and_scheme(
        wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return wanted if wanted and safe else otherwise
