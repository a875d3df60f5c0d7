"""Without the payload permission an error is its class and its place; with it, also its text."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from deadletter import FailureReason, lifecycle, operations, send, start
from deadletter.admin.error_text import exception_of
from deadletter.admin.history import places
from deadletter.descriptions import describe
from deadletter.error_details import ErrorDetails
from deadletter.lifecycle import Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import (
    Alert,
    AuditEntry,
    Breaker,
    Instance,
    InstanceEvent,
    Message,
    PoisonRecord,
)

SECRET = "s3cr3t-4111"
VIEWS = [
    f"view_{name}"
    for name in (
        "alert",
        "auditentry",
        "breaker",
        "count",
        "instance",
        "message",
        "poisonrecord",
        "queue",
        "workerprocess",
    )
]
EVERYTHING_ELSE = ["retry_poison", "remove_poison", "edit_payload", "cancel_instance"]


class CardRefused(Exception):
    class Forever(Exception):
        pass


def failure_of(id: int, **more: Any) -> Failure:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise CardRefused(f'no such card: {SECRET}\n  File "{SECRET}", line 1') from error
    except CardRefused as error:
        found = describe(error)
    return Failure(
        id,
        error=found.text,
        traceback=found.traceback,
        exception=found.exception,
        frame=found.frame,
        reason=FailureReason.HANDLER_EXCEPTION,
        **more,
    )


@pytest.fixture
def rows(db: None, clock: Any) -> dict[str, Any]:
    """A secret in every place where a text of an error is kept."""
    dead = send("pay", {"n": SECRET}, headers={"note": SECRET})
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [failure_of(dead.pk, permanent=True)])
    failed = send("pay", {"n": SECRET}, headers={"note": SECRET})
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [failure_of(failed.pk)])
    start("order", instance="order-1", input={"n": SECRET})
    error = ErrorDetails.Application(failure_of(1).error).as_dict()
    Instance.objects.filter(pk="order-1").update(
        status="failed",
        error=error,
        history=[{"execution_id": 1, "status": "failed", "error": error}],
    )
    PoisonRecord.objects.update(instance="order-1")
    fold_all_groups()
    for event, data in (("failed", {"text": error["text"]}), ("activity_failed", {"error": error})):
        InstanceEvent.objects.create(
            instance="order-1", execution_id=1, at=clock.now, event=event, data=data
        )
    alert = Alert.objects.create(
        key="new_group:x", rule="new_group", error=error["text"], since=clock.now,
        opened_at=clock.now, last_at=clock.now, detail={"name": "pay", "exception": "CardRefused"},
    )  # fmt: skip
    breaker = Breaker.objects.create(
        name="pay",
        until=clock.now + timedelta(minutes=1),
        failures=5,
        error=error["text"],
        opened_at=clock.now,
    )
    wanted = operations.PoisonFilter(text=SECRET)
    entry = AuditEntry.objects.create(at=clock.now, act="retry", selection=wanted.as_dict())
    return {
        "poison": PoisonRecord.objects.get().pk,
        "message": failed.pk,
        "alert": alert.pk,
        "breaker": breaker.pk,
        "entry": entry.pk,
    }


PAGES = {
    "poisonrecord/": True,
    "poisonrecord/records/": True,
    "poisonrecord/matrix/?by=exception": True,
    "poisonrecord/{poison}/change/": True,
    "poisonrecord/{poison}/retry/": True,
    "poisonrecord/{poison}/remove/": True,
    "poisonrecord/bulk/retry/": True,
    "message/": True,
    "message/{message}/change/": True,
    "message/act/remove/?ids={message}": False,
    "instance/": True,
    "instance/order-1/change/": True,
    "alert/": True,
    "alert/{alert}/change/": True,
    "breaker/": True,
    "breaker/{breaker}/change/": True,
    "auditentry/": False,
    "auditentry/{entry}/change/": False,
    "": True,
}


@pytest.mark.parametrize(("page", "names_class"), PAGES.items())
def test_a_page_shows_class_and_place_but_no_text(rows, login, page, names_class) -> None:
    browser = login(*VIEWS, *EVERYTHING_ELSE)

    answer = browser.get("/admin/deadletter/" + page.format(**rows))

    html = answer.content.decode()
    assert answer.status_code == 200
    assert SECRET not in html
    assert ("CardRefused" in html) == names_class
    if page in ("poisonrecord/{poison}/change/", "message/{message}/change/"):
        assert "failure_of" in html
        assert "raise CardRefused" not in html


@pytest.mark.parametrize(
    "page",
    [
        "poisonrecord/",
        "poisonrecord/records/",
        "poisonrecord/{poison}/change/",
        "poisonrecord/bulk/retry/",
        "message/{message}/change/",
        "instance/",
        "instance/order-1/change/",
        "alert/{alert}/change/",
        "breaker/",
        "breaker/{breaker}/change/",
        "auditentry/",
        "auditentry/{entry}/change/",
        "",
    ],
)
def test_the_permission_shows_the_text(rows, login, page) -> None:
    browser = login(*VIEWS, *EVERYTHING_ELSE, "view_payload")

    assert SECRET in browser.get("/admin/deadletter/" + page.format(**rows)).content.decode()


def test_who_may_not_see_texts_cannot_search_them(rows, login, counts) -> None:
    browser = login(*VIEWS, *EVERYTHING_ELSE)
    before = counts()

    for text in (SECRET, "nothing like it"):
        answer = browser.get(reverse("admin:deadletter_poisonrecord_records"), {"text": text})
        assert answer.status_code == 400
        assert "#" not in answer.content.decode().split("dl-filter")[1].split("</form>")[1]
        for page in ("bulk/retry/", "bulk/remove/", "export/"):
            query = {"text": text, "scope": "all", "format": "jsonl"}
            acted = browser.post(f"/admin/deadletter/poisonrecord/{page}", query, follow=True)
            assert "permission to see error texts or search them" in acted.content.decode()
    assert counts() == before


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("allowed", [False, True])
def test_an_export_has_headers_and_texts_for_who_may_see_payloads(
    rows, login, format, allowed
) -> None:
    browser = login(*VIEWS, *(["view_payload"] if allowed else []))

    answer = browser.post("/admin/deadletter/poisonrecord/export/", {"format": format})
    text = b"".join(answer.streaming_content).decode()

    assert (SECRET in text) == allowed
    line = json.loads(text) if format == "jsonl" else next(csv.DictReader(io.StringIO(text)))
    assert line["exception"].endswith("CardRefused")
    assert {"payload", "headers", "last_error"} & set(line) == (
        {"payload", "headers", "last_error"} if allowed else set()
    )


def test_headers_are_redacted_for_everybody(login, poisoned, db) -> None:
    record = poisoned(headers={"token": SECRET, "note": "n"})
    browser = login(*VIEWS, "view_payload")

    page = browser.get(reverse("admin:deadletter_poisonrecord_change", args=[record.pk]))
    lines = list(operations.export_poison(operations.PoisonFilter()))

    assert SECRET not in page.content.decode() + "".join(lines)
    assert json.loads(lines[0])["headers"] == {"token": "[redacted]", "note": "n"}


@pytest.mark.parametrize("text", ["no json", '["Oops: s3cr3t-4111"]', '{"a": "s3cr3t-4111"}'])
@pytest.mark.parametrize("model", [Message, PoisonRecord])
def test_a_damaged_history_tells_nothing_either(rows, login, damage, model, text) -> None:
    row = model.objects.exclude(name="order").latest("pk")
    damage(row, "history", json.dumps(text) if text == "no json" else text)
    browser = login(*VIEWS)

    address = reverse(f"admin:deadletter_{model._meta.model_name}_change", args=[row.pk])

    assert SECRET not in browser.get(address).content.decode()


def test_a_word_is_a_class_only_if_it_is_one() -> None:
    path = f"{__name__}.CardRefused"

    assert exception_of("ValueError: x") == "ValueError"
    assert exception_of("ValueError") == "ValueError"
    assert exception_of(f"{path}: x") == path
    assert exception_of(f"{path}.Forever: x") == f"{path}.Forever"
    assert exception_of("shop.Gone: x", "Traceback (most recent call last):\nshop.Gone: x\n") == (
        "shop.Gone"
    )
    for text in ("alice: no such customer", "alice.smith: x", SECRET, "4111", "", None, "print: x"):
        assert exception_of(text) == ""
    assert exception_of("alice: x", "alice: x") == ""


def test_places_come_from_frames_and_not_from_words() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "shop.py", line 3, in ship\n    raise E(secret)\n'
        'E: s3cr3t\n  File "s3cr3t", line 9, in words\n'
    )

    assert [(f.file, f.line, f.function, f.code) for f in places(text)] == [
        ("shop.py", "3", "ship", "")
    ]


def test_a_traceback_that_is_quoted_by_an_exception_has_no_places() -> None:
    quoted = 'Traceback (most recent call last):\n  File "s3cr3t", line 9, in words\n'
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in one\n'
        f"E: \n{quoted}\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f'Traceback (most recent call last):\n  File "b.py", line 2, in two\nE: x\n\n{quoted}'
    )

    assert [frame.function for frame in places(text)] == ["one", "two"]


@pytest.mark.parametrize("model", [Message, Alert, AuditEntry, Breaker, Instance])
def test_a_class_of_a_project_hides_the_columns_themselves(rows, login, rf, model) -> None:
    known = {field.name for field in model._meta.get_fields()}
    columns = [
        name
        for name in ("payload", "headers", "error", "history", "selection", "input", "state",
                     "output", "pending", "inbox")
        if name in known
    ]  # fmt: skip
    kind = type(admin.site.get_model_admin(model))
    own = type("Own", (kind,), {"list_display": ("__str__", *columns), "fields": columns})
    login(*VIEWS)
    request = rf.get("/")
    request.user = User.objects.get(username="operator")
    page = own(model, admin.site)

    shown = {*page.get_list_display(request), *flatten_fieldsets(page.get_fieldsets(request))}

    assert columns
    assert shown & set(columns) == set()
    assert shown - {"__str__"} <= {*page.get_readonly_fields(request), "hidden_error"}


def test_the_edit_page_needs_the_permission_as_before(rows, login) -> None:
    browser: Client = login(*VIEWS, *EVERYTHING_ELSE)

    for page in ("edit", "payload"):
        address = reverse(f"admin:deadletter_poisonrecord_{page}", args=[rows["poison"]])
        assert browser.get(address).status_code == 403
