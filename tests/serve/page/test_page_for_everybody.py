"""The page: errors, keyboard, phones and screen readers."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import talerec as tr

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")

from browsing import Page, add, expected, focus_on, history, wait_for_items
from service import Remote
from waiting import LONG_S

TOKEN = "a-token-for-tests-alone"
READER = "a-token-that-only-reads"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"

# -- errors ----------------------------------------------------------------------------------------


def test_errors_are_shown_as_toasts(chromium, model, tmp_path):
    service = Remote(model.save(tmp_path / "m.tale"))
    window = Page(chromium, service)
    page = window.open()
    service.stop()
    page.locator("#hide-seen").uncheck()
    toast = page.locator(".toast")
    toast.wait_for()
    assert toast.inner_text().startswith("The service does not respond. Is it running?")
    toast.get_by_role("button").click()
    assert toast.count() == 0
    window.context.close()


@pytest.mark.parametrize("token", [TOKEN, READER])
def test_a_service_with_a_token_asks_for_it_and_reports_a_wrong_one(
    chromium, model, tmp_path, token
):
    guarded = Remote(model.save(tmp_path / "m.tale"), token=TOKEN, TALEREC_READ_TOKEN=READER)
    try:
        page = chromium.new_page()
        page.set_default_timeout(1000 * LONG_S)
        page.goto(guarded.url)
        page.wait_for_selector("#login:not([hidden])")
        assert page.is_hidden("#wrong-token")
        page.keyboard.type("a wrong token of some length")
        page.keyboard.press("Enter")
        page.wait_for_selector("#wrong-token:not([hidden])")
        assert page.evaluate("document.activeElement.id") == "token"
        page.keyboard.type(f" {token} ")
        page.keyboard.press("Enter")
        page.wait_for_selector("#answer li")
        assert page.is_hidden("#login")
        assert page.locator(".toast").count() == 0
        page.close()
    finally:
        guarded.stop()


def test_large_ids_are_exact_and_hostile_titles_are_text(chromium, tmp_path):
    """Ids above 2^53, which JavaScript would round, and a title that contains markup."""
    big = 2**60
    rows = pl.DataFrame({
        "user_id": [big + n // 6 for n in range(120)],
        "item_id": [big + (7 * n + n // 11) % 11 for n in range(120)],
        "timestamp": [1_600_000_000 + 86_400 * n for n in range(120)],
    })  # fmt: skip
    titles = pl.DataFrame({"item_id": [big + 4], "title": [HOSTILE]})
    model = tr.Markov().fit(tr.Log.from_frame(rows).with_items(titles))
    service = Remote(model.save(tmp_path / "m.tale"))
    window = Page(chromium, service)
    page = window.open(f"#user={big + 3}")
    page.wait_for_selector("#rows li")

    def names(answer: pl.DataFrame) -> list[str]:
        return [HOSTILE if item == big + 4 else str(item) for item in answer["item_id"]]

    before = names(model.recommend([big + 3], k=10, hide_seen=True))
    wait_for_items(page, before)
    page.fill("#search", "img")
    page.locator("#found button").first.click()
    page.wait_for_selector("#rows li:first-child .name:has-text('<img')")
    history = [*rows.filter(pl.col("user_id") == big + 3)["item_id"], big + 4]
    after = names(model.recommend_histories([history], k=10, hide_seen=True))
    assert after != before
    wait_for_items(page, after)  # else the click meets a card that the next answer replaces
    page.locator("#answer").get_by_role("button", name="Similar").first.click()
    page.wait_for_selector(".similar")
    assert page.title() == "talerec: what next?"
    assert page.locator("#answer img, #rows img").count() == 0
    window.close()
    service.stop()


# -- accessibility ---------------------------------------------------------------------------------


def test_the_page_can_be_used_by_keyboard_alone(page, model, log):
    """What would user 20 see next Friday, without tents, and why?"""
    end = datetime.fromtimestamp(model.fitted.training["last_time"] / 1e6)
    friday = end + timedelta(days=(4 - end.weekday()) % 7 or 7)
    focus_on(page, "user")
    page.keyboard.type("20")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#who').textContent.startsWith('User 20')")
    focus_on(page, "as-of")
    page.keyboard.type(friday.strftime("%m%d%Y"))
    focus_on(page, "words")
    page.keyboard.type("tent")
    titles = dict(log.info.select("item_id", "title").rows())
    items = model.recommend([20], k=150, hide_seen=True, as_of=friday.strftime("%Y-%m-%d"))[
        "item_id"
    ]
    expected_titles = [titles[item] for item in items if "tent" not in titles[item].lower()][:10]
    wait_for_items(page, expected_titles)
    for _ in range(30):
        page.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.getAttribute('aria-label')")
            == f"Why {expected_titles[0]}"
        ):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer > li:first-child table")
    assert "is the sum of the rows' contributions" in page.inner_text(
        "#answer > li:first-child caption"
    )
    focus_is_seen = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(focus_is_seen) == "solid"


def test_tabs_follow_the_arrow_keys(page):
    focus_on(page, "tab-recommend")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-operations")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-impressions")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-model")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-recommend")


def test_every_control_has_a_name_and_on_a_phone_a_touch_size(sized, model):
    add(sized, model, 10)
    # a click before the new answer would open a card of the old one, which is then replaced
    wait_for_items(sized, expected(model, history(model, [10]), hide_seen=True))
    sized.locator("#answer").get_by_role("button", name="Similar").first.click()
    sized.wait_for_selector(".similar li")
    controls = "[...document.querySelectorAll('button, input, select, textarea, summary')]"
    unnamed = f"""{controls}.filter(control => !(control.textContent.trim()
        || control.getAttribute('aria-label') || control.getAttribute('aria-labelledby')
        || control.labels?.length)).length"""
    assert sized.evaluate(unnamed) == 0
    small = f"""{controls}
        .filter(control => control.checkVisibility() && control.type !== 'checkbox')
        .map(control => [control.id || control.textContent, control.getBoundingClientRect()])
        .filter(([, box]) => box.height < 43.5 || box.width < 43.5).map(([name]) => name)"""
    if sized.viewport_size["width"] < 700:
        assert sized.evaluate(small) == []


def test_on_a_phone_recommendations_stand_above_the_history(sized, model, log):
    user = log.users.ids[int(np.argmax(np.diff(log.ptr)))]
    titles = dict(log.info.select("item_id", "title").rows())
    items = model.recommend([user], k=10, hide_seen=True)["item_id"]
    address = f"{sized.url.split('#')[0]}#user={user}"
    sized.goto(address)
    wait_for_items(sized, [titles[item] for item in items])
    assert sized.locator("#rows li").count() == 12
    answer, rows = (sized.locator(part).bounding_box() for part in ("#answer", "#rows"))
    is_phone = sized.viewport_size["width"] < 700
    assert answer["y"] < rows["y"] if is_phone else rows["x"] + rows["width"] < answer["x"]
    assert sized.locator("#hide-seen").is_visible() != is_phone
    sized.goto(f"{address}&seen=shown")
    sized.locator("#hide-seen").wait_for()  # a setting that differs is shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_axe_finds_nothing(chromium, service, scheme, width):
    """axe-core is not in this repository: TALEREC_AXE is the path of its axe.min.js."""
    axe = os.environ.get("TALEREC_AXE")
    if not axe:
        pytest.skip("needs axe-core: set TALEREC_AXE to its axe.min.js")
    window = Page(chromium, service, (width, 900), color_scheme=scheme)
    page = window.open("#user=20&words=tent&without=category%3DCoffee&versus=model%3Aplain")
    page.wait_for_selector("#versus-list li")
    page.locator("#answer").get_by_role("button", name="Why").first.click()
    page.wait_for_selector("#answer table")
    page.fill("#search", "a")
    page.wait_for_selector("#found button")
    source = Path(axe).read_text()
    for tab in ("recommend", "operations", "impressions", "model"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(300)
        page.evaluate(source)
        violations = page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
        )
        assert [
            (violation["id"], [node["target"] for node in violation["nodes"]])
            for violation in violations
        ] == []
    window.close()
