"""The page: links, comparisons, and the state of the service."""

from __future__ import annotations

import json
import subprocess

import pytest

import talerec as tr

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")

from browsing import SIZES, Page, add, expected, history, names, wait_for_items
from service import Remote


def test_a_link_restores_the_same_view(page, model, chromium, service):
    add(page, model, 10)
    add(page, model, 40)
    page.fill("#as-of", "2024-06-01")
    page.fill("#words", "lamp")
    page.select_option("#versus-kind", "model:plain")
    rows = history(model, [10, 40])
    shown = [
        title
        for title in expected(model, rows, 150, hide_seen=True, as_of="2024-06-01")
        if "lamp" not in title.lower()
    ][:10]
    wait_for_items(page, shown)
    page.wait_for_selector("#versus-list li")
    second = Page(chromium, service)
    opened = second.open(page.url.removeprefix(f"{service.url}/"))
    wait_for_items(opened, shown)
    wait_for_items(opened, names(page, "#versus-list"), "#versus-list")
    assert names(opened, "#rows") == names(page, "#rows")
    second.close()


@pytest.mark.parametrize(
    "junk",
    ["#row=x", "#user=nobody", "#recency=-3&asof=today&versus=model:none&most=price", "#%%%"],
)
def test_an_invalid_link_does_not_break_the_page(window, junk):
    page = window.open(junk)
    assert len(names(page, "#answer")) == 10
    window.complaints = [
        complaint for complaint in window.complaints if "status of 4" not in complaint
    ]


def test_the_copied_curl_command_gives_the_same_answer(chromium, service, model):
    window = Page(chromium, service, permissions=["clipboard-read", "clipboard-write"])
    page = window.open()
    add(page, model, 10)
    wait_for_items(page, expected(model, history(model, [10]), hide_seen=True))
    page.click("#copy-curl")
    page.wait_for_function("() => document.querySelector('#copied').textContent !== ''")
    command = page.evaluate("navigator.clipboard.readText()")
    output = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True
    ).stdout
    assert [item["title"] for item in json.loads(output)["items"]] == names(page, "#answer")
    page.click("#copy-link")
    page.wait_for_function("() => document.querySelector('#copied').textContent.startsWith('Link')")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    window.close()


def test_two_models_and_two_dates_are_compared_side_by_side(sized, model, other):
    add(sized, model, 10)
    rows = history(model, [10])
    first = expected(model, rows, hide_seen=True)
    wait_for_items(sized, first)
    if not sized.is_visible("#versus-kind"):  # settings are folded on a phone
        sized.click("#settings summary")
    sized.select_option("#versus-kind", "model:plain")
    second = expected(other, [row[0] for row in rows], hide_seen=True)
    wait_for_items(sized, second, "#versus-list")
    same = len(set(first) & set(second))
    sized.wait_for_function(
        f"() => document.querySelector('#versus-note').textContent.startsWith('{same} of 10')"
    )
    sized.select_option("#versus-kind", "moment")
    sized.fill("#versus-date", "2024-03-01")
    wait_for_items(sized, expected(model, rows, hide_seen=True, as_of="2024-03-01"), "#versus-list")
    wait_for_items(sized, first)


def test_operations_show_request_counts(sized, service):
    sized.click("#tab-operations")
    sized.wait_for_selector("#tiles li")
    counted = sized.locator("#routes tbody tr", has_text="/v1/model").first
    before = int(counted.locator("td").nth(1).inner_text().replace(",", ""))
    for _ in range(3):
        service.ask("GET", "/v1/model")
    sized.wait_for_function(
        """least => [...document.querySelectorAll('#routes tbody tr')].some(row =>
            row.cells[0].textContent === '/v1/model'
            && Number(row.cells[1].textContent.replaceAll(',', '')) >= least)""",
        arg=before + 3,
    )
    text = sized.inner_text("#tiles")
    for title in (
        "Requests per second",
        "Response time",
        "Failures",
        "Age of the model",
        "Reloads",
        "Workers",
    ):
        assert title in text


@pytest.fixture(scope="module")
def service_with_store(model, tmp_path_factory):
    """A service with a store that measures two models."""
    folder = tmp_path_factory.mktemp("service_with_store")
    path = model.save(folder / "shop.tale")
    other = tr.MODELS["popular"]().fit(model.fitted.log).save(folder / "next.tale")
    options = ("--measure", "1", "--candidate", str(other), "--share", "0.25")
    remote = Remote(path, "--store", f"sqlite:///{folder}/shop.db", *options)
    yield remote
    remote.stop()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_operations_show_events_and_online_metrics(chromium, service_with_store, size, scheme):
    window = Page(chromium, service_with_store, size, color_scheme=scheme)
    page = window.open()
    page.click("#tab-operations")
    page.wait_for_selector("#live:not([hidden]) li")
    rows = [{"user_id": 1 + n % 40, "item_id": 1 + n % 50} for n in range(60)]
    assert service_with_store.ask("POST", "/v1/events", {"events": rows}).status == 202
    candidate = service_with_store.ask("GET", "/v1/stats").json["candidate"]["model"]
    page.wait_for_selector(f"#live-models tbody tr:has-text('{candidate[:8]}, candidate')")
    page.wait_for_selector("#difference tbody tr")
    text = page.inner_text("#panel-operations")
    for words in (
        "Events per second",
        "Online HR@10, last hour",
        "100 % of users",
        "Learning",
        "25 % of users",
    ):
        assert words in text
    stats = service_with_store.ask("GET", "/v1/stats").json["measured"]
    page.wait_for_function(
        """least => Number(document.querySelector('#live-models tbody td').textContent
            .replaceAll(',', '')) >= least""",
        arg=stats["hour"]["models"][0]["events"],
    )
    window.close()


def test_new_events_of_the_user_appear_in_the_rows(chromium, service_with_store, model):
    window = Page(chromium, service_with_store)
    page = window.open("#user=20")
    page.wait_for_selector("#rows li")
    before = page.inner_text("#who")
    title = model.fitted.info["title"][30]
    for _ in range(2):  # the same item twice is two events
        event = {"user_id": 20, "item_id": model.item_ids[30]}
        assert service_with_store.ask("POST", "/v1/events", {"events": [event]}).status == 202
    page.wait_for_selector("#rows .fresh")
    assert title in page.locator("#rows .fresh").first.inner_text()
    page.wait_for_function(
        "before => document.getElementById('who').textContent !== before", arg=before
    )
    assert "new event" in page.inner_text("#arriving")
    page.wait_for_function(
        "title => document.querySelector('#answer').textContent.includes(title)", arg=title
    )
    assert service_with_store.ask("DELETE", "/v1/users/20").status == 200
    window.close()


def test_the_model_has_a_card(page):
    page.click("#tab-model")
    card = page.inner_text("#card")
    assert "HR@10 0.25" in card
    assert "3,000 rows" in card
