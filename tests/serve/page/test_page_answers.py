"""The page: histories, recommendations and reasons."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("playwright", reason="needs playwright (EXTRAS=all)")

from browsing import add, expected, history, names, wait_for_items
from waiting import until

# -- histories -------------------------------------------------------------------------------------


def test_without_a_history_it_shows_what_is_popular(page):
    assert page.inner_text("#who") == "No user selected"
    assert len(names(page, "#answer")) == 10


def test_a_history_is_built_by_clicking_and_its_dates_order_it(sized, model):
    first, second = add(sized, model, 10), add(sized, model, 40)
    assert names(sized, "#rows") == [second, first]
    rows = history(model, [10, 40])
    wait_for_items(sized, expected(model, rows, hide_seen=True))
    sized.get_by_label(f"Date of {first}").fill("2030-01-01")
    later = [rows[1], (rows[0][0], datetime(2030, 1, 1))]
    wait_for_items(sized, expected(model, later, hide_seen=True))
    assert names(sized, "#rows") == [first, second]
    sized.get_by_role("button", name=f"Remove {first}").click()
    wait_for_items(sized, expected(model, later[:1], hide_seen=True))


def test_a_user_of_the_log_is_found_and_its_rows_are_shown(page, model, log):
    page.fill("#user", "20")
    page.locator("#users").get_by_role("button", name="20", exact=True).click()
    page.wait_for_function("() => document.querySelector('#who').textContent.startsWith('User 20')")
    titles = dict(log.info.select("item_id", "title").rows())
    recommended = model.recommend([20], k=10, hide_seen=True)["item_id"]
    wait_for_items(page, [titles[item] for item in recommended])
    place = log.users.ids.to_list().index(20)
    rows = log.items.ids.gather(log.item[log.ptr[place] : log.ptr[place + 1]]).to_list()
    assert names(page, "#rows") == [titles[item] for item in reversed(rows)][:12]


def test_enter_uses_the_present_text_of_the_field(page, model):
    """Also while the list still shows the results of an earlier text."""
    first, second = model.fitted.info["title"][10], model.fitted.info["title"][40]
    page.fill("#search", first)
    page.locator("#found").get_by_role("button", name=first, exact=True).wait_for()
    page.fill("#search", second)
    page.press("#search", "Enter")  # before the search can finish
    page.wait_for_selector("#rows li")
    assert names(page, "#rows") == [second]


def test_enter_waits_for_a_slow_search(page, model):
    """The search that starts after a pause in typing must not abort that of Enter."""
    title = model.fitted.info["title"][40]
    held = []
    page.route("**/v1/items?*", lambda route: held.append(route))
    page.fill("#search", title)
    page.press("#search", "Enter")
    page.wait_for_timeout(400)  # longer than the pause
    for route in held:
        route.continue_()
    page.wait_for_selector("#rows li")
    assert names(page, "#rows") == [title]


# -- recommendations -------------------------------------------------------------------------------


def test_a_table_shows_contributions_of_rows_and_popularity(page, model):
    first, second = add(page, model, 10), add(page, model, 40)
    rows = history(model, [10, 40])
    wait_for_items(page, expected(model, rows, hide_seen=True))
    page.locator("#answer").get_by_role("button", name="Why").first.click()
    page.wait_for_selector("#answer table")
    lines = [line.split("\t") for line in page.locator("#answer table tbody tr").all_inner_texts()]
    assert [line[0] for line in lines] == ["Popular at the time", second, first]
    target = model.recommend_histories([rows], k=1, hide_seen=True)["item_id"][0]
    contributions = model.explain(rows, target)["contribution"].to_list()
    whole = sum(map(abs, contributions))
    shares = [
        round(100 * part / whole) for part in (contributions[2], contributions[1], contributions[0])
    ]
    assert [int(line[1].removesuffix(" against").removesuffix(" %")) for line in lines] == [
        abs(share) for share in shares
    ]
    assert [line[1].endswith("against") for line in lines] == [share < 0 for share in shares]


def has_negative_reason(model, log, user) -> bool:
    """Does a row of this user lower the score of a top ten item by more than 2 %?"""
    place = log.users.ids.to_list().index(user)
    rows = slice(log.ptr[place], log.ptr[place + 1])
    rows_with_times = list(
        zip(log.items.ids.gather(log.item[rows]), log.time[rows].tolist(), strict=True)
    )
    for item, score, _ in (
        model.recommend_histories([rows_with_times], hide_seen=True).drop("history").rows()
    ):
        if model.explain(rows_with_times, item)["contribution"].min() < -0.02 * score:
            return True
    return False


def test_chips_show_reasons_for_and_against_an_item(page, service, model, log):
    user = next(user for user in log.users.ids if has_negative_reason(model, log, user))
    page.goto(f"{page.url.split('#')[0]}#user={user}")
    items = model.recommend([user], k=10, hide_seen=True)["item_id"]
    infos = {row["item_id"]: row for row in log.info.to_dicts()}
    wait_for_items(page, [infos[item]["title"] for item in items])
    rows = page.request.get(f"{service.url}/v1/users/{user}").json()["history"]
    seen = 0
    for n, item in enumerate(items):
        explanation = page.request.post(
            f"{service.url}/v1/explain", data={"history": rows, "item_id": item}
        ).json()
        parts = [row["contribution"] for row in explanation["rows"]] + [explanation["base"]]
        whole = sum(map(abs, parts))
        pro = sorted((p for p in parts if p >= 0.01 * whole), reverse=True)[:4]
        con = sorted(p for p in parts if p <= -0.01 * whole)[:3]
        expected_shares = [
            [pytest.approx(100 * abs(part) / whole, abs=0.51) for part in reasons]
            for reasons in (pro, con)
        ]
        card = page.locator("#answer > li").nth(n)
        until(
            lambda card=card, expected_shares=expected_shares: percents(card) == expected_shares,
            f"{item} is not explained",
        )
        seen += len(con)
    assert seen > 0
    assert page.locator("#answer .chip:has-text('popular at the time')").count() > 0


def percents(card) -> list[list[int]]:
    """Return the shares on a card for and against the item; some arrive after the list."""
    texts = [card.locator(f"div.{kind} .chip b").all_inner_texts() for kind in ("for", "against")]
    return [[int(text.removesuffix(" %")) for text in some] for some in texts]


def test_a_score_near_zero_has_no_share_above_100_percent(page, service, model):
    """Rows for and against an item nearly cancel: a contribution is several times the score."""

    def cancel(route):
        asked = route.request.post_data_json
        rows = [
            {"item_id": row["item_id"], "place": place, "weight": 1.0,
             "contribution": contribution, "share": contribution / 0.01}
            for row, place, contribution in zip(
                asked["history"], (1, 0), (-0.02, 0.03), strict=False
            )
        ]  # fmt: skip
        explanation = {"item_id": asked["item_id"], "score": 0.01, "base": 0.0, "rows": rows}
        route.fulfill(json=explanation)

    page.route("**/v1/explain", cancel)
    first, second = add(page, model, 10), add(page, model, 40)
    wait_for_items(page, expected(model, history(model, [10, 40]), hide_seen=True))
    card = page.locator("#answer > li").first
    until(lambda: percents(card) == [[60], [40]], "the shares are not of all reasons")
    card.get_by_role("button", name="Why").click()
    page.wait_for_selector("#answer table")
    lines = [line.split("\t") for line in card.locator("tbody tr").all_inner_texts()]
    assert [line[:2] for line in lines[1:]] == [[second, "60 %"], [first, "40 % against"]]
    assert "together 100 %" in card.locator("caption").inner_text()


def test_similar_items_open_in_place(page, model):
    add(page, model, 10)
    page.wait_for_selector("#answer .chip")
    card = page.locator("#answer > li").first
    title = card.locator(".head .name").inner_text()
    card.get_by_role("button", name="Similar").click()
    card.locator(".similar li").first.wait_for()
    item = model.fitted.info.filter(pl.col("title") == title)["item_id"][0]
    titles = dict(model.fitted.info.select("item_id", "title").rows())
    expected_titles = [titles[similar] for similar in model.similar_items(item, k=6)["item_id"]]
    assert card.locator(".similar .name").all_inner_texts() == expected_titles
    card.get_by_role("button", name="Similar").click()
    assert card.locator(".similar").count() == 0


def test_controls_change_the_ranks_and_the_changes_are_shown(page, model):
    for place in (10, 40, 70):
        add(page, model, place)
    rows = history(model, [10, 40, 70])
    wait_for_items(page, expected(model, rows, hide_seen=True))
    page.locator("#recency").fill("-1")
    after = expected(model.with_params(recency=0.5), rows, hide_seen=True)
    wait_for_items(page, after)
    page.wait_for_selector("#answer .moved:not(:empty)")
    page.locator("#hide-seen").uncheck()
    wait_for_items(page, expected(model.with_params(recency=0.5), rows, hide_seen=False))
    page.click("#own-recency")
    wait_for_items(page, expected(model, rows, hide_seen=False))
    page.locator("#recency").fill("-1")
    wait_for_items(page, expected(model.with_params(recency=0.5), rows, hide_seen=False))
    page.fill("#as-of", "2024-03-01")
    wait_for_items(
        page, expected(model.with_params(recency=0.5), rows, hide_seen=False, as_of="2024-03-01")
    )


def test_filters_exclude_words_categories_and_prices(page, model):
    add(page, model, 10)
    rows = history(model, [10])
    rows_by_title = {row["title"]: row for row in model.fitted.info.to_dicts()}
    everything = expected(model, rows, k=150, hide_seen=True)
    category = rows_by_title[everything[0]]["category"]
    page.select_option("#filter-category", category)
    passing = [title for title in everything if rows_by_title[title]["category"] != category]
    wait_for_items(page, passing[:10])
    word = passing[0].split()[-1].lower()
    page.fill("#words", word)
    passing = [title for title in passing if word not in title.lower()]
    wait_for_items(page, passing[:10])
    page.fill("#filter-price", "20")
    page.press("#filter-price", "Tab")
    passing = [title for title in passing if rows_by_title[title]["price"] <= 20]
    wait_for_items(page, passing[:10])
    assert (
        rows_by_title[passing[0]]["category"] in page.locator("#answer .about").first.inner_text()
    )
    page.locator("#left-out").get_by_role("button").click()
    page.fill("#words", "")
    passing = [title for title in everything if rows_by_title[title]["price"] <= 20]
    wait_for_items(page, passing[:10])
    page.select_option("#filter-is_new", "true")
    passing = [title for title in passing if not rows_by_title[title]["is_new"]]
    wait_for_items(page, passing[:10])
