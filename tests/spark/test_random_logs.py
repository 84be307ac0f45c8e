"""Random logs and parameters give the same model, or the same error, as on one machine.

The environment variable TALEREC_RANDOM_LOGS sets how many; one by default, since each is a fit.
"""

from __future__ import annotations

import os
import random

import numpy as np
import polars as pl
import pytest

import talerec as tr
from figures import assert_same_json
from logs import START
from talerec.errors import TalerecError
from talerec.models.core import holdout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

NUMBERS = list(map(str, range(20, 40)))
IDS = {
    "numbers": [-3, 0, 7, 10, 2**40, *range(20, 40)],
    "digits": ["0", "7", "007", "+7", "10", str(2**64), str(10**37), "-5", *NUMBERS],
    "text": ["a", "B", "ä", "x\ny", "5\n", " 5", "5", "'", '"', "\\", "😀", "%", *NUMBERS],
}


def random_ids(rng: random.Random) -> list:
    all_ids = IDS[rng.choice(list(IDS))]
    return rng.sample(all_ids, rng.choice([1, 3, 20]))


def random_rows(rng: random.Random) -> pl.DataFrame:
    """Return rows with ties, repeats and duplicates.

    One user may have most rows, all users one item, and times may lie before 1970.
    """
    users, items, span = random_ids(rng), random_ids(rng), rng.choice([1, 5, 10**3, 10**6])
    first = rng.choice([START // 10**6, -span // 2])
    skew = rng.random()
    pairs = [
        (users[0] if rng.random() < skew else rng.choice(users), rng.choice(items))
        for _ in range(rng.choice([1, 30, 200]))
    ]
    pairs += [(user, items[0]) for user in users] if rng.random() < 0.3 else []
    rows = [(*row, first + rng.randrange(span), rng.choice([0.0, 1.0, 2.5, 1e6])) for row in pairs]
    rows += rng.choices(rows, k=len(rows) // 4)
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp", "worth"], orient="row")
    return frame.with_columns(pl.from_epoch("timestamp").cast(pl.Datetime("us")))


def random_model(rng: random.Random) -> tuple[type, dict]:
    shared = {
        "reg": rng.choice([0.5, 10.0]),
        "neighbors": rng.choice([1, 3, 100]),
        "max_history": rng.choice([1, 2, 3, 2500]),
    }
    by_class = {
        tr.TALE: {
            "window": rng.choice([0.01, 180.0]),
            "trend": rng.choice([0.0, 0.5]),
            "alpha": rng.choice([0.0, 0.5]),
        },
        tr.Tempo: {"shrinkage": rng.choice([0.0, 0.2]), "same_time": rng.choice(["auto", "joint"])},
        tr.SLIT: {"norm": rng.choice(["none", "l1"])},
        tr.SLIST: {"decay_user": rng.choice([0.0, 40.0])},
    }
    kind = rng.choice(list(by_class))
    return kind, {**shared, **by_class[kind]}


def write_files(rng: random.Random, frame: pl.DataFrame, folder):
    """Write rows to files of several folders, some of which may have no rows."""
    cuts = [0, *sorted(rng.randrange(len(frame) + 1) for _ in range(2)), len(frame)]
    for number, name in enumerate(("0", "a b/ä", "z")):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame[cuts[number] : cuts[number + 1]].write_parquet(path)
    return folder


def result_or_error(work):
    try:
        return work()
    except TalerecError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TALEREC_RANDOM_LOGS", "1"))))
def test_a_random_log_gives_the_model_of_one_machine(session, tmp_path, monkeypatch, seed):
    from talerec import spark

    monkeypatch.setattr(holdout, "_MIN_USERS", 5)  # so that tempo learns from small logs
    rng = random.Random(seed)
    frame, (kind, params) = random_rows(rng), random_model(rng)
    has_weights = kind(**params).takes_weights and rng.random() < 0.5
    names = {"any_time": True, **({"weight": "worth"} if has_weights else {})}
    ties, core, unique = rng.choice(["file", "item"]), rng.choice([None, 2]), rng.random() < 0.3

    def fit_locally() -> tr.Log | tr.models.base.Model:
        log = tr.Log.from_frame(frame, **names)
        log = tr.drop_duplicates(log) if unique else log
        log = tr.k_core(log, core) if core else log
        return kind(solver="local", **params).fit(tr.order_ties(log, ties))

    def fit_on_spark() -> tr.models.base.Model:
        return spark.fit(
            kind(**params),
            write_files(rng, frame, tmp_path / "log"),
            out,
            session=session,
            names=spark.Columns(**names),
            ties=ties,
            core=core,
            drop_duplicates=unique,
            histories=True,
            task_rows=rng.choice([50, 10**6]),
            task_pairs=rng.choice([500, 10**6]),
            solve_bytes=rng.choice([1, 10**9]),
        )

    out = tmp_path / "m.tale"
    expected, model = result_or_error(fit_locally), result_or_error(fit_on_spark)
    if isinstance(expected, str) or isinstance(model, str):
        assert expected == model
        return
    assert model.item_ids.to_list() == expected.item_ids.to_list()
    assert_same_json(model.fitted.training, expected.fitted.training)
    ours, theirs = model.weights.toarray(), expected.weights.toarray()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    loaded, log = tr.load(out).fitted.log, expected.fitted.log
    assert loaded.to_frame().equals(log.to_frame())
    assert (loaded.weight is None) == (log.weight is None)
    if log.weight is not None:
        np.testing.assert_allclose(loaded.weight, log.weight)
    users = log.users.ids
    ours, theirs = (fit.recommend(users, 1)["score"] for fit in (tr.load(out), expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
