"""The page of a ranker: families of features as reasons."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")
pytest.importorskip("lightgbm", reason="needs the extra rank")

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
        with page.expect_response("**/v1/recommend") as response:
            page.locator("#users").get_by_role("button", name="20", exact=True).click()
        page.wait_for_selector("#answer .families")
        # what the service answered: reasons depend on the request, such as on the hour of the day
        best = response.value.json()["items"][0]
        strongest = [family for family in best["families"] if family["share"] >= 0.05]
        strongest.sort(key=lambda family: -family["share"])
        line = ", ".join(f"{one['reason']} {round(100 * one['share'])} %" for one in strongest)
        assert page.locator("#answer .families").first.inner_text() == line
        page.locator("#answer").get_by_role("button", name="Why").first.click()
        page.wait_for_selector("#answer table")
        rows = page.locator("#answer table tbody tr").all_inner_texts()
        names = [row.split("\t")[0] for row in rows]
        assert names[0] == "Not from the history"
        reasons = names[names.index("The same score by families:") + 1 :]
        assert sorted(reasons) == sorted(family["reason"] for family in best["families"])
        window.close()
    finally:
        service.stop()
