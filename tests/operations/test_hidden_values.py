"""A hidden value returns only to where it came from."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter import operations
from deadletter.exceptions import PayloadRejected
from deadletter.models import Message
from deadletter.operations.hidden_values import HiddenValueMoved, has_marker, restore, same
from deadletter.operations.redaction import HIDDEN, redact
from tests.operations.records import dead

ALICE = {"name": "Alice", "card": "4111"}
BOB = {"name": "Bob", "card": "5500"}
X1, X2 = {"n": 1, "card": "1"}, {"n": 1, "card": "2"}
ONE = {"card": HIDDEN}


def hide(value: Any) -> Any:
    return redact(value)


def test_what_is_left_alone_keeps_its_hidden_values() -> None:
    original = {"to": 1, "token": "t", "of": {"card": [1, 2]}, "rows": [ALICE, BOB]}

    assert restore(hide(original), original) == original
    assert restore({**hide(original), "to": 2}, original) == {**original, "to": 2}


@pytest.mark.parametrize(
    ("original", "edited", "expected"),
    [
        ([ALICE, BOB], [hide(BOB)], [BOB]),
        ([ALICE, BOB], [hide(BOB), hide(ALICE)], [BOB, ALICE]),
        ([ALICE, BOB], [{"new": 1}, hide(ALICE), hide(BOB)], [{"new": 1}, ALICE, BOB]),
        ([ALICE, BOB], [hide(ALICE), {"name": "Bob", "card": "x"}], [ALICE, {**BOB, "card": "x"}]),
        # They look the same: as long as they stay, they keep what is theirs.
        ([X1, 7, X2], [hide(X1), 8, hide(X2)], [X1, 8, X2]),
        ([X1, X1, 7], [hide(X1)], [X1]),
        ([1, 1, 2], [1, 1, 1], [1, 1, 1]),
        ([HIDDEN, 1], [HIDDEN, 2], [HIDDEN, 2]),
        ({"a": 1}, {"a": True}, {"a": True}),
    ],
)
def test_elements_of_lists_are_paired_by_what_is_visible(original, edited, expected) -> None:
    assert same(restore(edited, original), expected)


@pytest.mark.parametrize(
    ("original", "edited", "path"),
    [
        ([ALICE, BOB], [{"name": "Bob", "card": HIDDEN, "n": 1}], "payload[0].card"),
        ([ALICE], [hide(ALICE), hide(ALICE)], "payload[0]"),
        ([X1, X2], [hide(X1)], "payload[0]"),
        ([X1, 7, X2], [7, hide(X1), hide(X2)], "payload[1]"),
        ({"a": [ALICE], "b": []}, {"a": [], "b": [hide(ALICE)]}, "payload.b[0].card"),
        ({"a": ALICE}, {"b": hide(ALICE)}, "payload.b.card"),
        ({"card": 1}, {"card": [HIDDEN]}, "payload.card[0]"),
        ({"card": 1}, HIDDEN, "payload"),
        ({"card": 1, "a": 1}, {"card": HIDDEN, "a": f"Bearer {HIDDEN}"}, "payload.a"),
        # The names were swapped around elements that look the same.
        (["A", {"card": 1}, "B", {"card": 2}], ["B", ONE, "A", ONE], "payload[1]"),
        (["A", {"card": 1}, "B", {"card": 2}], ["A", ONE, "A", ONE], "payload[1]"),
        # Keys are numbers: swapped, moved up and copied.
        ({"1": ALICE, "2": BOB}, {"1": hide(BOB), "2": hide(ALICE)}, "payload.1.card"),
        ({"1": ALICE, "2": BOB}, {"1": hide(BOB)}, "payload.1.card"),
        ({"1": ALICE, "2": BOB}, {"1": hide(ALICE), "2": hide(ALICE)}, "payload.2.card"),
        ({"1": [ALICE], "2": [BOB]}, {"1": [hide(BOB)]}, "payload.1[0].card"),
    ],
)
def test_what_cannot_be_matched_is_refused_by_its_path(original, edited, path) -> None:
    with pytest.raises(HiddenValueMoved) as caught:
        restore(edited, original)

    assert caught.value.path == path
    assert path in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "x"}',
        ' [{"of": {"Card": "4111"}}]',
        json.dumps(json.dumps({"a": {"token": "x"}})),
        json.dumps({"body": json.dumps({"token": "x"})}),
        r'{"p\u0061ssword": "x"}',
    ],
)
def test_a_text_that_is_json_is_hidden_when_a_key_in_it_is(text: str) -> None:
    original = {"body": text, "n": 1}

    assert redact(original) == {"body": HIDDEN, "n": 1}
    assert restore({"body": HIDDEN, "n": 2}, original) == {"body": text, "n": 2}


@pytest.mark.parametrize(
    "text", ['{"a": "password"}', "[password] was wrong", "the password", '"', "", '{"card": ']
)
def test_a_text_without_such_a_key_is_shown(text: str) -> None:
    assert redact([text]) == [text]


def masked(value: Any) -> Any:
    """A rule of a site: cards by their last digits, notes as null, secrets left out."""
    if isinstance(value, dict):
        kept = {key: masked(child) for key, child in value.items() if key != "secret"}
        kept |= {"card": f"…{value['card'][-2:]}"} if "card" in value else {}
        return kept | ({"note": None} if "note" in value else {})
    return [masked(child) for child in value] if isinstance(value, list) else value


def test_a_rule_of_the_site_may_show_hidden_values_as_it_likes(settings) -> None:
    settings.DEADLETTER = {**settings.DEADLETTER, "REDACT": masked}
    one = {"name": "Alice", "card": "4111", "note": "x"}
    original = {"to": 1, "secret": "s", "rows": [one, {"name": "Bob", "card": "5511"}]}
    shown = redact(original)
    assert shown["rows"][0] == {"name": "Alice", "card": "…11", "note": None}

    assert restore({**shown, "to": 2}, original) == {**original, "to": 2}
    assert restore({**shown, "rows": shown["rows"][1:]}, original)["rows"] == original["rows"][1:]
    for rows in (
        [{**shown["rows"][0], "name": "Bob"}],
        [{"name": "Carl", "card": "9", "note": None}],
        [{"name": "Carl", "else": "…11"}],
    ):
        with pytest.raises(HiddenValueMoved):
            restore({**shown, "rows": rows}, original)


KEYS = st.sampled_from(["name", "n", "card", "rows", "of"])
VALUES = st.recursive(
    st.sampled_from([1, 2, "a", "b", None, True]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)


def with_secrets(value: Any, counter: Any) -> Any:
    """Give every hidden place a value that is nowhere else."""
    if isinstance(value, dict):
        return {
            key: f"secret-{next(counter)}" if key == "card" else with_secrets(child, counter)
            for key, child in value.items()
        }
    return [with_secrets(child, counter) for child in value] if isinstance(value, list) else value


def secrets(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[str, tuple[Any, ...]]]:
    """Each hidden value with its place: keys, and the visible content of elements of lists."""
    if isinstance(value, dict):
        return [found for key, child in value.items() for found in secrets(child, (*at, key))]
    if isinstance(value, list):
        seen = [json.dumps(redact(child), sort_keys=True) for child in value]
        pairs = zip(value, seen, strict=True)
        return [found for child, text in pairs for found in secrets(child, (*at, text))]
    return [(value, at)] if isinstance(value, str) and value.startswith("secret-") else []


def containers(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return [value, *(found for child in children for found in containers(child))]
    return []


def edit(value: Any, chance: random.Random) -> None:
    """Do to a payload what people do: delete, copy, move, swap, change, rename."""
    target, other = (chance.choice(containers(value)) for _ in range(2))
    places = list(target) if isinstance(target, dict) else list(range(len(target)))
    if not places:
        return
    place = chance.choice(places)
    act = chance.choice(["delete", "copy", "move", "swap", "change", "rename", "edit"])
    piece = json.loads(json.dumps(target[place]))
    if act == "change":
        target[place] = chance.choice([1, "c", {"name": "c", "card": HIDDEN}, [HIDDEN], HIDDEN])
    elif act == "delete":
        del target[place]
    elif act == "swap":
        second = chance.choice(places)
        target[place], target[second] = target[second], target[place]
    elif act == "edit" and isinstance(target[place], dict):
        target[place]["name"] = chance.choice(["a", "b", "z"])
    else:
        if act in ("move", "rename"):
            del target[place]
        goal = target if act == "rename" else other
        if isinstance(goal, dict):
            goal[chance.choice(["name", "n", "rows", "of", "new"])] = piece
        else:
            goal.insert(chance.randint(0, len(goal)), piece)


@given(VALUES, st.integers(0, 2**32), st.integers(0, 4))
def test_a_hidden_value_never_ends_up_elsewhere(value: Any, seed: int, edits: int) -> None:
    chance = random.Random(seed)
    original = with_secrets({"payload": value}, iter(range(10_000)))
    edited = json.loads(json.dumps(redact(original)))
    for _ in range(edits):
        edit(edited, chance)

    try:
        found = restore(edited, original)
    except HiddenValueMoved:
        assert edits
        return

    assert not has_marker(found)
    assert max(Counter(name for name, _ in secrets(found)).values(), default=1) == 1
    own = dict(secrets(original))
    assert {name: own[name] for name, _ in secrets(found)} == dict(secrets(found))
    if same(edited, redact(original)):
        assert found == original


@pytest.mark.parametrize("payload", [{"card": HIDDEN}, [f"x {HIDDEN}"], ("a", {"b": HIDDEN})])
def test_code_that_retries_with_a_marker_is_refused(db, counts, payload) -> None:
    record = dead(payload={"card": "4111"})

    with pytest.raises(PayloadRejected, match="hidden value for this placeholder is ambiguous"):
        operations.retry_poison(record.pk, payload=payload)
    with pytest.raises(PayloadRejected, match="hidden value for this placeholder is ambiguous"):
        operations.retry_messages(record.message_id, payload=payload)

    assert counts() == {"dead": 1}


def test_code_may_insist_on_the_text(db, counts) -> None:
    record = dead(payload={"card": "4111"})

    outcome = operations.retry_poison(record.pk, payload={"note": HIDDEN}, literal=True)

    assert outcome.retried == [record.pk]
    assert Message.objects.get().payload == {"note": HIDDEN}
