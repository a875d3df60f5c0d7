"""What does not fit is refused where it comes in: the field is named and nothing is stored."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from django.utils.functional import lazy, lazystr

from deadletter import MessageRejected, Outgoing, PayloadRejected, UnknownQueue, send, send_many
from deadletter.durations import EARLIEST, LATEST
from deadletter.lifecycle import claim
from deadletter.models import Message


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


def nested(depth: int):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


BAD_PAYLOADS = {
    "NUL": ("a\x00b", "NUL character"),
    "NUL in a key": ({"a\x00": 1}, "NUL character"),
    "NUL deep inside": ({"a": [{"b": "\x00"}]}, "NUL character"),
    "lone surrogate": ("\ud800", "lone surrogates"),
    "lone low surrogate": (["x\udc00"], "lone surrogates"),
    "surrogate in a key": ({"\udfff": 1}, "lone surrogates"),
    "NaN": (float("nan"), "JSON has no nan"),
    "infinity": ({"a": float("inf")}, "JSON has no inf"),
    "minus infinity": ([-float("inf")], "JSON has no -inf"),
    "5,000 digits": (10**5000, "4300 digits"),
    "minus 5,000 digits": ({"a": -(10**5000)}, "4300 digits"),
    "depth 65": (nested(65), "deeper than 64"),
    "depth 100,000": (nested(100_000), "deeper than 64"),
    "257 KiB": ("x" * 257 * 1024, "larger than 262,144 bytes"),
    "257 KiB of keys": ({f"{n:01000}": 1 for n in range(263)}, "larger than 262,144 bytes"),
    "a million nothings": ([None] * 1_000_000, "larger than 262,144 bytes"),
    "bytes": (b"abc", "bytes is not JSON"),
    "a set": ({1, 2}, "set is not JSON"),
    "a time with a zone": ({"at": time(9, tzinfo=UTC)}, "time cannot be sent: .*timezone-aware"),
    "a decimal NaN": ([Decimal("NaN")], "JSON has no NaN"),
    "a decimal infinity": ({"a": Decimal("-Infinity")}, "JSON has no -Infinity"),
    "a decimal of 300,000 digits": (Decimal("1" * 300_000), "larger than 262,144 bytes"),
    "a lazy NUL": ({"a": lazystr("\x00")}, "NUL character"),
    "a lazy text that fails": ([lazy(lambda: 1 // 0, str)()], "cannot be sent: .*division"),
    "an object": (object(), "object is not JSON"),
    "an object without a repr": (NoRepr(), "NoRepr is not JSON"),
    "a number as key": ({1: 2}, "keys must be text, not int"),
    "nothing as key": ({None: 2}, "keys must be text, not NoneType"),
    "a generator": ((n for n in range(3)), "generator is not JSON"),
}
bad_payload = pytest.mark.parametrize(("value", "problem"), BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)


@bad_payload
def test_a_bad_payload_is_refused(clock, counts, value, problem):
    with pytest.raises(PayloadRejected, match=problem) as refused:
        send("mail", value)

    assert refused.value.field.startswith("payload")
    assert str(refused.value).startswith("payload")
    assert len(str(refused.value)) < 500
    assert counts() == {}


@bad_payload
def test_a_bad_payload_among_many_is_refused_and_none_is_stored(clock, counts, value, problem):
    with pytest.raises(PayloadRejected, match=problem):
        send_many([Outgoing("mail", 1), Outgoing("mail", value), Outgoing("mail", 3)])

    assert counts() == {}


@bad_payload
def test_bad_headers_are_refused(clock, counts, value, problem):
    with pytest.raises(PayloadRejected, match=problem) as refused:
        send("mail", headers={"h": value})

    assert refused.value.field.startswith("headers")
    assert counts() == {}


@pytest.mark.parametrize("headers", [[], "text", 1, [("a", 1)]], ids=repr)
def test_headers_are_a_dict(clock, counts, headers):
    with pytest.raises(PayloadRejected, match="headers: expected a dict"):
        send("mail", headers=headers)

    assert counts() == {}


BAD_NAMES = {
    "empty": "",
    "blank": " ",
    "over-long": "x" * 201,
    "newline": "mail\n",
    "newline inside": "a\nb",
    "carriage return": "a\rb",
    "NUL": "a\x00",
    "surrogate": "a\ud800",
    "SQL": "x'; DROP TABLE deadletter_message; --",
    "quote": 'a"b',
    "percent": "%(now)s",
    "space": "a b",
    "unicode": "größe",
    "full width digits": "\uff11",
    "leading dot": ".hidden",
    "leading dash": "-rf",
    "nothing": None,
    "a number": 5,
    "5,000 digits": 10**5000,
    "bytes": b"mail",
    "without a repr": NoRepr(),
}
bad_name = pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)


@bad_name
def test_a_bad_name_is_refused(clock, counts, name):
    with pytest.raises(MessageRejected, match=r"^name: .* is not a name") as refused:
        send(name)

    assert refused.value.field == "name"
    assert len(str(refused.value)) < 500
    assert counts() == {}


@bad_name
def test_a_bad_queue_name_is_refused(clock, counts, name):
    with pytest.raises(MessageRejected, match=r"^queue: .* is not a name"):
        send("mail", queue=name)
    with pytest.raises(MessageRejected, match=r"^queue: .* is not a name"):
        send_many([Outgoing("mail")], queue=name)

    assert counts() == {}


def test_a_queue_name_that_is_sql_without_quotes_is_only_unknown(clock, counts):
    with pytest.raises(UnknownQueue, match="there is no queue 'default--'"):
        send("mail", queue="default--")

    assert counts() == {}


@pytest.mark.parametrize("name", ["x", "orders.ship", "a:b/c@d+e-f_g", "0" * 200, "_private"])
def test_a_good_name_is_stored_as_it_is(clock, name):
    send(name)

    assert Message.objects.get().name == name


BAD_LABELS = {
    "empty": "",
    "blank": "   ",
    "over-long": "x" * 201,
    "newline": "a\nb",
    "NUL": "a\x00b",
    "escape": "\x1b[31m",
    "surrogate": "\ud800",
    "right-to-left override": "a\u202eb",
    "a number": 7,
    "5,000 digits": 10**5000,
    "bytes": b"a",
    "a list": ["a"],
    "without a repr": NoRepr(),
}


@pytest.mark.parametrize("field", ["stream", "key"])
@pytest.mark.parametrize("value", BAD_LABELS.values(), ids=BAD_LABELS)
def test_a_bad_stream_or_key_is_refused(clock, counts, field, value):
    with pytest.raises(MessageRejected, match=rf"^{field}: "):
        send("mail", **{field: value})
    with pytest.raises(MessageRejected, match=rf"^{field}: "):
        send_many([Outgoing("mail", **{field: value})])

    assert counts() == {}


@pytest.mark.parametrize("field", ["stream", "key"])
@pytest.mark.parametrize(
    "value", ["x'; DROP TABLE deadletter_message; --", "größe ☃ 😀", "%s %(now)s", "é" * 200, "{}"]
)
def test_a_stream_or_key_may_be_any_printable_text(clock, field, value):
    send("mail", **{field: value})
    send_many([Outgoing("mail", **{field: value})])

    assert {getattr(row, field) for row in Message.objects.all()} == {value}


BAD_OPTIONS = {
    "priority below": {"priority": -101},
    "priority above": {"priority": 101},
    "priority as text": {"priority": "1"},
    "priority as truth": {"priority": True},
    "priority as fraction": {"priority": 1.0},
    "priority of nothing": {"priority": None},
    "priority of 5,000 digits": {"priority": 10**5000},
    "delay below": {"delay": -1},
    "delay for ever": {"delay": float("inf")},
    "delay of no number": {"delay": float("nan")},
    "delay as text": {"delay": "soon"},
    "delay below as text": {"delay": "-30"},
    "delay as truth": {"delay": True},
    "delay of 5,000 digits": {"delay": 10**5000},
    "delay of a thousand years": {"delay": timedelta(days=365_000)},
    "at without a time zone": {"at": datetime(2024, 1, 1)},
    "at as text": {"at": "2024-01-01"},
    "at as a date": {"at": date(2024, 1, 1)},
    "at as a number": {"at": 0},
    "at after the end": {"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    "at before the beginning": {"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))},
    "at and delay": {"at": datetime(2024, 1, 1, tzinfo=UTC), "delay": 1},
    "expires_in below": {"expires_in": -1},
    "expires_in nothing": {"expires_in": 0},
    "expires_in for ever": {"expires_in": float("inf")},
    "expires_in as text": {"expires_in": "1y"},
    "expires_in of 5,000 digits": {"expires_in": 10**5000},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_a_bad_option_is_refused(clock, counts, options):
    field = next(iter(options))

    with pytest.raises(MessageRejected, match=rf"^{field}: ") as refused:
        send("mail", **options)
    with pytest.raises(MessageRejected, match=rf"^{field}: "):
        send_many([Outgoing("mail", **options)])

    assert refused.value.field == field
    assert len(str(refused.value)) < 500
    assert counts() == {}


@pytest.mark.parametrize(
    "at",
    [LATEST, EARLIEST],
    ids=["last", "first"],
)
def test_the_ends_of_the_calendar_are_stored(clock, at):
    send("mail", at=at)
    send_many([Outgoing("mail", at=at)])

    assert {row.available_at for row in Message.objects.all()} == {at}


def test_what_is_refused_leaves_the_callers_transaction_usable(clock, counts):
    with pytest.raises(PayloadRejected):
        send("mail", "\x00")

    send("mail", "after")
    assert counts() == {"pending": 1}


def test_the_limit_of_a_payload_is_a_setting(clock, counts, settings):
    settings.DEADLETTER = {"PAYLOAD_LIMIT": 10}

    with pytest.raises(PayloadRejected, match="larger than 10 bytes"):
        send("mail", "x" * 9)
    send("mail", "x" * 8)

    assert counts() == {"pending": 1}


HARMLESS = [
    "'; DROP TABLE deadletter_message; --", "%s %(now)s %%", "\\u0000 \\x00", "\u2028\u2029\ufeff",
    "\x01\x1f\x7f", "😀" * 100, {"__class__": "os.system", "$where": 1, "": 0}, -0.0, 1e308, 5e-324,
    2**63, -(2**200), 10**4299, "x" * 262_142, [[]], {}, [], "", 0, False, None, nested(64),
]  # fmt: skip


@pytest.mark.parametrize("value", HARMLESS, ids=lambda value: f"{type(value).__name__}")
def test_odd_but_harmless_payloads_come_back_equal(clock, value):
    send("mail", value)
    send_many([Outgoing("mail", value)])

    assert [message.payload for message in claim()] == [value, value]
