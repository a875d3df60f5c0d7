"""manage.py deadletter send."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest

from deadletter import send
from deadletter.models import Message, Queue
from tests.sample import payloads


def test_a_message_is_stored_and_its_id_printed(cli, clock, counts):
    Queue.objects.create(name="mail")

    result = cli(
        *("send", "mail.welcome", "--payload", '{"name": "Ada"}', "--queue", "mail"),
        *("--stream", "s", "--key", "k", "--priority", "-5", "--delay", "90", "--expires-in", "2h"),
        *("--headers", '{"trace": 1}'),
    )

    message = Message.objects.get()
    assert (result.code, result.out) == (0, f"{message.pk}\n")
    assert (message.name, message.payload, message.queue.name) == (
        "mail.welcome",
        {"name": "Ada"},
        "mail",
    )
    assert (message.stream, message.key, message.priority) == ("s", "k", -5)
    assert message.headers == {"trace": 1}
    assert message.available_at == clock.now + timedelta(seconds=90)
    assert message.expires_at is not None
    assert counts() == {"scheduled": 1}


def test_only_a_name_is_needed(cli, clock):
    result = cli("send", "mail", "--format", "json")

    message = Message.objects.get()
    assert (message.payload, message.queue.name) == (None, "default")
    assert result.json == {
        "message_id": message.pk,
        "queue": "default",
        "name": "mail",
        "stored": True,
        "available_at": clock.now.isoformat(),
    }


@pytest.mark.parametrize("given", ["-", "@-", "@{file}"])
def test_a_payload_comes_from_a_file_or_from_standard_input(
    cli, clock, tmp_path, monkeypatch, given
):
    file = tmp_path / "payload.json"
    file.write_text('[1, "ä"]', "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO('[1, "ä"]'))

    assert cli("send", "mail", "--payload", given.format(file=file)).code == 0

    assert Message.objects.get().payload == [1, "ä"]


BAD = {
    "no JSON": (["--payload", "{broken"], "--payload: not JSON: "),
    "no file": (["--payload", "@/nowhere/at/all"], "--payload: "),
    "NaN": (["--payload", "[NaN]"], "the message was refused: payload[0]: JSON has no nan"),
    "too large": (["--payload", f'"{"x" * 300_000}"'], "larger than 262,144 bytes"),
    "headers that are a list": (["--headers", "[1]"], "headers: expected a dict"),
    "an unknown queue": (["--queue", "defualt"], "'defualt'; did you mean default?"),
    "a priority out of range": (["--priority", "101"], "priority: expected -100 (first)"),
    "an empty stream": (["--stream", " "], "stream: expected 1 to 200"),
    "a strange delay": (["--delay", "soon"], "expected a duration"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "problem"), BAD.values(), ids=BAD)
def test_what_cannot_be_sent_is_refused_with_a_sentence(cli, clock, counts, arguments, problem):
    result = cli("send", "mail", *arguments)

    assert (result.code, result.out, counts()) == (2, "", {})
    assert problem in result.err
    assert "Traceback" not in result.err


def test_a_name_that_cannot_be_is_refused(cli, clock, counts):
    result = cli("send", "not a name")

    assert (result.code, counts()) == (2, {})
    assert "'not a name' is not a name" in result.err


def test_a_key_that_is_taken_prints_who_has_it(cli, clock):
    first = send("mail", key="k")

    result = cli("send", "mail", "--key", "k")

    assert (result.code, result.out) == (0, f"{first.pk}\n")
    assert f"message {first.pk} has this key and is not finished; nothing was stored" in result.err
    assert cli("send", "mail", "--key", "k", "--format", "json").json["stored"] is False
    assert Message.objects.count() == 1


def test_a_payload_is_checked_against_the_class_of_its_handler(
    cli, clock, counts, handles, monkeypatch
):
    # The command imports handlers, as a worker does.
    monkeypatch.setattr(
        "deadletter.cli.send.look_up_handlers",
        lambda: handles("orders.ship", print, payload=payloads.TYPED),
    )

    result = cli("send", "orders.ship", "--payload", json.dumps(payloads.BAD))

    assert result.code == 2
    assert f'the message was refused: {payloads.PLACE} "x"' in result.err
    assert counts() == {}
    assert cli("send", "orders.ship", "--payload", json.dumps(payloads.GOOD)).code == 0
    assert counts() == {"pending": 1}
