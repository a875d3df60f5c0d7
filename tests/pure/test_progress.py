"""Reports of progress: which values are accepted, how they are stored and read again."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, datetime

import pytest

from deadletter.progress import NOTE_LIMIT, ProgressReport, check_progress, read_progress, readable


class Step(enum.IntEnum):
    SECOND = 2


@pytest.mark.parametrize(
    ("done", "total"),
    [(0, 0), (3, 10), (3, None), (0.5, 1), (12, 10), (10**300, 1e308), (5e-324, None)],
)
def test_finite_numbers_are_stored_as_they_are(done, total):
    found = check_progress(done, total, "")

    assert found == {"done": done, "total": total, "note": ""}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        "3",
        b"3",
        [3],
        {},
        3j,
        10**400,
        object(),
    ],
)
@pytest.mark.parametrize("field", ["done", "total"])
def test_anything_else_is_refused_with_the_name_of_the_value(field, value):
    given = {"done": 1, "total": 2} | {field: value}

    with pytest.raises(
        ValueError, match=f"report: {field} is .*; give a finite number of at least 0"
    ):
        check_progress(given["done"], given["total"], "")


def test_without_a_number_nothing_is_done():
    with pytest.raises(ValueError, match="report: done is None"):
        check_progress(None, None, "")


def test_subclasses_become_plain_numbers_and_zero_has_no_sign():
    found = check_progress(Step.SECOND, -0.0, "")

    assert type(found["done"]) is int
    assert str(found["total"]) == "0.0"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("note", "kept"),
    [
        ("half way", "half way"),
        (None, ""),
        (17, "17"),
        ("a\x00b\x1b[2J", "a�b�[2J"),
        ("\ud800", "?"),
        (Unprintable(), "<unprintable RuntimeError>"),
        ("x" * NOTE_LIMIT, "x" * NOTE_LIMIT),
        ("x" * (NOTE_LIMIT + 1), "x" * (NOTE_LIMIT - 1) + "…"),
        ("😀" * NOTE_LIMIT, "😀" * NOTE_LIMIT),
        ("😀" * 10_000, "😀" * (NOTE_LIMIT - 1) + "…"),
        ("x" * 10**6, "x" * (NOTE_LIMIT - 1) + "…"),
    ],
    ids=range(11),
)
def test_a_note_is_made_safe_and_cut(note, kept):
    assert check_progress(1, None, note)["note"] == kept


def test_a_stored_report_is_read_again():
    stored = {"done": 3, "total": 10, "note": "n", "at": "2030-01-01T12:00:05+00:00"}

    assert read_progress(stored) == ProgressReport(
        3, 10, "n", datetime(2030, 1, 1, 12, 0, 5, tzinfo=UTC)
    )


@pytest.mark.parametrize(
    "stored", [None, [], "3", 3, {}, {"done": "3"}, {"done": 1, "total": "x"}, {"done": -1}]
)
def test_whatever_else_a_row_holds_is_no_report(stored):
    assert read_progress(stored) is None


@pytest.mark.parametrize("at", [None, 5, "", "yesterday", "2030-01-01T12:00:05", "9" * 50])
def test_a_time_that_cannot_be_read_is_left_out(at):
    assert read_progress({"done": 1, "total": None, "note": "", "at": at}) == ProgressReport(
        1, None, "", None
    )


@pytest.mark.parametrize(
    ("done", "total", "percent"),
    [
        (0, 10, 0),
        (37, 100, 37),
        (999, 1000, 99),
        (10, 10, 100),
        (12, 10, 100),
        (0, 0, 100),
        (0.5, 1, 50),
        (5, None, None),
        (10**300, 10**301, 10),
        (10**308, 5e-324, 100),
    ],
)
def test_the_percentage_is_rounded_down_and_at_most_100(done, total, percent):
    assert ProgressReport(done, total, "", None).percent == percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, 3),
        (3.0, 3),
        (0.30000000000000004, 0.3),
        (37.456, 37.46),
        (10**15 - 1, 10**15 - 1),
        (10**15, "1e+15"),
        (10**300, "1e+300"),
    ],
)
def test_numbers_are_shown_short(value, shown):
    assert readable(value) == shown
