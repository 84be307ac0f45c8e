"""The page in a browser: search, a history, reasons, controls, by mouse and by keyboard alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import talerec as tr

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")

from playwright import sync_api

from service import Remote

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TOKEN = "a-token-for-tests-alone"


@pytest.fixture(scope="module")
def chromium():
    program = os.environ.get("TALEREC_BROWSER") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium, or TALEREC_BROWSER=PATH")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def model():
    return tr.TALE(reg=20).fit(tr.synthetic_log(3000, users=300, items=150, seed=3))


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("models") / "shop.tale", metrics={"HR@10": 0.25})


@pytest.fixture(scope="module")
def service(saved):
    one = Remote(saved)
    yield one
    one.stop()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def size(request):
    return dict(zip(("width", "height"), request.param, strict=True))


@pytest.fixture
def page(chromium, service, size):
    """The page, whose console stays empty and which asks nobody but the service."""
    context = chromium.new_context(viewport=size)
    one = context.new_page()
    one.set_default_timeout(20_000)
    complaints, hosts = [], set()
    one.on("console", lambda message: complaints.append(message.text))
    one.on("pageerror", lambda error: complaints.append(str(error)))
    one.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    one.goto(service.url)
    one.wait_for_selector("#answer li")
    yield one
    wide = one.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    shots = os.environ.get("TALEREC_SHOTS")
    if shots:
        one.screenshot(path=str(Path(shots) / f"{size['width']}.png"), full_page=True)
    context.close()
    assert complaints == []
    assert hosts == {f"127.0.0.1:{service.port}"}
    assert wide <= 0  # nothing to scroll to the side


def titles(page, where: str) -> list[str]:
    return page.locator(f"{where} .name").all_inner_texts()


def add(page, model, place: int) -> str:
    """Search an item by its title and click it."""
    title = model.fitted.info["title"][place]
    page.fill("#search", title)
    page.get_by_role("button", name=title, exact=True).first.click()
    page.wait_for_selector(f"#rows li:has-text('{title}')")
    return title


def expected(model, items, **options) -> list[str]:
    names = dict(model.fitted.info.select("item_id", "title").rows())
    return [names[item] for item in model.recommend_histories([items], k=10, **options)["item_id"]]


def settled(page, wanted: list[str]) -> None:
    """Wait until the page shows these recommendations."""
    script = """wanted => JSON.stringify([...document.querySelectorAll('#answer .name')]
        .map(one => one.textContent)) === JSON.stringify(wanted)"""
    page.wait_for_function(script, arg=wanted)


def test_without_a_history_it_shows_what_is_trending(page):
    assert "trending" in page.inner_text("#fallback")
    assert len(titles(page, "#answer")) == 10


def test_a_history_is_built_by_clicking_and_its_dates_order_it(page, model):
    ids = model.item_ids.to_list()
    first, second = add(page, model, 10), add(page, model, 40)
    assert titles(page, "#rows") == [second, first]
    settled(page, expected(model, [ids[10], ids[40]], hide_seen=True))
    page.get_by_label(f"Date of {first}").fill("2030-01-01")
    settled(page, expected(model, [ids[40], ids[10]], hide_seen=True))
    assert titles(page, "#rows") == [first, second]
    page.get_by_role("button", name=f"Remove {first}").click()
    settled(page, expected(model, [ids[40]], hide_seen=True))


def test_a_reason_says_what_each_row_gave_and_what_its_place_left(page, model):
    first, second = add(page, model, 10), add(page, model, 40)
    settled(page, expected(model, model.item_ids[[10, 40]].to_list(), hide_seen=True))
    page.locator("#answer summary").first.click()
    page.wait_for_selector("#answer table")
    lines = page.locator("#answer table tbody tr").all_inner_texts()
    assert [line.split("\t")[0] for line in lines] == [second, first]
    assert lines[0].split("\t")[1:3] == ["last", "100 %"]
    assert lines[1].split("\t")[1:3] == ["1 back", "61 %"]  # exp(-1 / 2)


def test_controls_move_the_ranks_and_the_moves_are_shown(page, model):
    ids = model.item_ids[[10, 40, 70]].to_list()
    for place in (10, 40, 70):
        add(page, model, place)
    before = expected(model, ids, hide_seen=True)
    settled(page, before)
    page.click("#keep")
    page.locator("#recency").fill("5")
    after = expected(model.with_params(recency=32), ids, hide_seen=True)
    assert after != before
    settled(page, after)
    page.wait_for_selector("#answer .moved:not(:empty)")
    kept = page.locator("#changed tbody tr").all_inner_texts()
    assert [line.split("\t")[0] for line in kept][:10] == after
    page.locator("#hide-seen").uncheck()
    settled(page, expected(model.with_params(recency=32), ids, hide_seen=False))


def test_similar_items_and_the_card_are_shown(page, model):
    add(page, model, 10)
    page.locator("#rows li").get_by_role("button", name="Similar").click()
    page.wait_for_selector("#similar li")
    names = dict(model.fitted.info.select("item_id", "title").rows())
    own = model.similar_items(model.item_ids[10], k=8)["item_id"]
    assert titles(page, "#similar") == [names[item] for item in own]
    card = page.inner_text("#card")
    assert "HR@10 0.25" in card
    assert "3,000 rows" in card
    assert "2024-12" in card


def test_it_works_by_keyboard_alone(page, model):
    title = model.fitted.info["title"][10]
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "search":
            break
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type(title)
    page.get_by_role("button", name=title, exact=True).first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page, expected(model, [model.item_ids[10]], hide_seen=True))
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "recency":
            break
    said = page.inner_text("#recency-value")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#recency-value") != said
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert not page.is_checked("#hide-seen")
    settled(page, expected(model, [model.item_ids[10]], hide_seen=False))
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer table")


def test_every_control_has_a_name_and_every_list_its_role(page, model):
    add(page, model, 10)
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input')].filter(one =>
        !(one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).length""")
    assert unnamed == 0
    assert page.locator("[role=status]").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_guarded_service_asks_for_its_token(chromium, saved):
    guarded = Remote(saved, token=TOKEN)
    try:
        page = chromium.new_page()
        page.goto(guarded.url)
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#answer li")
        assert page.is_hidden("#login")
        page.close()
    finally:
        guarded.stop()
