"""What every page of poison has in common: its frame, its links, and who may do what on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode

from ..models import Act, primary_alias


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What this person may do; a page shows only these buttons, a view checks them again."""

    payload: bool
    retry: bool
    edit: bool
    remove: bool

    def to(self, act: str) -> bool:
        return {Act.RETRY: self.retry, Act.REMOVE: self.remove}.get(Act(act), False)


def rights(request: HttpRequest) -> Rights:
    def may(name: str) -> bool:
        return request.user.has_perm(f"deadletter.{name}")

    payload, retry = may("view_payload"), may("retry_poison")
    return Rights(
        payload=payload,
        retry=retry,
        # Who edits a payload reads it, and the message is retried with it.
        edit=payload and retry and may("edit_payload"),
        remove=may("remove_poison"),
    )


def need(model_admin: Any, request: HttpRequest, allowed: bool = True) -> Rights:
    """Refuse with 403 whoever may not look at poison, or is not allowed what the view does."""
    if not (model_admin.has_view_permission(request) and allowed):
        raise PermissionDenied
    return rights(request)


#: The name of `primary_alias` in the pages of the admin.
alias = primary_alias


def url(model_admin: Any, page: str, *args: object, query: Mapping[str, Any] | None = None) -> str:
    name = f"admin:deadletter_poisonrecord_{page}"
    found = reverse(name, args=args, current_app=model_admin.admin_site.name)
    return f"{found}?{urlencode(query, doseq=True)}" if query else found


def render(
    model_admin: Any, request: HttpRequest, template: str, title: str, **context: Any
) -> HttpResponse:
    site: admin.AdminSite = model_admin.admin_site
    request.current_app = site.name
    frame = {
        "title": title,
        "opts": model_admin.opts,
        # Themes take the last part of their heading from here.
        "original": context.get("record"),
        "rights": rights(request),
    }
    status = context.pop("status", 200)
    return TemplateResponse(
        request,
        f"admin/deadletter/poison/{template}.html",
        {**site.each_context(request), **frame, **context},
        status=status,
    )


def write_log(
    request: HttpRequest, rows: Sequence[models.Model], text: str, *, gone: bool = False
) -> None:
    """Write Django's own log, one entry a row; the audit trail is written by `operations`."""
    user = request.user.pk
    if user is None:  # nobody gets past admin_view without one
        return
    flag = DELETION if gone else CHANGE
    LogEntry.objects.log_actions(user, list(rows), flag, change_message=text)


def log_about_all(model_admin: Any, request: HttpRequest, text: str) -> None:
    """Write down what was done with records but changed none."""
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(model_admin.model),
        object_repr=str(model_admin.opts.verbose_name_plural),
        action_flag=CHANGE,
        change_message=text,
    )


def tell(request: HttpRequest, text: str, level: int = messages.SUCCESS) -> None:
    messages.add_message(request, level, text, fail_silently=True)
