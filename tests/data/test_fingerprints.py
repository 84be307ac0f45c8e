"""Fingerprints of logs: equal for equal rows in the same order, different for all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import talerec as tr
from logs import tiny_log
from talerec.data import Vocabulary, fingerprint_log, fingerprint_rows

ROWS = [("a", "x", 1), ("a", "y", 1), ("a", "x", 2), ("bc", "x", 5), ("bc", "z", 5)]
LOG = tiny_log(ROWS)
EVENTS = {"event": np.array([0, 1, 0, 1, 0], np.int16), "event_names": ("buy", "view")}


def test_equal_rows_have_equal_fingerprints_in_whatever_way_they_came(tmp_path):
    path = tmp_path / "log.parquet"
    LOG.to_frame().write_parquet(path)
    for again in (tiny_log(ROWS), tr.read_log(path), replace(LOG, item=LOG.item.astype(np.int64))):
        assert fingerprint_rows(again) == fingerprint_rows(LOG)
    saved = tr.load(tr.Popular().fit(LOG).save(tmp_path / "m.tale"))
    assert fingerprint_rows(saved.fitted.log) == fingerprint_rows(LOG)
    weighted = replace(LOG, weight=np.ones(5), weight_unit=2.0).normalize_weights()
    assert fingerprint_rows(weighted) == fingerprint_rows(LOG)
    assert (
        fingerprint_rows(LOG) == "6a5916131823bbd33a283d83a681ae6f"
    )  # on every machine, in every version


@pytest.mark.parametrize("fingerprint", [fingerprint_rows, fingerprint_log])
def test_other_rows_have_another_fingerprint(fingerprint):
    def ids(*names):
        return Vocabulary(pl.Series(names))

    others = [
        LOG,
        tiny_log(ROWS[:-1]),
        tr.order_ties(tiny_log([ROWS[1], ROWS[0], *ROWS[2:]]), "file"),
        replace(LOG, users=ids("ab", "c")),
        replace(LOG, users=ids(1, 2)),
        replace(LOG, users=ids("1", "2")),
        replace(LOG, items=ids("x", "y", "y2")),
        replace(LOG, ptr=np.array([0, 2, 5])),
        replace(LOG, item=LOG.item[::-1]),
        replace(LOG, time=LOG.time - 1),
        replace(LOG, weight=np.array([1.0, 1.0, 1.0, 0.5, 1.5])),
        replace(LOG, weight=np.array([1.0, 1.0, 1.0, 1.5, 0.5])),
    ]
    assert len({fingerprint(log) for log in others}) == len(others)


def test_what_a_fit_alone_does_not_read_is_in_the_fingerprint_of_a_log_only():
    others = [
        LOG,
        replace(LOG, unit="s"),
        replace(LOG, **EVENTS),
        replace(LOG, **EVENTS | {"event_names": ("cart", "view")}),
        replace(LOG, trends=np.arange(1, 6)),
        replace(LOG, latest=7),
    ]
    assert len({fingerprint_log(log) for log in others}) == len(others)
    assert len({fingerprint_rows(log) for log in others}) == 1
