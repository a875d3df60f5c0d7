"""Edit a payload and retry: write, see the difference, confirm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from ... import operations
from ...conf import get_settings
from ...exceptions import PayloadRejected, Undecodable
from ...operations import diff, redact
from ...operations.hidden_values import HiddenValueMoved, refuse_markers, restore, same
from ...payload import accept, decode
from ...text import escape_hidden, page_text
from ..forms import EditForm
from ..pages import need, render, rights
from ..payloads import Stored, hidden_changed, pretty, read
from . import effects
from .record import find, gone
from .retry import known, retried


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
        form = EditForm(initial={"payload": escape_hidden(stored.text())})
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
    # What is left of the marker was in the payload before: `restore` refuses any other.
    outcome = operations.retry_poison(
        found.pk, by=request.user.get_username(), payload=draft.value, why=why, literal=True
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
        accept(edited, limit=get_settings().payload_limit)
        value = _whole(edited, stored)
        accept(value, limit=get_settings().payload_limit)
    except HiddenValueMoved as error:
        return Draft(
            problem=gettext(
                "%(path)s: it cannot be said which hidden value belongs here, because what "
                "surrounds it was changed, copied or moved. Write the value instead of "
                "“[redacted]”."
            )
            % {"path": page_text(error.path, limit=300)}
        )
    except (Undecodable, PayloadRejected) as error:
        return Draft(problem=page_text(error, limit=500))
    except (ValueError, RecursionError) as error:
        return Draft(problem=page_text(f"{type(error).__name__}: {error}", limit=500))
    if not stored.damaged and same(value, stored.value):
        return Draft(problem=gettext("Nothing was changed: to retry it as it is, use “Retry”."))
    return Draft(value=value)


def _whole(edited: Any, stored: Stored) -> Any:
    """Return the payload with what was hidden put back. Text that is no JSON has no places."""
    if not stored.damaged:
        return restore(edited, stored.value)
    refuse_markers(edited)
    return edited


def _write(
    model_admin: Any, request: HttpRequest, found: Any, form: EditForm, stored: Stored
) -> HttpResponse:
    return render(
        model_admin,
        request,
        "edit",
        gettext("Edit and retry %(record)s") % {"record": page_text(str(found), limit=200)},
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
        gettext("Retry %(record)s with this payload?")
        % {"record": page_text(str(found), limit=200)},
        record=found,
        form=form,
        lines=lines,
        hidden_changed=hidden_changed(new, stored, draft.value),
        says=[
            *effects.of_retry(found),
            gettext("Its payload is replaced; the original stays in its history."),
        ],
        warnings=effects.warnings(found),
    )
