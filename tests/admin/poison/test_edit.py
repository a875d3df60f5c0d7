"""Edit and retry: JSON that is checked, a difference that is shown, secrets that stay hidden."""

from __future__ import annotations

import json

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from deadletter import testing
from deadletter.models import Message, PoisonRecord
from deadletter.operations import diff
from tests.sample import tasks
from tests.sample.payloads import BAD, GOOD, PLACE, TYPED

from ..conftest import url


def post(browser: Client, record: PoisonRecord, payload: object, **more: str):
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return browser.post(
        url("poisonrecord", "edit", record.pk), {"payload": text, **more}, follow=True
    )


def test_the_difference_is_shown_before_anything_is_done(
    admin_client: Client, poisoned, counts
) -> None:
    record = poisoned(payload={"order": 41, "address": ""})

    response = post(admin_client, record, {"order": 41, "address": "1 Main Street"}, why="asked")

    html = response.content.decode()
    signs = [(line.sign, line.text.strip()) for line in response.context["lines"]]
    assert ("-", '"address": ""') in signs
    assert ("+", '"address": "1 Main Street"') in signs
    assert "the original stays in its history" in html
    assert "asked" in html
    assert counts() == {"dead": 1}


def test_a_confirmed_edit_is_retried_and_the_original_kept(
    admin_client: Client, poisoned, counts
) -> None:
    record = poisoned(payload={"order": 41})

    html = post(admin_client, record, {"order": 42}, confirmed="1", why="typo").content.decode()

    assert "is back in the queue default" in html
    assert counts() == {"pending": 1}
    message = Message.objects.get()
    assert message.payload == {"order": 42}
    assert json.loads(message.history[-1]["original_payload"]) == {"order": 41}
    assert LogEntry.objects.get().change_message == "Edited and retried. typo"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,}', "line 1 column"),
        ("", "JSONDecodeError"),
        ("[NaN]", "JSON has no nan"),
        ('"a\\u0000b"', "NUL"),
        ('"\\ud800"', "surrogate"),
        ("[" * 100 + "]" * 100, "nested deeper"),
        ("[" * 100_000, "RecursionError"),
        ("9" * 5_000, "ValueError"),
        ('"' + "x" * 300_000 + '"', "larger than"),
        ('{"order": 41}', "Nothing was changed"),
    ],
)
def test_what_could_not_be_sent_is_refused_with_words(
    admin_client: Client, poisoned, counts, text: str, problem: str
) -> None:
    record = poisoned(payload={"order": 41})

    for more in ({}, {"confirmed": "1"}):
        response = post(admin_client, record, text, **more)
        assert problem in response.content.decode()
        assert counts() == {"dead": 1}


def test_a_hidden_value_is_kept_when_it_is_left_alone(admin_client: Client, poisoned) -> None:
    secret = {"card": "4111", "items": [{"token": "t"}, 2], "to": 1}
    record = poisoned(payload=secret)
    page = admin_client.get(url("poisonrecord", "edit", record.pk))
    shown = json.loads(page.context["form"].initial["payload"])
    assert "4111" not in page.content.decode()

    post(admin_client, record, {**shown, "to": 2}, confirmed="1")

    assert Message.objects.get().payload == {**secret, "to": 2}


def test_a_hidden_value_can_be_replaced_and_the_page_says_so(
    admin_client: Client, poisoned
) -> None:
    record = poisoned(payload={"card": "4111", "to": 1})

    response = post(admin_client, record, {"card": "new", "to": 1})
    html = response.content.decode()
    post(admin_client, record, {"card": "new", "to": 1}, confirmed="1")

    assert "Values that are hidden here change as well" in html
    assert response.context["lines"] == []
    assert Message.objects.get().payload == {"card": "new", "to": 1}


def test_a_placeholder_moved_elsewhere_is_refused(admin_client: Client, poisoned, counts) -> None:
    record = poisoned(payload={"card": "4111"})

    html = post(admin_client, record, {"other": "[redacted]"}, confirmed="1").content.decode()

    assert "payload.other: the hidden value for this placeholder is ambiguous" in html
    assert counts() == {"dead": 1}


ALICE = {"name": "Alice", "card": "4111"}
BOB = {"name": "Bob", "card": "5500"}


def test_deleting_an_element_gives_no_other_its_hidden_value(
    admin_client: Client, poisoned, counts
) -> None:
    record = poisoned(payload={"to": [ALICE, BOB]})

    post(admin_client, record, {"to": [{**BOB, "card": "[redacted]"}]}, confirmed="1")

    assert Message.objects.get().payload == {"to": [BOB]}


@pytest.mark.parametrize(
    ("edited", "path"),
    [
        # Alice became Bob: whose card is it?
        ([{"name": "Bobby", "card": "[redacted]"}], "payload.to[0].card"),
        # The same element twice: a hidden value is not copied.
        ([{"name": "Bob", "card": "[redacted]"}] * 2, "payload.to[0]"),
        ([{"name": "Bob", "note": {"card": "[redacted]"}}], "payload.to[0].note.card"),
        ([{"name": "Bob", "card": "no [redacted]"}], "payload.to[0].card"),
        ("[redacted]", "payload.to"),
    ],
)
def test_a_hidden_value_that_cannot_be_matched_is_asked_for_by_its_path(
    admin_client: Client, poisoned, counts, edited: object, path: str
) -> None:
    record = poisoned(payload={"to": [ALICE, BOB]})

    for more in ({}, {"confirmed": "1"}):
        html = post(admin_client, record, {"to": edited}, **more).content.decode()

        assert f"{path}: the hidden value for this placeholder is ambiguous" in html
        assert counts() == {"dead": 1}


