"""The page in a browser, and the items that it should show."""

from __future__ import annotations

from datetime import datetime, timedelta

from waiting import LONG_S

SIZES = {"desktop": (1280, 900), "phone": (320, 700)}


class Page:
    """The page in its own window; the console must stay empty and no other host be used."""

    def __init__(self, browser, service, size=SIZES["desktop"], **options):
        self.context = browser.new_context(
            viewport=dict(zip(("width", "height"), size, strict=True)), **options
        )
        self.page, self.service, self.size = self.context.new_page(), service, size
        self.page.set_default_timeout(1000 * LONG_S)
        self.complaints, self.hosts = [], set()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def open(self, address=""):
        self.page.goto(f"{self.service.url}/{address}")
        self.page.wait_for_selector("#answer li")
        return self.page

    def close(self):
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        too_wide = self.page.evaluate(wide)
        self.context.close()
        assert self.complaints == []
        assert self.hosts == {f"127.0.0.1:{self.service.port}"}
        assert too_wide <= 0  # no horizontal scrolling


def names(page, where: str) -> list[str]:
    return page.locator(f"{where} .head .name, {where}.rows .name").all_inner_texts()


def add(page, model, place: int) -> str:
    """Search an item by its title and click it."""
    title = model.fitted.info["title"][place]
    page.fill("#search", title)
    page.locator("#found").get_by_role("button", name=title, exact=True).first.click()
    page.wait_for_selector(f"#rows li:has-text('{title}')")
    return title


def history(model, places) -> list[tuple]:
    """Return rows with the dates that the page sets: one per day after the log's end."""
    end = datetime.fromtimestamp(model.fitted.training["last_time"] / 1e6).date()
    start = datetime(end.year, end.month, end.day)
    return [(model.item_ids[p], start + timedelta(days=n + 1)) for n, p in enumerate(places)]


def expected(model, rows, k: int = 10, **options) -> list[str]:
    titles = dict(model.fitted.info.select("item_id", "title").rows())
    items = model.recommend_histories([rows], k=k, **options)["item_id"]
    return [titles[item] for item in items]


def wait_for_items(page, expected_names: list[str], where: str = "#answer") -> None:
    """Wait until the page shows these items."""
    script = """([where, expected]) => JSON.stringify(
        [...document.querySelectorAll(where + ' .head .name')].map(name => name.textContent)
    ) === JSON.stringify(expected)"""
    page.wait_for_function(script, arg=[where, expected_names])


def focus_on(page, element_id: str, most: int = 80) -> None:
    """Press Tab until the element with this id has the focus."""
    for _ in range(most):
        if page.evaluate("document.activeElement.id") == element_id:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{element_id} cannot be reached by Tab")
