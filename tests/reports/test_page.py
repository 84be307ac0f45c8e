"""Pages: one whole file, safe with anybody's text, readable in light, in dark and on paper."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talerec.reports import DotRow, Html, Series, page
from talerec.reports.charts import plots as charts
from talerec.reports.charts import row_charts
from talerec.reports.markup import escape, join, tag

CSS = files("talerec.reports").joinpath("page.css").read_text(encoding="utf-8")
some = settings(max_examples=60, deadline=None)
EVIL = "<script>alert('1')</script>\"&amp;"


def parsed(document):
    assert document.startswith("<!DOCTYPE html>\n<html")
    return ET.fromstring(document)


def text_of(element):
    return "".join(element.itertext())


def sample():
    two = [Series(name, ["a", "b"], [1, 2], [0, 1], [2, 3]) for name in ("p", EVIL)]
    numbers = [Series(name, [1, 2, None], [1, 2, 3]) for name in ("p", EVIL)]
    labels = {"title": EVIL, "x_label": EVIL, "y_label": EVIL}
    every = [
        charts.line_chart(numbers, mark_x=1, mark_label="m", **labels),
        charts.line_chart([Series("lone", [1], [2])], **labels),
        charts.scatter_chart(numbers, **labels),
        charts.scatter_chart([Series(EVIL, range(500), range(500))], **labels),
        charts.bar_chart(["a", "b"], two, title=EVIL, y_label="y"),
        row_charts.dot_chart([DotRow(EVIL, 1, -1, 2)], title="t", x_label="x"),
        row_charts.stacked_bar_chart({EVIL: {EVIL: 40.0}}, title="t", x_label="x"),
    ]
    return page.render_page(
        EVIL,
        [
            page.callout(EVIL),
            EVIL,
            page.fact_list({EVIL: EVIL, "rows": 12345, "share": 0.25, "none": None, "on": True}),
            page.section(EVIL, page.table(["Model", EVIL], [[EVIL, EVIL]], caption=EVIL)),
            page.section("Charts", *(page.figure(chart, EVIL) for chart in every)),
            page.section(EVIL, page.note(EVIL), EVIL),
        ],
        subtitle=EVIL,
    )  # fmt: skip


def test_a_page_is_whole_and_shows_everybodys_text_as_text():
    root = parsed(sample())
    assert not list(root.iter("script"))
    for name in ("h1", "h2", "th", "td", "dt", "dd", "caption", "figcaption", "p", "a"):
        assert EVIL in [text_of(e) for e in root.iter(name)], name
    assert [text_of(e) for e in root.iter("p") if e.get("class") in ("callout", "note")] == [
        EVIL
    ] * 2
    assert root.find("head/title").text == EVIL


def test_facts_are_written_for_people():
    made = ET.fromstring(
        page.fact_list({"rows": 12345, "share": 0.25, "none": None, "nan": math.nan, "on": True})
    )
    assert [text_of(e) for e in made.iter("dd")] == ["12,345", "0.25", "–", "–", "yes"]


def test_a_page_needs_no_host_and_allows_none():
    document = sample()
    root = parsed(document)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}"/>' in document
    assert not {e.tag for e in root.iter()} & {"script", "link", "img", "iframe", "object", "base"}
    assert not {key for e in root.iter() for key in e.keys()} & {"src", "style", "onload"}  # noqa: SIM118
    assert not re.search(r"url\(|@import|https?:", CSS)
    assert document == sample()


def test_the_contents_lead_to_each_section_once():
    root = parsed(
        page.render_page("t", [page.section("Same"), page.section("Same"), page.section("Third")])
    )
    links = [a.get("href").removeprefix("#") for a in root.find(".//nav").iter("a")]
    assert links == [h.get("id") for h in root.iter("h2")]
    assert len(set(links)) == 3
    assert (
        parsed(page.render_page("t", [page.section("One"), page.section("Two")])).find(".//nav")
        is None
    )


def test_a_section_has_its_parts_under_its_heading():
    parts = page.section("A", "text", page.note("small")), "between", page.section("B", "more")
    root = parsed(page.render_page("t", parts))
    assert [e.tag for e in root.iter() if re.fullmatch(r"h\d", e.tag)] == ["h1", "h2", "h2"]
    first, between, second = list(root.find("body/main"))[1:]
    assert [(e.tag, text_of(e)) for e in first] == [("h2", "A"), ("p", "text"), ("p", "small")]
    assert (between.tag, between.text) == ("p", "between")
    assert [(e.tag, text_of(e)) for e in second] == [("h2", "B"), ("p", "more")]


def test_a_table_sets_figures_and_shows_what_is_missing():
    rows = [["A", 0.12344, 3.0, 1234], ["B", 0.12341, None, 5], ["C", 0.05, 1.25, float("nan")]]
    made = page.table(["Model", "NDCG", "Seconds", "Rows"], rows, muted=["Rows"])
    root = ET.fromstring(made)
    cells = [[text_of(c) for c in row] for row in root.find("table/tbody")]
    assert cells == [
        ["A", "0.1234", "3.0000", "1,234"],
        ["B", "0.1234", "–", "5"],
        ["C", "0.0500", "1.2500", "–"],
    ]
    assert [c.tag for c in root.find("table/tbody")[0]] == ["th", "td", "td", "td"]
    kinds = [c.get("class") for c in root.find("table/tbody")[0]]
    assert kinds == [c.get("class") for c in root.find("table/thead/tr")]
    assert kinds == [None, "figure", "figure", "figure muted"]
    assert root.get("tabindex") == "0"


def test_columns_of_words_are_named():
    made = page.table(["Model", "Why", "NDCG"], [["A", "simple", 0.5]], numeric=["NDCG"])
    assert [c.get("class") for c in ET.fromstring(made).find("table/tbody")[0]] == [
        None,
        None,
        "figure",
    ]


PIECES = {
    "callout": lambda text: page.callout(text),
    "note": lambda text: page.note(text),
    "caption of a figure": lambda text: page.figure(Html("<svg/>"), text),
    "name of a fact": lambda text: page.fact_list({text: 1}),
    "fact": lambda text: page.fact_list({"name": text}),
    "heading of a column": lambda text: page.table([text, "b"], [["c", 1]]),
    "cell of a table": lambda text: page.table(["a", "b"], [["c", text]]),
    "caption of a table": lambda text: page.table(["a"], [["c"]], caption=text),
    "heading of a section": lambda text: page.render_page("t", [page.section(text)]),
    "subtitle": lambda text: page.render_page("t", [], subtitle=text),
}


@pytest.mark.parametrize("piece", PIECES)
def test_markup_in_somebodys_text_stays_text(piece):
    plain, evil = (
        ET.fromstring(PIECES[piece](text).removeprefix("<!DOCTYPE html>")) for text in ("x", EVIL)
    )
    assert [e.tag for e in evil.iter()] == [e.tag for e in plain.iter()]
    assert EVIL in [e.text for e in evil.iter()]


@some
@given(st.text(), st.text())
def test_text_stays_text_in_elements_and_in_attributes(inner, value):
    element = ET.fromstring(tag("p", inner, Html("<b>x</b>"), title=value))
    assert [child.tag for child in element] == ["b"]
    assert element.keys() == ["title"]
    assert (element.text or "").count("<") == inner.count("<")
    assert escape(escape(inner)) == escape(inner)


def test_nothing_is_left_out_but_none():
    assert join("a", None, 0, "", Html("<b/>")) == "a0<b/>"


# -- how it looks ----------------------------------------------------------------------------------


def test_each_class_of_a_chart_has_a_look():
    root = parsed(sample())
    svgs = [e for svg in root.iter("svg") for e in svg.iter()]
    used = {name for e in svgs for name in e.get("class", "").split()}
    known = set(re.findall(r"\.([a-z][\w-]*)", CSS))
    assert used - known <= {"point", "x-tick", "y-tick", "name", "key"}


def palette(which):
    """Custom properties in light, or in dark over them."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    found = {}
    for block in blocks[: 1 + (which == "dark")]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    return found


