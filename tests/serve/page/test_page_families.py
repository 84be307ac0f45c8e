"""The page of a ranker: families of features as reasons."""

from __future__ import annotations

import polars as pl
import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")
pytest.importorskip("lightgbm", reason="needs the extra rank")

from playwright.sync_api import expect

import talerec as tr
from browsing import Page
from logs import hour_log
from service import Remote


@pytest.mark.slow
def test_cards_and_the_table_show_families_as_reasons(chromium, tmp_path):
    model = tr.Ranker(parts="markov,popular", candidates=20).fit(hour_log())
    service = Remote(model.save(tmp_path / "shop.tale"))
    window = Page(chromium, service)
    try:
        page = window.open("#seen=shown")
        page.fill("#user", "20")
        page.locator("#users").get_by_role("button", name="20", exact=True).click()
        page.wait_for_selector("#answer .families")
        best = model.recommend([20], k=1)["item_id"][0]
        strongest = model.explain_user(20, best, by="families").filter(pl.col("share") >= 0.05)
        pairs = strongest.sort("share", descending=True).select("reason", "share").iter_rows()
        line = ", ".join(f"{reason} {round(100 * share)} %" for reason, share in pairs)
        # the page shows an answer before the click: wait for that of the user
        expect(page.locator("#answer .families").first).to_have_text(line, timeout=20_000)
        page.locator("#answer").get_by_role("button", name="Why").first.click()
        page.wait_for_selector("#answer table")
        rows = page.locator("#answer table tbody tr").all_inner_texts()
        names = [row.split("\t")[0] for row in rows]
        assert names[0] == "Not from the history"
        reasons = names[names.index("The same score by families:") + 1 :]
        history = model.explain_user(20, best, by="families")
        assert sorted(reasons) == sorted(history["reason"])
        window.close()
    finally:
        service.stop()
