"""What holds for every page of the admin there is: rights, tokens, bad text, bad questions."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deadletter import clock as clocks

from .every_page import HOSTILE, every_page, hostile_rows, state

pytestmark = pytest.mark.slow

#: What must never be in a page as it is; the rest of the text may be, escaped.
RAW = ("<script>alert(", "<img src=x", "onerror=alert(2)>", "'><img")
QUESTIONS = (
    "'; DROP TABLE deadletter_message; --",
    HOSTILE,
    "\x00",
    "9" * 400,
    "-1",
    "%",
)


@pytest.fixture
def pages(db) -> list[str]:
    return every_page(hostile_rows(clocks.now("default")))


def test_every_page_is_there(pages):
    assert len(pages) > 55
    for model in (
        "alert",
        "count",
        "workerprocess",
        "breaker",
        "auditentry",
        "instance",
        "queue",
        "result",
        "schedule",
    ):
        assert f"/admin/deadletter/{model}/" in pages


def test_bad_text_is_shown_on_no_page_as_it_is(admin_client: Client, pages):
    shown = 0
    for page in pages:
        answer = admin_client.get(page)
        if not answer["Content-Type"].startswith("text/html"):
            # To be saved, not shown; and not to be guessed to be something else.
            assert answer["Content-Disposition"].startswith("attachment"), page
            assert answer["X-Content-Type-Options"] == "nosniff", page
            continue
        text = answer.content.decode()
        assert [raw for raw in RAW if raw in text] == [], page
        assert "}49javascript" not in text
        assert ">49javascript" not in text, page
        shown += "&lt;script&gt;alert(1)" in text

    # Escaped, it is there: the pages do show these rows.
    assert shown >= 12


def test_who_is_nobody_is_sent_to_the_door(client: Client, pages):
    before = state()

    for page in pages:
        for answer in (client.get(page), client.post(page)):
            assert (answer.status_code, "/login/" in answer.get("Location", "")) == (302, True), (
                page
            )

    assert state() == before


def test_who_has_every_right_but_is_not_of_the_staff_is_sent_to_the_door(client: Client, pages):
    visitor = User.objects.create_user("visitor")
    visitor.user_permissions.set(Permission.objects.all())
    client.force_login(visitor)
    before = state()

    for page in pages:
        for answer in (client.get(page), client.post(page)):
            assert (answer.status_code, "/login/" in answer.get("Location", "")) == (302, True), (
                page
            )

    assert state() == before


def test_who_has_no_right_sees_nothing_of_any_row(login, pages):
    browser = login()
    before = state()

    for page in pages:
        for answer in (browser.get(page), browser.post(page, {"confirmed": "1", "ids": "1"})):
            # A redirect is Django's own, from an address without "change" at its end.
            assert answer.status_code in (302, 403, 404, 405), page
            assert b"alert(1)" not in answer.content, page

    assert state() == before


def test_a_post_without_the_token_of_the_form_changes_nothing_anywhere(admin_user, pages):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)
    before = state()

    answers = {page: browser.post(page, {"confirmed": "1"}).status_code for page in pages}

    assert {status for page, status in answers.items() if not _moved(page)} == {403}
    assert state() == before


def _moved(page: str) -> bool:
    """Django sends the address of a row without a page on to its "change", whatever is posted."""
    return page.rstrip("/").rpartition("/")[2].isdigit()


def test_looking_at_every_page_changes_nothing(admin_client: Client, pages):
    before = state()

    with CaptureQueriesContext(connection) as captured:
        for page in pages:
            admin_client.get(page, {"confirmed": "1", "why": "x"})
            admin_client.head(page)

    assert state() == before
    tables = [query["sql"] for query in captured.captured_queries if "deadletter_" in query["sql"]]
    assert [sql for sql in tables if sql.startswith(("INSERT", "UPDATE", "DELETE"))] == []


@pytest.mark.parametrize("question", QUESTIONS, ids=range(len(QUESTIONS)))
def test_a_page_that_is_asked_nonsense_answers_or_refuses(admin_client: Client, pages, question):
    before = state()
    asked = dict.fromkeys(
        ("q", "o", "p", "queue", "name", "reason", "fingerprint", "since", "state", "what",
         "span", "stream", "after", "before", "id", "pk__in", "all"),
        question,
    )  # fmt: skip

    for page in pages:
        if page.rpartition("/")[0].rpartition("/")[2] in ("add", "delete", "history"):
            continue  # Django's own, and forbidden
        for words in ({"q": question, "o": question}, asked):
            assert admin_client.get(page, words).status_code in (200, 302, 400, 403, 404, 405), page

    assert state() == before
