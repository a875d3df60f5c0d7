"""A list of the admin is filtered by its own filters only: any other parameter answers 400."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from deadletter import lifecycle, operations, send, start
from deadletter.lifecycle import Failure
from deadletter.models import Alert, AuditEntry, Breaker, Instance, Message, Queue, WorkerProcess

pytestmark = pytest.mark.slow

NAMES = sorted(m.__name__ for m in admin.site._registry if m._meta.app_label == "deadletter")
LOOKUPS = ("", "__exact", "__contains", "__regex", "__startswith", "__gt", "__isnull", "__card")
VIEWS = tuple(f"view_{name.lower()}" for name in NAMES)

#: What the pages use, and nothing else.
ALLOWED = {
    ("Alert", "rule__exact"),
    ("Alert", "rule__isnull"),
    ("AuditEntry", "act"),
    ("AuditEntry", "by"),
    ("Count", "queue"),
    ("Count", "name"),
    ("Count", "reason"),
    ("Instance", "name"),
    ("Instance", "status"),
    ("Instance", "parent"),
    ("Message", "queue"),
    ("Message", "attempts"),
    ("PublishedMessage", "topic"),
    *(("Result", name) for name in ("name", "queue", "outcome")),
    ("Message", "name"),
    # The filters of the groups, and of records …
    ("PoisonRecord", "release"),
    # These lead to the page of records, which reads them itself.
    *(("PoisonRecord", name) for name in ("queue", "name", "kind", "reason", "exception")),
    *(("PoisonRecord", name) for name in ("fingerprint", "stream", "instance")),
}


def paths(model: Any) -> Iterator[str]:
    """Every column, and every way over a relation to columns of another table."""
    for field in model._meta.get_fields():
        name = field.name
        yield from (f"{name}{lookup}" for lookup in LOOKUPS)
        if hasattr(field, "attname"):
            yield field.attname
        if field.is_relation and field.related_model is not None:
            for other in field.related_model._meta.get_fields():
                yield f"{name}__{other.name}"
                yield f"{name}__{other.name}__contains"


@pytest.fixture
def rows(db: None) -> None:
    Queue.objects.create(name="spare", max_attempts=3)
    message = send("pay", {"card": "4111"}, headers={"auth": "x"}, key="k", stream="s")
    batch = lifecycle.claim(limit=1, worker="w")
    lifecycle.fail(batch.token, [Failure(message.pk, error="4111", permanent=True)])
    start("order", instance="order-1", input={"card": "4111"})
    send("pay", {"card": "4111"})
    operations.pause("spare", by="ada")
    operations.resume("spare", by="ada")


@pytest.fixture(params=["without", "with"])
def browser(request, login, rows) -> Client:
    return login(*VIEWS, *(["view_payload"] if request.param == "with" else []))


@pytest.mark.parametrize("site", ["admin", "ops"])
@pytest.mark.parametrize("name", NAMES)
def test_a_list_refuses_every_lookup_that_no_page_uses(browser, settings, name, site) -> None:
    if site == "ops":
        if name == "Alert":
            pytest.skip("not registered there")
        settings.ROOT_URLCONF = "tests.admin.two_sites"
    model = apps.get_model("deadletter", name)
    page = reverse(f"admin:deadletter_{name.lower()}_changelist", current_app=site)

    wanted = [path for path in paths(model) if site == "admin" or path.endswith("contains")]

    answers = {path: browser.get(page, {path: "1"}).status_code for path in wanted}

    allowed = {path for model_name, path in ALLOWED if model_name == name} & set(wanted)
    assert {path for path, status in answers.items() if status != 400} <= allowed
    assert {answers[path] for path in allowed} <= {200, 302}
    assert len(answers) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_is_not_sortable_is_no_sort_key(browser, name) -> None:
    page = reverse(f"admin:deadletter_{name.lower()}_changelist")
    model_admin = admin.site._registry[apps.get_model("deadletter", name)]
    if name == "PoisonRecord":
        assert browser.get(page, {"o": "1"}).status_code == 400
        return
    columns = list(model_admin.list_display)  # who may not act has no boxes before them

    for order in (*map(str, range(-12, 20)), "-1.99", "payload", "1.payload", "²", "--1"):
        numbers = [part.removeprefix("-") for part in order.split(".")]
        wanted = {str(columns.index(column)) for column in sortable(name)}

        expected = 200 if set(numbers) <= wanted and "--" not in order else 400
        assert browser.get(page, {"o": order}).status_code == expected, order


def sortable(name: str) -> set[str]:
    known = {"Message": {"id"}, "Queue": {"name", "status"}, "Result": {"shown_id"}}
    known |= {"PublishedMessage": {"id"}, "Schedule": {"name"}}
    return known.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_other_ways_into_a_list_are_closed(browser, name) -> None:
    page = reverse(f"admin:deadletter_{name.lower()}_changelist")

    for query in (
        {"_to_field": "payload"},
        {"_to_field": "headers", "_popup": "1"},
        {"time__contains": "x"},
        {"pk__in": "1"},
        {"payload__regex": "("},
        {"no_such_column": "1"},
    ):
        assert browser.get(page, query).status_code == 400, query
    # Facets would be one count of the table for each choice of each filter.
    assert "facets" not in browser.get(page).content.decode().lower()


def test_completions_search_names_of_queues_only(browser) -> None:
    found = {}
    for model in ("message", "queue"):
        for field in ("queue", "dead_queue", "payload"):
            query = {"app_label": "deadletter", "model_name": model, "field_name": field}
            answer = browser.get(reverse("admin:autocomplete"), {**query, "term": "4111"})
            found[model, field] = (answer.status_code, answer.content)

    assert {status for status, _ in found.values()} <= {200, 403}
    assert all(b'"results": []' in body for status, body in found.values() if status == 200)


def links_of(html: str, page: str) -> set[str]:
    return {page + unescape(link) for link in re.findall(r'href="(\?[^"]*)"', html)}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_of_a_list_works(admin_client, rows, name) -> None:
    page = reverse(f"admin:deadletter_{name.lower()}_changelist")
    links = links_of(admin_client.get(page).content.decode(), page)
    if name == "PoisonRecord":
        page = reverse("admin:deadletter_poisonrecord_records")
        html = admin_client.get(page).content.decode()

        links |= links_of(html, page)

    assert {link: admin_client.get(link).status_code for link in links} == dict.fromkeys(links, 200)
    assert links or name in {
        "Breaker", "BrokerStatus", "PoisonRecord", "PublishedMessage", "WorkerProcess",
    }  # fmt: skip


def test_a_page_that_rows_left_leads_to_the_first(admin_client, rows, monkeypatch) -> None:
    monkeypatch.setattr(admin.site._registry[Message], "list_per_page", 1)
    page = reverse("admin:deadletter_message_changelist")

    answer = admin_client.get(page, {"p": "9"}, follow=True)

    assert (answer.status_code, answer.redirect_chain[0][1]) == (200, 302)


def test_a_filter_of_a_project_of_its_own_is_followed(rf, admin_user, rows) -> None:
    class Own(type(admin.site._registry[Message])):  # type: ignore[misc]
        list_filter = ("kind", ("worker", admin.EmptyFieldListFilter))
        date_hierarchy = "created_at"

    own = Own(Message, admin.site)
    request = rf.get("/")
    request.user = admin_user

    allowed = [
        lookup
        for lookup in (
            "kind__exact",
            "kind__isnull",
            "worker__isempty",
            "created_at__year",
            "kind__contains",
            "worker__contains",
            "created_at__gt",
            "payload__contains",
        )
        if own.lookup_allowed(lookup, "1", request)
    ]

    assert allowed == ["kind__exact", "kind__isnull", "worker__isempty", "created_at__year"]


def test_models_of_the_walk_are_all_there() -> None:
    assert {Alert, AuditEntry, Breaker, Instance, Message, Queue, WorkerProcess} <= set(
        admin.site._registry
    )
    assert len(NAMES) == 13
