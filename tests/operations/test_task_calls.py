"""Calls of tasks as text: redacted, shortened, and never an error."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import send
from deadletter.models import Damaged, Message
from deadletter.operations.task_calls import LIMIT, list_calls, show_call
from tests.sample import tasks

NAME = "shop.tasks.welcome"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"kwargs": {"user_id": 7}}, "welcome(user_id=7)"),
        ({"args": [7, "Ada"], "kwargs": {"vip": True}}, "welcome(7, 'Ada', vip=True)"),
        ({}, "welcome()"),
        (None, "welcome()"),
        ({"kwargs": {"password": "s3cret", "n": 1}}, "welcome(password=[redacted], n=1)"),
        ({"args": [{"token": "s3cret"}]}, "welcome({'token': '[redacted]'})"),
        ({"args": 7}, "welcome(…)"),
        ([1, 2], "welcome(…)"),
        ("text", "welcome(…)"),
        (Damaged("{", "cut"), "welcome(…)"),
        ({"args": [[0] * 50]}, "welcome([0, 0, 0, 0, 0, ...])"),
    ],
)
def test_a_call_is_shown_as_python_writes_it(payload, text):
    assert show_call(NAME, payload) == text


def test_a_call_can_be_revealed():
    payload = {"kwargs": {"password": "s3cret"}}

    assert show_call(NAME, payload, reveal=True) == "welcome(password='s3cret')"


def test_a_long_call_is_cut():
    shown = show_call(NAME, {"args": ["x" * 70] * 50})

    assert len(shown) == LIMIT
    assert shown.endswith("…)")


def test_a_rule_of_the_site_may_return_anything(settings):
    class Unprintable:
        def __repr__(self):
            raise RuntimeError

    for answer, text in [
        ("hidden", "welcome(…)"),
        ({"args": [Unprintable()]}, "welcome(<Unprintable instance"),
        ({"args": [10**5_000]}, "welcome(<int"),
    ]:
        settings.DEADLETTER = {"REDACT": lambda value, answer=answer: answer}
        assert show_call(NAME, {"args": ["s3cret"]}).startswith(text)


@pytest.mark.django_db
def test_the_calls_of_a_list_are_read_in_one_statement():
    short = tasks.welcome.enqueue(7)
    long = tasks.answer.enqueue("x" * 3_000)
    message = send("mail", {"kwargs": {}})

    with CaptureQueriesContext(connection) as queries:
        found = list_calls(Message, [int(short.id), int(long.id), message.pk], using="default")

    assert found == {int(short.id): "welcome(7)", int(long.id): "answer(…)"}
    assert len(queries) == 1


@pytest.mark.django_db
@pytest.mark.sqlite_only(reason="PostgreSQL holds no text that cannot be decoded")
def test_a_damaged_payload_hides_its_own_call_only():
    good, bad = tasks.welcome.enqueue(7), tasks.welcome.enqueue(8)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE deadletter_message SET payload = CAST(x'ff7b' AS TEXT) WHERE id = %s", [bad.id]
        )

    found = list_calls(Message, [int(good.id), int(bad.id)], using="default")

    assert found == {int(good.id): "welcome(7)"}
