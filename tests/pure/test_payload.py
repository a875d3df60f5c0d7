from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.translation import gettext_lazy
from hypothesis import example, given
from hypothesis import strategies as st

from deadletter import PayloadRejected, payload
from deadletter.exceptions import Undecodable
from deadletter.payload import DEPTH_LIMIT, SIZE_LIMIT, accept, as_stored, decode

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = "leaf"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.slow
@given(value=JSON)
def test_what_is_accepted_reads_back_equal(value: Any):
    assert decode(accept(value)) == value


@given(value=JSON)
def test_what_is_accepted_is_compact_json_without_escapes_a_database_refuses(value: Any):
    text = accept(value)

    assert json.loads(text) == value
    assert "\x00" not in text
    assert text.encode().decode() == text


LEAVES = st.binary() | st.complex_numbers() | TEXT | st.floats() | st.integers()


@pytest.mark.slow
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_anything_is_accepted_or_refused_with_the_place_named(value: Any):
    text = place = ""
    try:
        text = accept(value)
    except PayloadRejected as refused:
        place = refused.field

    assert place.startswith("payload") or decode(text) == value


def test_a_tuple_reads_back_as_a_list():
    assert decode(accept((1, (2, 3)))) == [1, [2, 3]]


def test_nothing_is_the_json_null():
    assert accept(None) == "null"
    assert decode("null") is None
    assert decode(None) is None


def test_the_deepest_value_allowed_has_64_levels():
    assert decode(accept(nested(DEPTH_LIMIT))) == nested(64)
    with pytest.raises(PayloadRejected, match="payload: nested deeper than 64 levels"):
        accept(nested(65))


def test_a_value_that_contains_itself_is_refused():
    circle: list[Any] = []
    circle.append(circle)

    with pytest.raises(PayloadRejected, match="nested deeper than 64"):
        accept(circle)


def test_a_value_that_contains_itself_many_times_is_refused_without_growing():
    circle: list[Any] = []
    circle.extend([circle] * 1000)

    with pytest.raises(PayloadRejected):
        accept(circle)


def test_the_largest_value_allowed_has_256_kib_as_json():
    assert len(accept("x" * (SIZE_LIMIT - 2))) == 262_144
    with pytest.raises(PayloadRejected, match="larger than 262,144 bytes as JSON"):
        accept("x" * (SIZE_LIMIT - 1))


def test_size_is_counted_in_bytes_not_in_characters():
    with pytest.raises(PayloadRejected, match="larger than"):
        accept("€" * 90_000)


def test_text_that_doubles_when_escaped_is_counted_as_stored():
    with pytest.raises(PayloadRejected, match="larger than"):
        accept("\n" * 200_000)


def test_integers_have_4300_digits_at_most():
    assert decode(accept(10**4300 - 1)) == 10**4300 - 1
    with pytest.raises(PayloadRejected, match="4300 digits"):
        accept(10**4300)


@pytest.mark.parametrize(
    "text",
    ["", "{", "not json", "[" * 100_000, "9" * 5000, '"\\ud800', "nul", "{'a': 1}", '{"a":1}x'],
    ids=lambda text: text[:10] or "empty",
)
def test_damaged_text_raises_one_kind_of_error(text: str):  # A34
    with pytest.raises(Undecodable):
        decode(text)


@given(text=st.text())
def test_decoding_raises_nothing_but_undecodable(text: str):
    problem = ""
    try:
        decode(text)
    except Undecodable as error:
        problem = str(error)

    assert len(problem) < 300


@pytest.mark.parametrize("depth", [65, 66, 500, 3000])
def test_what_is_nested_deeper_than_the_door_allows_cannot_be_decoded_on_any_python(depth):
    text = "[" * depth + "1" + "]" * depth

    with pytest.raises(Undecodable):
        decode(text)


def test_the_deepest_that_passes_the_door_reads_back_equal():
    value: object = 1
    for _ in range(64):
        value = {"a": value}

    assert decode(accept(value)) == value


ANY_TEXT = st.text(st.characters(), max_size=4)
ANY_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
KEYS = ANY_TEXT | st.integers()