def test_a_damaged_payload_takes_no_placeholder(
    admin_client: Client, poisoned, damage, counts
) -> None:
    record = poisoned()
    damage(record, "payload", '{"card": "4111"')

    html = post(admin_client, record, {"card": "[redacted]"}, confirmed="1").content.decode()

    assert "payload.card: the hidden value for this placeholder is ambiguous" in html
    assert counts() == {"dead": 1}


def test_a_damaged_payload_can_be_replaced(admin_client: Client, poisoned, damage) -> None:
    record = poisoned()
    damage(record, "payload", "{broken")

    assert (
        "cannot be decoded"
        in admin_client.get(url("poisonrecord", "edit", record.pk)).content.decode()
    )
    post(admin_client, record, {"whole": True}, confirmed="1")

    assert Message.objects.get().payload == {"whole": True}


def test_edit_again_leads_back_to_what_was_written(admin_client: Client, poisoned, counts) -> None:
    record = poisoned(payload={"order": 41})

    html = post(admin_client, record, '{"order": 43}', again="1").content.decode()

    assert "{&quot;order&quot;: 43}" in html
    assert "<textarea" in html
    assert counts() == {"dead": 1}


def test_what_the_eye_cannot_see_is_edited_by_its_number(admin_client: Client, poisoned) -> None:
    record = poisoned(payload={"a": "x\u202ey", "n": 1})
    page = admin_client.get(url("poisonrecord", "edit", record.pk))
    text = page.context["form"].initial["payload"]
    assert r"x\u202ey" in text

    post(admin_client, record, text.replace("1", "2"), confirmed="1")

    assert Message.objects.get().payload == {"a": "x\u202ey", "n": 2}


def test_a_difference_of_large_texts_is_bounded() -> None:
    old = "\n".join(f"a{n % 7}" for n in range(50_000))
    new = "\n".join(f"b{n % 5}" for n in range(50_000))

    found = diff.lines(old, new)

    assert len(found) == diff.SHOWN + 1
    assert diff.lines(old, old) == []


def test_a_payload_that_its_handler_would_refuse_is_refused_in_the_form(
    admin_client: Client, poisoned, counts, handles, monkeypatch
) -> None:
    record = poisoned("orders.ship", {"order": "x"})
    # The site imports handlers when a payload is edited: until then it has no use for them.
    monkeypatch.setattr(
        "deadletter.admin.poison.edit.look_up_handlers",
        lambda: handles("orders.ship", print, payload=TYPED),
    )

    for more in ({}, {"confirmed": "1"}):
        response = post(admin_client, record, BAD, **more)
        assert response.context["form"].errors == {"payload": [PLACE]}
        assert counts() == {"dead": 1}
    post(admin_client, record, GOOD, confirmed="1")
    assert Message.objects.get().payload == GOOD


def test_a_hidden_value_that_does_not_match_stays_hidden(
    admin_client: Client, poisoned, counts, handles
) -> None:
    record = poisoned("orders.ship", {"order": 1, "token": 4111})
    handles("orders.ship", print, payload=TYPED)

    html = post(admin_client, record, {"order": 2, "token": "[redacted]"}).content.decode()

    assert "payload.token: expected str, got int" in html
    assert "4111" not in html
    assert counts() == {"dead": 1}


def test_any_error_of_the_class_is_shown_in_the_form(
    admin_client: Client, poisoned, counts, handles
) -> None:
    record = poisoned("orders.ship", {"order": 1})
    handles("orders.ship", print, payload=TYPED)

    response = post(admin_client, record, {"order": 13}, confirmed="1")

    assert response.context["form"].errors == {"payload": ["payload: KeyError: 'unlucky'"]}
    assert counts() == {"dead": 1}


def test_a_payload_that_was_not_changed_may_be_retried_as_it_is(
    admin_client: Client, poisoned, handles
) -> None:
    record = poisoned("orders.ship", BAD)
    handles("orders.ship", print, payload=TYPED)

    html = post(admin_client, record, BAD).content.decode()

    assert "Nothing was changed" in html


def test_arguments_that_a_task_cannot_be_called_with_are_refused_in_the_form(
    admin_client: Client, clock, counts
) -> None:
    tasks.fail.enqueue("as asked")
    for _ in range(2):
        testing.drain()
        clock.advance(3600)
    record = PoisonRecord.objects.get()

    page = admin_client.get(url("poisonrecord", "edit", record.pk)).content.decode()
    for payload, problem in (
        ({"kwargs": {"user_id": 7}}, "payload: fail: got an unexpected keyword argument"),
        ({"args": 7}, "payload.args: expected a list, got int"),
        ([7], "payload: expected the arguments of a task"),
    ):
        for more in ({}, {"confirmed": "1"}):
            response = post(admin_client, record, payload, **more)
            assert response.context["form"].errors["payload"][0].startswith(problem)
            assert counts() == {"dead": 1}
    post(admin_client, record, {"args": ["again"]}, confirmed="1")

    assert "fail(text=&#x27;as asked&#x27;)" in page
    assert Message.objects.get().payload == {"args": ["again"]}
