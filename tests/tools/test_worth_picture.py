"""The picture of accuracy against seconds shows the figures, and every model by name."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def worth(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import worth

    return worth


def test_the_picture_in_the_docs_is_drawn_from_the_figures(worth):
    assert (ROOT / "docs" / "worth.svg").read_text() == worth.draw(worth.read())


def test_every_model_has_a_point_and_a_name_that_no_other_name_covers(worth):
    figures = worth.read()
    picture = ElementTree.fromstring(worth.draw(figures))
    panels = picture.findall(f"{SVG}g")
    assert len(panels) == len({figure.log for figure in figures})
    for panel in panels:
        log = panel.find(f"{SVG}text").text
        models = [figure.model for figure in figures if figure.log == log]
        assert len(panel.findall(f"{SVG}circle")) == len(models)
        names = [text for text in panel.findall(f"{SVG}text") if text.text in set(models)]
        assert sorted(name.text for name in names) == sorted(models)
        places = [(float(name.get("x")), float(name.get("y")), len(name.text)) for name in names]
        for n, (x, y, letters) in enumerate(places):
            for other in places[:n]:
                apart = other[0] > x + 5 * letters or x > other[0] + 5 * other[2]
                assert apart or abs(other[1] - y) > 9


def test_a_better_point_stands_higher_and_a_slower_one_further_right(worth):
    rows = [("a", "cpu", 1.0, 0.1), ("b", "cpu", 100.0, 0.2)]
    picture = worth.draw([worth.Figure("log", name, *rest) for name, *rest in rows])
    dots = ElementTree.fromstring(picture).find(f"{SVG}g").findall(f"{SVG}circle")
    higher, lower = sorted(dots, key=lambda dot: float(dot.get("cy")))
    assert "b: 0.2 in 100 s" in higher.find(f"{SVG}title").text
    assert float(higher.get("cx")) > float(lower.get("cx"))


def test_a_model_that_is_judged_again_replaces_its_figure(worth, monkeypatch, tmp_path):
    saved, evaluated = tmp_path / "worth.json", tmp_path / "judged.txt"
    saved.write_text(json.dumps([["Beauty, item order", "sasrec", "gpu", 9, 0.01]]))
    result = {"model": "sasrec", "log": "beauty-item", "set": {}, "seconds": 12.3}
    evaluated.write_text(json.dumps({**result, "hidden": {"NDCG@10": 0.05678}}) + "\n")
    monkeypatch.setattr(worth, "FIGURES", saved)
    worth.add("gpu", [evaluated])
    assert worth.read() == [worth.Figure("Beauty, item order", "sasrec", "gpu", 12, 0.0568)]
