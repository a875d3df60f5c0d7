"""Edit a payload and retry: write, see the difference, confirm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from .. import operations
from ..conf import get_settings
from ..exceptions import PayloadRejected, Undecodable
from ..operations import redact
from ..payload import accept, decode
from ..visible import escaped, visible
from . import diff, effects
from .acts import known, retried
from .forms import EditForm
from .pages import need, render, rights
from .payloads import Stored, hidden_left, pretty, read, restore, same
from .record import find, gone


def edit(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """
    GET shows the payload; a POST shows the difference; only a POST with `confirmed` acts.

    Every POST is checked anew: what the browser sends back is never trusted to be what was shown.
    """
    need(model_admin, request, rights(request).edit)
    found = find(object_id)
    if found is None:
        return gone(model_admin, request, known(request))
    stored = read(found, "payload")
    if request.method != "POST":
        form = EditForm(initial={"payload": escaped(stored.text())})
        return _write(model_admin, request, found, form, stored)
    form = EditForm(request.POST)
    draft = _check(request.POST.get("payload", ""), stored)
    if draft.problem:
        form.add_error("payload", draft.problem)
    if not form.is_valid() or "again" in request.POST:
        return _write(model_admin, request, found, form, stored)
    if "confirmed" not in request.POST:
        return _compare(model_admin, request, found, form, stored, draft)
    why = form.cleaned_data["why"]
    outcome = operations.retry_poison(
        found.pk, by=request.user.get_username(), payload=draft.value, why=why
    )
    return retried(model_admin, request, found, outcome, queue=None, why=why, edited=True)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An edited payload with its secrets put back, or what is wrong with it."""

    value: Any = None
    problem: str = ""


def _check(text: str, stored: Stored) -> Draft:
    try:
        edited = decode(text)
        shown = stored.redacted()
        value = edited if stored.damaged else restore(edited, shown, stored.value)
        accept(value, limit=get_settings().payload_limit)
    except (Undecodable, PayloadRejected) as error:
        return Draft(problem=visible(error, limit=500))
    except (ValueError, RecursionError) as error:
        return Draft(problem=visible(f"{type(error).__name__}: {error}", limit=500))
    if not stored.damaged and same(value, stored.value):
        return Draft(problem=gettext("Nothing was changed: to retry it as it is, use “Retry”."))
    if hidden_left(value) and not hidden_left(stored.value):
        return Draft(
            problem=gettext(
                "“[redacted]” stands where nothing was hidden. Leave it at its place to keep the "
                "value, or write the value."
            )
        )
    return Draft(value=value)


def _write(
    model_admin: Any, request: HttpRequest, found: Any, form: EditForm, stored: Stored
) -> HttpResponse:
    return render(
        model_admin,
        request,
        "edit",
        gettext("Edit and retry %(record)s") % {"record": visible(str(found), limit=200)},
        record=found,
        form=form,
        problem=stored.problem,
    )


def _compare(
    model_admin: Any,
    request: HttpRequest,
    found: Any,
    form: EditForm,
    stored: Stored,
    draft: Draft,
) -> HttpResponse:
    new = redact(draft.value)
    lines = diff.lines(stored.text(), pretty(new))
    return render(
        model_admin,
        request,
        "edit_confirm",
        gettext("Retry %(record)s with this payload?") % {"record": visible(str(found), limit=200)},
        record=found,
        form=form,
        lines=lines,
        hidden_changed=_hidden_changed(new, stored, draft),
        says=[
            *effects.of_retry(found),
            gettext("Its payload is replaced; the original stays in its history."),
        ],
        warnings=effects.warnings(found),
    )


def _hidden_changed(new: Any, stored: Stored, draft: Draft) -> bool:
    """Say whether more changes than the difference shows: hidden values look the same."""
    if stored.damaged:
        return hidden_left(new)
    return not same(restore(new, stored.redacted(), stored.value), draft.value)
