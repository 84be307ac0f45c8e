"""Charts: every mark is where its axis says, whatever the values; text and classes alone."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talerec.reports import DotRow, Series
from talerec.reports.charts import plots as charts
from talerec.reports.charts import row_charts, scales
from talerec.reports.charts.drawing import WIDTH, LegendEntry, draw_head, text_width
from talerec.reports.page import tag

ODD = st.one_of(st.none(), st.floats(), st.integers(-5, 5))
NAME = st.text(max_size=30)
some = settings(max_examples=60, deadline=None)
LABELS = {"title": "t", "x_label": "x", "y_label": "y"}


# -- reading a chart back --------------------------------------------------------------------------


def parsed(svg):
    return ET.fromstring(svg)


def having(root, kind):
    return [e for e in root.iter() if kind in e.get("class", "").split()]


def moved(element):
    return [
        float(v) for v in re.match(r"translate\((\S+) (\S+)\)", element.get("transform")).groups()
    ]


def told(text):
    return float(Fraction(text.replace("−", "-").replace(",", "")))


def axis(root, which, log=False):
    """The value at a place, from the first and the last tick alone."""
    ticks = having(root, f"{which}-tick")
    places = [moved(tick)["xy".index(which)] for tick in ticks]
    values = [told(tick.find("text").text) for tick in ticks]
    if log:
        values = [math.log(value) for value in values]
    unit = (values[-1] - values[0]) / (places[-1] - places[0])
    return lambda place: values[0] + (place - places[0]) * unit, abs(unit)


def points(root, style):
    found = [
        (*moved(point), point.find("path").find("title").text)
        for point in having(root, "point")
        if f"s{style}" in point.find("path").get("class").split()
    ]
    return sorted(found)


def placed(values):
    return [v for v in values if v is not None and abs(v) < 1e300]


# -- where things are ------------------------------------------------------------------------------


@some
@given(st.lists(ODD, min_size=1, max_size=8))
def test_lines_put_each_value_where_the_ticks_say(ys):
    root = parsed(charts.line_chart([Series("a", range(len(ys)), ys)], **LABELS))
    at_y, unit_y = axis(root, "y")
    at_x, unit_x = axis(root, "x")
    expected = [(x, y) for x, y in enumerate(ys) if placed([y])]
    found = points(root, 1)
    assert len(found) == len(expected)
    for (px, py, _), (x, y) in zip(found, expected, strict=True):
        assert at_x(px) == pytest.approx(x, abs=unit_x * 0.02)
        assert at_y(py) == pytest.approx(y, abs=unit_y * 0.02 + abs(y) * 1e-9)


def test_a_logarithmic_axis_counts_in_powers_of_two_where_the_values_do():
    xs = [2.0**power for power in range(-9, 10)]
    root = parsed(charts.line_chart([Series("a", xs, xs)], log_x=True, **LABELS))
    labels = [tick.find("text").text for tick in having(root, "x-tick")]
    assert labels == ["1/512", "1/64", "1/8", "1", "8", "64", "512"]
    at_x, unit = axis(root, "x", log=True)
    assert points(root, 1)[1][2].startswith("a, 1/256: ")
    for (px, _, _), x in zip(points(root, 1), xs, strict=True):
        assert at_x(px) == pytest.approx(math.log(x), abs=unit * 0.02)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.003, 2000], ["0.01", "0.1", "1", "10", "100", "1,000"]),
        ([3, 40], ["5", "10", "20"]),
        ([1, 8], ["1", "2", "4", "8"]),
        ([7.1, 7.9], ["7.2", "7.4", "7.6", "7.8"]),
        ([1e-7, 1e12], ["1e−06", "0.001", "1", "1,000", "1,000,000", "1e+09", "1e+12"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_what_people_say(values, labels):
    scale = scales.log_axis(values, 0, 100)
    assert [label for _, label in scale.ticks] == labels


def test_what_a_logarithmic_axis_cannot_show_is_said():
    svg = charts.scatter_chart([Series("a", [0, -1, 1, 10], [1, 2, 3, 4])], log_x=True, **LABELS)
    assert "x (not shown: 2 at or below 0)" in svg
    assert len(points(parsed(svg), 1)) == 2


def test_words_as_x_are_categories_in_the_order_of_their_appearance():
    first, second = Series("a", ["p", "q"], [1, 2]), Series("b", ["r", "q"], [3, 4])
    root = parsed(charts.line_chart([first, second], **LABELS))
    ticks = {tick.find("text").text: moved(tick)[0] for tick in having(root, "x-tick")}
    assert list(ticks) == ["p", "q", "r"]
    assert [x for x, *_ in points(root, 1)] == [ticks["p"], ticks["q"]]
    assert [x for x, *_ in points(root, 2)] == [ticks["q"], ticks["r"]]


def test_a_gap_breaks_the_line_and_a_lone_point_stays():
    ys = [1, 2, None, 3, math.nan, 4, 5, 6]
    root = parsed(charts.line_chart([Series("a", range(8), ys)], **LABELS))
    (line,) = (e for e in having(root, "line") if "L" in e.get("d"))
    assert [run.count("L") for run in line.get("d").split("M")[1:]] == [1, 2]
    at_x, unit = axis(root, "x")
    found = [at_x(x) for x, *_ in points(root, 1)]
    assert found == pytest.approx([0, 1, 3, 5, 6, 7], abs=unit * 0.02)


def test_bars_have_a_whisker_from_low_to_high_where_an_interval_is_known():
    groups = ["p", "q", "r", "s"]
    one = Series("a", groups, [3, -2, 4, None], [2, -4, None, 1], [5, -1, None, 2])
    root = parsed(charts.bar_chart(groups, [one], title="t", y_label="y"))
    at_y, unit = axis(root, "y")
    upright = [e for e in having(root, "whisker") if e.get("x1") == e.get("x2")]
    ends = [[at_y(float(e.get(end))) for end in ("y1", "y2")] for e in upright]
    assert ends == [pytest.approx(known, abs=unit * 0.02) for known in ([2, 5], [-4, -1])]
    middles = {t.find("text").text: moved(t)[0] for t in having(root, "x-tick")}
    assert [float(e.get("x1")) for e in upright] == [middles["p"], middles["q"]]
    tips = [bar.find("title").text for bar in having(root, "fill") if bar.find("title") is not None]
    assert tips == ["a, p: 3 [2, 5]", "a, q: −2 [−4, −1]", "a, r: 4"]


def test_a_value_worth_knowing_is_marked_across():
    root = parsed(
        charts.line_chart(
            [Series("a", [1, 2, 3], [1, 2, 3])], mark_x=2, mark_label="here", **LABELS
        )
    )
    (mark,) = having(root, "mark")
    assert float(mark.get("x1")) == float(mark.get("x2")) == points(root, 1)[1][0]
    assert "here" in [text.text for text in root.iter("text")]


@some
@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=3, max_size=3))
def test_bars_stand_on_zero_and_reach_their_value(ys):
    groups = ["p", "q", "r"]
    one = Series("a", groups, ys, [y and y - 1 for y in ys], ys)
    root = parsed(
        charts.bar_chart(groups, [one, Series("b", ["q"], [2.5])], title="t", y_label="y")
    )
    at_y, unit = axis(root, "y")
    bars = [bar for bar in having(root, "fill") if bar.find("title") is not None]
    mine = [bar for bar in bars if "s1" in bar.get("class")]
    for bar, y in zip(mine, placed(ys), strict=True):
        top, height = float(bar.get("y")), float(bar.get("height"))
        ends = sorted([at_y(top), at_y(top + height)])
        assert ends == pytest.approx(sorted([0, y]), abs=unit * 0.03)
    (other,) = [bar for bar in bars if "s2" in bar.get("class")]
    q = next(moved(t)[0] for t in having(root, "x-tick") if t.find("text").text == "q")
    assert float(other.get("x")) == pytest.approx(q, abs=6)


def test_bars_have_their_value_written_at_their_end():
    one = Series("a", ["p", "q"], [0.25, -0.5])
    root = parsed(charts.bar_chart(["p", "q"], [one], title="t", y_label="y"))
    assert [text.text for text in having(root, "value")] == ["0.25", "−0.5"]
    above, below = (moved(text)[1] for text in having(root, "value"))
    up, down = (bar for bar in having(root, "fill") if bar.find("title") is not None)
    assert above < float(up.get("y"))
    assert below > float(down.get("y")) + float(down.get("height"))


@some
@given(st.lists(st.tuples(ODD, ODD, ODD), max_size=5))
def test_dots_stand_where_the_ticks_say_with_their_interval(rows):
    given_rows = [DotRow(f"m{i}", *row) for i, row in enumerate(rows)]
    root = parsed(row_charts.dot_chart(given_rows, title="t", x_label="x"))
    at_x, unit = axis(root, "x")
    expected = {f"m{i}": row[0] for i, row in enumerate(rows) if placed([row[0]])}
    found = {tip.split(":")[0]: at_x(x) for x, _, tip in points(root, 1)}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=unit * 0.02 + abs(value) * 1e-9)
    level = [e for e in having(root, "whisker") if e.get("y1") == e.get("y2")]
    both = [row for row in rows if len(placed(row)) == 3 and placed(row[1:2]) != placed(row[2:3])]
    assert len(level) >= len([row for row in both if abs(row[1] - row[2]) > unit])


def test_an_interval_of_a_dot_lies_from_low_to_high():
    root = parsed(row_charts.dot_chart([DotRow("m", 3, 1, 7)], title="t", x_label="x"))
    at_x, unit = axis(root, "x")
    (line,) = (e for e in having(root, "whisker") if e.get("y1") == e.get("y2"))
    ends = [at_x(float(line.get(end))) for end in ("x1", "x2")]
    assert ends == pytest.approx([1, 7], abs=unit * 0.02)
    assert [text.text for text in having(root, "value")] == ["3 [1, 7]"]
    middle = float(line.get("y1"))
    caps = [e for e in having(root, "whisker") if e is not line]
    assert [float(cap.get("y1")) + float(cap.get("y2")) for cap in caps] == [2 * middle] * 2


def test_numbers_below_each_other_have_equal_decimals():
    rows = [DotRow("a", -0.04776, -0.0711, 0.0), DotRow("b", 0.1255, None, None)]
    root = parsed(row_charts.dot_chart(rows, title="t", x_label="x"))
    texts = [text.text for text in having(root, "value")]
    assert texts == ["\N{MINUS SIGN}0.0478 [\N{MINUS SIGN}0.0711, 0.0000]", "0.1255"]
    bars = {"a": {"fit": 3.4951}, "b": {"fit": 0.05602}}
    root = parsed(row_charts.stacked_bar_chart(bars, title="t", x_label="s"))
    assert {"3.495", "0.056"} <= {text.text for text in having(root, "value")}


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([0.5, 0.123456], 4),
        ([None, 12.5, 3.0], 2),
        ([12345.6, 50.5], 0),
        ([1, 2, 300], None),  # whole numbers
        ([0.5, 0.0001], None),  # too far apart
        ([None, float("nan"), "x"], None),
        ([], None),
    ],
)
def test_decimals_are_those_of_the_largest_number(values, decimals):
    assert scales.common_decimals(values) == decimals


@some
@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), ODD, max_size=6), max_size=4))
def test_stacked_parts_adjoin_and_add_up(rows):
    table = {f"row {i}": parts for i, parts in enumerate(rows)}
    root = parsed(row_charts.stacked_bar_chart(table, title="t", x_label="seconds"))
    at_x, unit = axis(root, "x")
    boxes = [box for box in having(root, "fill") if box.find("title") is not None]
    for name, parts in table.items():
        before = 0.0
        mine = [box for box in boxes if box.find("title").text.startswith(f"{name},")]
        known = [v for v in parts.values() if placed([v]) and v > 0]
        assert len(mine) == len(known)
        for box, value in zip(mine, known, strict=True):
            start, width = float(box.get("x")), float(box.get("width"))
            near = unit * 0.03 + before * 1e-9
            assert at_x(start) == pytest.approx(before, abs=near)
            assert at_x(start + width) == pytest.approx(before + value, abs=near)
            before += value


def test_more_parts_than_colours_are_one_other_part():
    """The legend has as many entries as colours, and sums stay the same."""
    steps = {name: 9.0 - number for number, name in enumerate("abcdefgh")}
    rows = {"all": steps, "few": {"a": 1.0, "h": 2.0}, "one": {"g": 1.0}}
    root = parsed(row_charts.stacked_bar_chart(rows, title="t", x_label="seconds"))
    boxes = [
        box.find("title").text for box in having(root, "fill") if box.find("title") is not None
    ]
    assert boxes == [
        *(f"all, {name}: {steps[name]:g}" for name in "abcde"),
        "all, other: 9", "few, a: 1", "few, other: 2", "one, other: 1",
    ]  # fmt: skip
    legend = [box.get("class") for box in having(root, "fill") if box.find("title") is None]
    assert len(set(legend)) == len(legend) == 6


def test_many_points_are_specks_in_one_path_each_in_its_place():
    xs = [(7 * i) % 500 for i in range(500)]
    root = parsed(charts.scatter_chart([Series("a", xs, [x * x for x in xs])], **LABELS))
    (path,) = having(root, "specks")
    at_x, unit_x = axis(root, "x")
    at_y, unit_y = axis(root, "y")
    found = [tuple(map(float, spot.split())) for spot in re.findall(r"M([^h]+)h0", path.get("d"))]
    assert [at_x(x) for x, _ in found] == pytest.approx(xs, abs=unit_x * 0.02)
    assert [at_y(y) for _, y in found] == pytest.approx([x * x for x in xs], abs=unit_y * 0.02)


@pytest.mark.parametrize("log", [False, True])
def test_few_points_have_a_marker_each_in_its_place(log):
    xs = [1 + (37 * i) % 101 for i in range(100)]
    series = [Series("a", xs, [x * x for x in xs]), Series("b", xs, [-x for x in xs])]
    root = parsed(charts.scatter_chart(series, log_x=log, **LABELS))
    at_x, unit_x = axis(root, "x", log)
    at_y, unit_y = axis(root, "y")
    for style, value in ((1, lambda x: x * x), (2, lambda x: -x)):
        wanted = sorted(xs)
        found = points(root, style)
        places = [math.log(x) if log else x for x in wanted]
        assert [at_x(x) for x, *_ in found] == pytest.approx(places, abs=unit_x * 0.02)
        heights = [value(x) for x in wanted]
        assert [at_y(y) for _, y, _ in found] == pytest.approx(heights, abs=unit_y * 0.02)
    assert [text.text for text in having(root, "key")] == ["a", "b"]
    assert not having(root, "specks")


# -- ticks and numbers -----------------------------------------------------------------------------


@some
@given(st.lists(st.floats(allow_nan=False), max_size=6))
def test_ticks_are_round_few_and_enclose_the_values(values):
    scale = scales.linear_axis(values, 0, 100)
    numbers = [tick for tick, _ in scale.ticks]
    assert 3 <= len(numbers) <= 9
    assert len({label for _, label in scale.ticks}) == len(numbers)
    step = numbers[1] - numbers[0]
    for number, label in scale.ticks:
        assert told(label) == pytest.approx(number, abs=step * 1e-6)
    for value in placed(values):
        assert -0.01 < scale(value) < 100.01


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.08531234, "0.08531"), (0.1, "0.1"), (12.345, "12.35"), (1234567, "1,234,567"),
        (-0.5, "−0.5"), (0, "0"), (-0.0, "0"), (None, "–"), (math.nan, "–"),
        (math.inf, "–"), (3.2e-7, "3.2e−07"), (99999.5, "100,000"), (0.000012, "0.00001"),
    ],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert scales.format_short(value) == text


# -- what comes out --------------------------------------------------------------------------------


def every_chart(name, xs, ys, low, high, log):
    """Each kind of chart of the same odd values."""
    one = Series(name, xs, ys, low, high)
    words = Series(name, [f"{name}{x}" for x in xs], ys, low, high)
    names = {"title": name, "x_label": name}
    labels = {**names, "y_label": name}
    dots = [DotRow(name, *row) for row in zip(ys, low, high, strict=True)]
    stacks = {name: dict(zip(map(str, xs), ys, strict=True)), "": {}}
    marked = {"log_x": log, "mark_x": 1, "mark_label": name}
    return [
        charts.line_chart([one, words], **labels),
        charts.line_chart([one, Series(name, [], [])], **marked, **labels),
        charts.scatter_chart([one, one], log_x=log, **labels),
        charts.scatter_chart([words], **labels),
        charts.bar_chart(list(words.x), [words, words], title=name, y_label=name),
        row_charts.dot_chart(dots, **names),
        row_charts.stacked_bar_chart(stacks, **names),
    ]


@some
@given(NAME, st.lists(st.tuples(ODD, ODD, ODD, ODD), max_size=5), st.booleans())
def test_any_values_and_names_give_a_whole_chart_without_a_nan(name, rows, log):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    for svg in every_chart(name, *columns, log):
        root = parsed(svg)
        shape = [value for e in root.iter() for key, value in e.items() if key != "aria-label"]
        assert not [value for value in shape if re.search("nan|inf|None", value)]
        _, _, width, height = map(float, root.get("viewBox").split())
        assert width == WIDTH
        for mark in [*having(root, "point"), *having(root, "y-tick")]:
            x, y = moved(mark)
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_missing_value_is_never_written_as_a_word():
    values = [None, math.nan, math.inf, -math.inf]
    for svg in every_chart("m", [1, 2, 3, 4], values, values, values, False):
        said = [text for e in parsed(svg).iter() for text in (e.text,) if text]
        assert not [text for text in said if re.search("nan|inf|None", text)]
        assert "m" in said


@some
@given(NAME)
def test_names_come_back_as_they_were_written(name):
    clean = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", name)
    clean = clean.replace("\r\n", "\n").replace("\r", "\n")
    root = parsed(charts.line_chart([Series(name, [1], [2])], title=name, x_label="x", y_label="y"))
    assert (root.find("title").text or "") == clean
    assert having(root, "point")[0].find("path").find("title").text == f"{clean}, 1: 2"


def test_a_chart_fetches_nothing_runs_nothing_and_has_no_colour_of_its_own():
    sample = [1, 2, 3], [2, 3, 1], [1, 2, 0.5], [3, 4, 2]
    for svg in every_chart("<script src='http:x'>", *sample, False):
        root = parsed(svg)
        used = {e.tag for e in root.iter()}
        assert used <= {"svg", "g", "title", "desc", "text", "path", "line", "rect"}
        keys = {key for e in root.iter() for key in e.keys()}  # noqa: SIM118
        assert not keys & {"style", "href", "fill", "stroke", "onclick", "onload", "color"}
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_the_same_values_give_the_same_chart():
    sample = "m", [1, 2, 3], [2, 3, 1], [1, 2, 0.5], [3, 4, 2], True
    assert every_chart(*sample) == every_chart(*sample)


def test_series_are_told_apart_without_colour():
    many = [Series(f"m{i}", [1, 2], [i, i + 1]) for i in range(6)]
    root = parsed(charts.line_chart(many, **LABELS))
    assert len({point.find("path").get("d") for point in having(root, "point")}) == 6
    assert [text.text for text in having(root, "key")] == [f"m{i}" for i in range(6)]


def test_long_names_are_cut_with_the_whole_in_a_tooltip():
    name = "a model with a name that has no end " * 4
    root = parsed(row_charts.dot_chart([DotRow(name, 1)], title="t", x_label="x"))
    (label,) = having(root, "name")
    assert label.text.endswith("…")
    assert label.find("title").text == name


def test_a_chart_of_nothing_says_so():
    for svg in (
        charts.line_chart([], **LABELS),
        charts.scatter_chart([Series("a", [1], [None])], **LABELS),
        charts.bar_chart([], [], title="t", y_label="y"),
        row_charts.dot_chart([], title="t", x_label="x"),
        row_charts.stacked_bar_chart({}, title="t", x_label="x"),
    ):
        assert "nothing to show" in svg


def test_columns_may_be_arrays_and_frames():
    import numpy as np
    import polars as pl

    lists = Series("a", [1, 2, 3], [2.0, math.nan, 4.0], [1.0, 2.0, 3.0], [3.0, 4.0, 5.0])
    arrays = Series("a", *(np.array(c) for c in (lists.x, lists.y, lists.low, lists.high)))
    frames = Series("a", *(pl.Series(c) for c in (lists.x, lists.y, lists.low, lists.high)))
    made = [charts.line_chart([one], **LABELS) for one in (lists, arrays, frames)]
    assert made[0] == made[1] == made[2]
    made = [
        charts.bar_chart(["1", "2", "3"], [one], title="t", y_label="y")
        for one in (lists, arrays, frames)
    ]
    assert made[0] == made[1] == made[2]


def test_labels_stay_inside_the_chart():
    """Widths as in DejaVu Sans, the widest font that a system is likely to use: 0.64 a digit."""
    big = Series("a", [0, 1_000_000], [0, 1_000_000])
    root = parsed(charts.line_chart([big], **LABELS))
    for tick in having(root, "x-tick"):
        half = 13 * (0.64 * 7 + 0.32 * 2) / 2
        assert tick.find("text").text != "1,000,000" or moved(tick)[0] + half <= WIDTH
    assert "1,000,000" in [tick.find("text").text for tick in having(root, "x-tick")]


def test_zero_keeps_its_label_where_others_give_way():
    rows = [DotRow("a difference with quite a long name", 0.0042123, -0.0022321, 0.0053123)]
    root = parsed(row_charts.dot_chart(rows, title="t", x_label="x"))
    labels = [tick.find("text").text for tick in having(root, "x-tick")]
    assert labels == ["0.000", "0.010"]


def test_long_names_and_values_leave_room_for_the_plot():
    rows = [DotRow("n" * 80, 1e9 + 3, 1e9, 1e9 + 7)]
    root = parsed(row_charts.dot_chart(rows, title="t", x_label="x"))
    places = [moved(tick)[0] for tick in having(root, "x-tick")]
    assert len(places) >= 2
    assert max(places) - min(places) > 100


def test_samples_of_a_legend_are_centred_before_their_names():
    entries = [LegendEntry("a", tag("path"), 30), LegendEntry("b", tag("path"), 10)]
    root = parsed(f"<svg>{draw_head('t', entries, '')[1]}</svg>")
    names = [float(text.get("x")) for text in having(root, "key")]
    assert names[0] == 30 + 6
    for sample, name, entry in zip(root.iter("g"), names, entries, strict=True):
        assert moved(sample)[0] == pytest.approx(name - 6 - entry.width / 2)


def test_labels_of_numbers_stand_in_the_middle_under_their_ticks():
    root = parsed(charts.line_chart([Series("a", [0, 1], [0, 1])], **LABELS))
    labels = [tick.find("text") for tick in having(root, "x-tick")]
    assert {(label.get("x"), label.get("text-anchor")) for label in labels} == {("0", "middle")}


def test_no_letter_is_wider_than_its_font_is_high():
    for letter in "AZaz09.,@W%é漢 ":
        assert 0 < text_width(letter, 10) <= 10, letter


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [(1e8, 10, "100,000,000"), (1e9, 10, "1e+09"), (1e-4, 10, "0.0001"), (1e-5, 10, "1e−05"),
     (2.0**30, 2, "1,073,741,824"), (2.0**-20, 2, "1/1048576"), (1.0, 2, "1")],
)  # fmt: skip
def test_powers_are_written_in_full_up_to_a_billion(value, base, text):
    assert scales.format_power(value, base) == text
