"""Retry or remove one record: asked with GET, done with POST, told afterwards."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext

from ... import operations
from ...models import PoisonRecord
from ...text import page_text
from ..base import as_id
from ..cli_hint import command
from ..forms import RetryForm, WhyForm
from ..pages import need, render, rights, tell, url, write_log
from . import effects
from .record import find, gone, page_of_message


def retry(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    need(model_admin, request, rights(request).retry)
    form = RetryForm(request.POST if request.method == "POST" else None)
    found = find(object_id)
    if found is None:
        return gone(model_admin, request, known(request))
    if request.method == "POST" and form.is_valid():
        queue, why = form.cleaned_data["queue"] or None, form.cleaned_data["why"]
        outcome = operations.retry_poison(
            found.pk, by=request.user.get_username(), queue=queue, why=why
        )
        return retried(model_admin, request, found, outcome, queue=queue, why=why)
    return _ask(
        model_admin,
        request,
        found,
        form,
        title=gettext("Retry %(record)s?"),
        says=effects.of_retry(found),
        warnings=effects.warnings(found),
        button=gettext("Retry it"),
        command=command("retry", found.pk, why="…"),
    )


def remove(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    need(model_admin, request, rights(request).remove)
    form = WhyForm(request.POST if request.method == "POST" else None)
    found = find(object_id)
    if found is None:
        return gone(model_admin, request, known(request))
    if request.method == "POST" and form.is_valid():
        why = form.cleaned_data["why"]
        outcome = operations.remove_poison(found.pk, by=request.user.get_username(), why=why)
        if not outcome.removed:
            return gone(model_admin, request, found.message_id)
        write_log(request, [found], _said(gettext("Removed."), why), gone=True)
        text = gettext("Message %(id)s (%(name)s) was removed for good.")
        tell(request, text % {"id": found.message_id, "name": page_text(found.name, limit=200)})
        return HttpResponseRedirect(url(model_admin, "records"))
    return _ask(
        model_admin,
        request,
        found,
        form,
        title=gettext("Remove %(record)s?"),
        says=effects.of_remove(found),
        warnings=[],
        button=gettext("Remove it for good"),
        command=command("remove", found.pk, why="…"),
        danger=True,
    )


def retried(
    model_admin: Any,
    request: HttpRequest,
    found: PoisonRecord,
    outcome: operations.Retrial,
    *,
    queue: str | None,
    why: str,
    edited: bool = False,
) -> HttpResponse:
    """Tell what came of a retry of one record, whoever was first."""
    if outcome.missing:
        return gone(model_admin, request, found.message_id)
    if outcome.refused:
        text = gettext("It was not retried: %(why)s.")
        refusal = page_text(next(iter(outcome.refused.values())), limit=500)
        tell(request, text % {"why": refusal}, messages.ERROR)
        return HttpResponseRedirect(url(model_admin, "change", found.pk))
    done = gettext("Edited and retried.") if edited else gettext("Retried.")
    write_log(request, [found], _said(done, why))
    text = gettext("Message %(id)s (%(name)s) is back in the queue %(queue)s.") % {
        "id": found.message_id,
        "name": page_text(found.name, limit=200),
        "queue": page_text(queue or found.queue, limit=200),
    }
    page = page_of_message(model_admin, request, found.message_id)
    if page:
        text = format_html('{} <a href="{}">{}</a>', text, page, gettext("Look at it"))
    tell(request, text)
    return HttpResponseRedirect(url(model_admin, "records"))


def _ask(
    model_admin: Any,
    request: HttpRequest,
    found: PoisonRecord,
    form: WhyForm,
    *,
    title: str,
    **context: Any,
) -> HttpResponse:
    return render(
        model_admin,
        request,
        "confirm",
        title % {"record": page_text(str(found), limit=200)},
        record=found,
        form=form,
        **context,
    )


def known(request: HttpRequest) -> int | None:
    """Return the message the form was about; it only says whose trail to read."""
    return as_id(request.POST.get("message", ""))


def _said(what: str, why: str) -> str:
    return f"{what} {why}" if why else what