@given(
    st.dictionaries(
        KEYS,
        st.recursive(
            ANY_LEAF,
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
            max_leaves=8,
        ),
        max_size=4,
    )
)
@example({"a": "\x00"})
@example({"a": "\\u0000"})
@example({"a": "\ud800"})
@example({1: "a"})
@example({"a": float("nan")})
@example({"a": 2**63})
@example({"a": "x" * 1001})
@example({"a": [{"b": "\x00"}]})
@example({"a": [{1: "b"}]})
@example({"a": [{"b": ["c"]}]})
@example({"a": (1, 2)})
def test_the_short_way_for_simple_payloads_comes_to_the_same_end(value):
    def end(accept: Callable[[Any], str]) -> str:
        try:
            return accept(value)
        except PayloadRejected as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "_simple", lambda value, limit: None)
        by_walking = end(payload.accept)

    assert end(payload.accept) == by_walking


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, True),
        ({"a": [{"b": 1}], "c": {"d": None}}, True),
        ({"a": [{"b": [1]}]}, False),
        ({"a": list(range(49))}, True),
        ({"a": list(range(50))}, False),
        ({"a": list(range(24)), "b": list(range(25))}, False),
        ({"a": [{"b": "x" * 1_001}]}, False),
        ({"a": [2**63]}, False),
        ({"a": (1,)}, False),
        ({"a": [True, 1.5]}, True),
        ({"a": [Decimal(1)]}, False),
        ([1], False),
    ],
)
def test_a_simple_payload_is_small_and_not_deep(value: Any, expected: bool):
    assert payload.is_simple(value) is expected


def test_a_circle_is_not_simple():
    circle: dict[str, Any] = {}
    circle["a"] = [circle]

    assert not payload.is_simple(circle)


ZONE = timezone(timedelta(hours=2))
AS_TEXT = {
    "a datetime": (datetime(2026, 1, 31, 12, 0, 5, 123456, UTC), "2026-01-31T12:00:05.123Z"),
    "a datetime of a zone": (datetime(2026, 1, 31, 12, tzinfo=ZONE), "2026-01-31T12:00:00+02:00"),
    "a datetime without a zone": (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
    "a date": (date(2026, 1, 31), "2026-01-31"),
    "a time": (time(9, 30), "09:30:00"),
    "a timedelta": (timedelta(days=1, seconds=5), "P1DT00H00M05S"),
    "a UUID": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "a decimal": (Decimal("1.50"), "1.50"),
    "a large decimal": (Decimal("1E+1000000"), "1E+1000000"),
    "a lazy text": (gettext_lazy("poison"), "poison"),
}
as_text = pytest.mark.parametrize(("value", "text"), AS_TEXT.values(), ids=AS_TEXT)


@as_text
def test_what_django_writes_as_text_is_stored_as_that_text(value: Any, text: str):
    for sent, stored in (
        (value, text),
        ({"a": value}, {"a": text}),
        ([{"a": [value, 1]}, "b"], [{"a": [text, 1]}, "b"]),
    ):
        written = accept(sent)

        assert decode(written) == stored == as_stored(sent, written)
        assert written == json.dumps(stored, ensure_ascii=False, separators=(",", ":"))
        assert json.loads(json.dumps(sent, cls=DjangoJSONEncoder)) == stored


@pytest.mark.slow
@given(value=JSON)
def test_what_was_accepted_is_returned_as_it_is_read_back(value: Any):
    assert as_stored(value, accept(value)) == value


def test_a_text_that_stands_for_a_value_counts_with_its_length():
    value = [UUID(int=n) for n in range(20)]

    assert len(accept(value)) == 20 * 39 + 1
    with pytest.raises(PayloadRejected, match="larger than 780 bytes"):
        accept(value, limit=780)


def test_a_plain_payload_asks_no_hook(monkeypatch: pytest.MonkeyPatch):
    """Dates must not make the usual payload slower: nothing of theirs is called for it."""

    def called(*given: Any) -> Any:
        raise AssertionError(f"called with {given}")

    for name in ("_written", "_walk", "decode"):
        monkeypatch.setattr(payload, name, called)
    value = {"order": 1, "to": "ann", "paid": True, "weight": 1.5, "gift": None}

    assert as_stored(value, accept(value)) is value
