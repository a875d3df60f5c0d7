"""Where the marks of a chart go: scales that begin at 0, nothing hidden, nothing outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadletter.admin.dashboard.svg import (
    ChartFrame,
    compact,
    lines,
    sparkline,
    stacked_bars,
    ticks,
)

FRAME = ChartFrame(width=100, height=100, left=0, right=0, top=0, bottom=0)


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (0, (0, 1)),
        (1, (0, 1)),
        (3, (0, 1, 2, 3)),
        (7, (0, 2, 4, 6, 8)),
        (130, (0, 50, 100, 150)),
        (1_000_000, (0, 500_000, 1_000_000)),
    ],
)
def test_an_axis_is_labelled_with_numbers_people_count_in(top, labels):
    assert ticks(top) == labels


@given(st.integers(0, 10**15))
def test_an_axis_begins_at_0_ends_not_below_the_top_and_has_few_labels(top):
    found = ticks(top)

    assert found[0] == 0
    assert top <= found[-1]
    assert found[-2] < max(top, 1)
    assert 2 <= len(found) <= 5


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (1_500, "1.5k"), (12_000, "12k"), (3_000_000, "3M")],
)
def test_a_label_fits_where_an_axis_has_room(number, text):
    assert compact(number) == text


def test_bars_are_stacked_the_first_series_at_the_bottom():
    chart = stacked_bars([[1, 0], [3, 2]], labels=["", "now"], frame=FRAME)

    assert [(bars.series, bars.path) for bars in chart.bars] == [
        (0, "M5.0 75.0h40.0v25.0h-40.0z"),
        (1, "M5.0 0.0h40.0v75.0h-40.0zM55.0 50.0h40.0v50.0h-40.0z"),
    ]
    assert [(tick.at, tick.label) for tick in chart.times] == [(50.0, "now")]
    assert [tick.label for tick in chart.values] == ["0", "1", "2", "3", "4"]


def test_one_beside_a_million_is_still_seen():
    chart = stacked_bars([[1_000_000, 1]], labels=["", ""], frame=FRAME)

    assert chart.bars[0].bars[1].height == 0.5


def test_lines_share_a_scale_and_leave_out_the_step_under_way():
    chart = lines([[0, 4, 1, 0], [2, 2, 0, 0]], labels=[""] * 4, whole=2, frame=FRAME)

    assert [(line.series, line.points) for line in chart.lines] == [
        (0, "12.5,100.0 37.5,0.0"),
        (1, "12.5,50.0 37.5,50.0"),
    ]
    assert len(chart.slots) == 4


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), max_size=4))
def test_nothing_is_drawn_outside_of_the_frame(series):
    chart = stacked_bars(series, labels=["a", "b", "c"])
    frame = chart.frame

    for bar in (bar for bars in chart.bars for bar in bars.bars):
        assert frame.left <= bar.x <= bar.x + bar.width <= frame.end + 0.1
        # Slivers are made visible: half a unit for each series of a step.
        assert frame.top - 2 <= bar.y <= bar.y + bar.height <= frame.floor + 0.1


def test_a_sparkline_has_a_bar_for_every_value_but_0():
    spark = sparkline([0, 1, 0, 1_000])

    assert [(bar.x, bar.y, bar.height) for bar in spark.bars.bars] == [(4, 18.5, 1.5), (12, 0, 20)]
    assert (spark.width, spark.height) == (15, 20)
    assert sparkline([]).bars.path == sparkline([0, 0]).bars.path == ""


def test_a_spike_does_not_flatten_the_others():
    usual = [3, 4, 5, 4, 3, 5, 4, 3, 4]
    chart = stacked_bars([[*usual, 1_000]], labels=[""] * 10, frame=FRAME)

    assert [tick.label for tick in chart.values] == ["0", "2", "4", "6"]
    assert chart.above == ((9, 1_000),)
    (cut,) = chart.cuts
    assert (cut.x, cut.label) == (95.0, "1k")
    assert chart.bars[0].bars[9].height == 100
    assert chart.bars[0].bars[2].height > 80


def test_lines_are_cut_as_bars_are_and_the_step_under_way_decides_nothing():
    usual = [3, 4, 5, 4, 3, 5, 4, 3, 4]

    cut = lines([[*usual, 1_000, 4], [0] * 11], labels=[""] * 11, whole=10, frame=FRAME)
    whole = lines([[*usual, 4, 1_000], [0] * 11], labels=[""] * 11, whole=10, frame=FRAME)

    assert cut.above == ((9, 1_000),)
    assert (whole.above, whole.cuts) == ((), ())


@pytest.mark.parametrize(
    "values",
    [
        [1, 1, 1, 4],  # not so high
        [10, 1_000],  # too few to know what is usual
        [0] * 50 + [1_000, 1_000, 1_000],  # too few with any value
        [1] * 8 + [1_000] * 2,  # not one in ten
    ],
)
def test_what_is_no_spike_is_drawn_whole(values):
    chart = stacked_bars([values], labels=[""] * len(values), frame=FRAME)

    assert (chart.above, chart.cuts) == ((), ())


def test_values_of_neighbouring_spikes_do_not_cover_each_other():
    chart = stacked_bars([[5] * 58 + [900, 901]], labels=[""] * 60, frame=FRAME)

    assert [cut.label for cut in chart.cuts] == ["900", ""]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_nothing_is_above_an_axis_unless_it_is_marked(values):
    chart = stacked_bars([values], labels=[""] * len(values))

    assert len(chart.cuts) == len(chart.above)
    assert len(chart.above) <= len([n for n in values if n]) / 10
