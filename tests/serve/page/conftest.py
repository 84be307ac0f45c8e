"""A browser, a service with two models, and browser windows with its page."""

from __future__ import annotations

import os
import shutil

import numpy as np
import polars as pl
import pytest

import talerec as tr
from browsing import SIZES, Page
from waiting import LONG_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def chromium():
    """Per test file, because no other event loop can run beside it."""
    program = os.environ.get("TALEREC_BROWSER") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium, or TALEREC_BROWSER=PATH")
    from playwright import sync_api

    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=1000 * LONG_S
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def log():
    log_without_prices = tr.synthetic_log(3000, users=300, items=150, seed=3)
    number = np.arange(len(log_without_prices.info))
    price, is_new = pl.Series("price", number % 50 + 0.5), pl.Series("is_new", number % 3 == 0)
    return log_without_prices.with_items(log_without_prices.info.with_columns(price, is_new))


@pytest.fixture(scope="session")
def model(log):
    return tr.Tempo().fit(log)


@pytest.fixture(scope="session")
def other(log):
    return tr.TALE(reg=20).fit(log)


@pytest.fixture(scope="session")
def service(model, other, tmp_path_factory):
    from service import Remote

    folder = tmp_path_factory.mktemp("models")
    path = model.save(folder / "shop.tale", metrics={"HR@10": 0.25})
    remote = Remote(path, "--beside", str(other.save(folder / "plain.tale")))
    yield remote
    remote.stop()


@pytest.fixture
def window(chromium, service):
    page_window = Page(chromium, service)
    yield page_window
    page_window.close()


@pytest.fixture
def page(window):
    return window.open()


@pytest.fixture(params=SIZES.values(), ids=SIZES)
def sized(request, chromium, service):
    page_window = Page(chromium, service, request.param)
    yield page_window.open()
    page_window.close()
