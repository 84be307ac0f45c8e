"""The page's tab of impressions: what a shop keeper reads there is what the service counted."""

from __future__ import annotations

import os

import pytest

import talerec as tr

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")

from browsing import SIZES, Page
from service import Remote
from waiting import until

USERS = 180


@pytest.fixture(scope="module")
def shop(model, tmp_path_factory):
    """A service that compares two models; every third user clicks on the first item."""
    folder = tmp_path_factory.mktemp("impressions")
    path = model.save(folder / "shop.tale")
    other = tr.MODELS["popular"]().fit(model.fitted.log).save(folder / "next.tale")
    options = ("--impressions", "1", "--attribution", "1s", "--explore", "0.2")
    options += ("--candidate", str(other), "--share", "0.5")
    remote = Remote(path, "--store", f"sqlite:///{folder}/shop.db", *options)
    for user in range(USERS):
        answer = remote.ask("POST", "/v1/recommend", {"user_id": f"u{user}", "k": 5}).json
        item = str(answer["items"][0]["item_id"])
        if user % 3 == 0:
            event = {"user_id": f"u{user}", "item_id": item}
            assert remote.ask("POST", "/v1/events", {"events": [event]}).status == 202
    until(lambda: (figures(remote).get("comparison") or {}).get("interval"))
    yield remote
    remote.stop()


def figures(remote):
    return remote.ask("GET", "/v1/stats").json["impressions"]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_tab_shows_rates_and_the_comparison(chromium, shop, size, scheme):
    window = Page(chromium, shop, size, color_scheme=scheme)
    page = window.open()
    page.click("#tab-impressions")
    page.wait_for_selector("#rates-by-model tbody tr")
    counted = figures(shop)
    text = page.inner_text("#panel-impressions")
    assert counted["answers"] == USERS  # the page's own lists are not impressions
    assert counted["clicks"] == USERS / 3
    for words in (
        f"{100 * counted['ctr']:.2f} %",
        "Is the new model better?",
        counted["comparison"]["advice"][1:],
        f"{counted['comparison']['users']['candidate']} users",
        f"Of 100 shown items, a user clicks on {100 * counted['comparison']['ctr']['current']:.2f}",
        "To compare two models (--candidate), read the answer above",
        "personal lists",
        "Explored items",
    ):
        assert words in text
    rows = page.locator("#rates-by-rank tbody tr")
    assert rows.count() == 5
    first = rows.first.locator("td").all_inner_texts()
    row = counted["by_rank"]["1"]
    ends = [f"{100 * end:.2f}" for end in row["interval"]]
    assert first[:4] == [
        f"{row['impressions']}", f"{row['clicks']}", f"{100 * row['ctr']:.2f} %",
        f"{ends[0]} to {ends[1]} %",
    ]  # fmt: skip
    if folder := os.environ.get("TALEREC_PICTURES"):
        page.screenshot(path=f"{folder}/impressions-{scheme}-{size[0]}.png", full_page=True)
    window.close()


def test_before_the_first_answer_the_tab_says_so(chromium, model, tmp_path):
    path = model.save(tmp_path / "shop.tale")
    options = ("--store", f"sqlite:///{tmp_path}/shop.db", "--impressions", "1")
    remote = Remote(path, *options)
    try:
        window = Page(chromium, remote)
        page = window.open()
        page.click("#tab-impressions")
        page.wait_for_selector("#no-impressions:has-text('Nothing was shown yet')")
        assert remote.ask("POST", "/v1/recommend", {"user_id": "ann", "k": 5}).status == 200
        page.wait_for_selector("#rates-by-model tbody tr")  # without a click, soon afterwards
        assert not page.is_visible("#no-impressions")
        window.close()
    finally:
        remote.stop()


def test_without_impressions_the_tab_says_how_to_keep_them(page):
    page.click("#tab-impressions")
    page.wait_for_selector("#no-impressions:has-text('--impressions 0.1')")
    assert not page.is_visible("#impressions")