def luminance(colour):
    """Of WCAG 2: 0 for black, 1 for white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def mixed(colour, paper, share):
    parts = [(int(colour[at : at + 2], 16), int(paper[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


@pytest.mark.parametrize("which", ["light", "dark"])
def test_text_and_marks_stand_out_from_the_paper(which):
    colours = palette(which)
    for text in ("ink", "quiet", "accent"):
        assert contrast(colours[text], colours["paper"]) >= 4.5, text
        assert contrast(colours[text], colours["raised"]) >= 4.5, text
    assert contrast(colours["ink"], colours["alert"]) >= 4.5
    for style in range(1, 7):
        assert contrast(colours[f"c{style}"], colours["paper"]) >= 3, style


@pytest.mark.parametrize("which", ["light", "dark"])
def test_the_first_four_bars_differ_in_grey_and_their_inner_text_is_readable(which):
    colours = palette(which)
    shares = dict(re.findall(r"\.fill\.s(\d) \{ fill: color-mix\(in srgb, var\(--c\) (\d+)%", CSS))
    plain = re.search(r"((?:\.chart \.inside\.s\d,? ?)+)\{ fill: var\(--paper\)", CSS).group(1)
    greys = []
    for style in range(1, 7):
        share = int(shares.get(str(style), 100)) / 100
        fill = mixed(colours[f"c{style}"], colours["paper"], share)
        text = colours["paper" if f".s{style}" in plain else "ink"]
        assert contrast(fill, text) >= 4.5, style
        greys.append(luminance(fill))
    steps = pairwise(sorted(greys[:4]))
    assert all((high + 0.05) / (low + 0.05) > 1.3 for low, high in steps)


def test_a_chart_is_a_file_of_its_own_too():
    chart = charts.line_chart(
        [Series("a < b", [1, 2], [3, 4])], title="T", x_label="x", y_label="y"
    )
    drawn = ET.fromstring(page.standalone_svg(chart))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    style = drawn.find("{http://www.w3.org/2000/svg}style")
    assert CSS in style.text
    assert "a < b" in "".join(drawn.itertext())
    plain = ET.fromstring(chart)
    assert [one.tag for one in plain] == [one.tag.split("}")[1] for one in drawn][1:]
