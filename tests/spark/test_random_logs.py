"""Random logs and parameters, on a cluster and on one machine: the same weights, facts and histories, or the same refusal.

TALEREC_RANDOM_LOGS says how many; one by default, since each is a fit.
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
from talerec.models.tempo import holdout as _questions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]

IDS = {
    "numbers": [-3, 0, 7, 10, 2**40, *range(20, 40)],
    "digits": ["0", "7", "007", "+7", "10", str(2**64), str(10**37), "-5", *map(str, range(20, 40))],
    "text": ["a", "B", "ä", "x\ny", "5\n", " 5", "5", "'", '"', "\\", "😀", "%", *map(str, range(20, 40))],
}  # fmt: skip


def ids(rng: random.Random) -> list:
    every = IDS[rng.choice(list(IDS))]
    return rng.sample(every, rng.choice([1, 3, 20]))


def rows_of(rng: random.Random) -> pl.DataFrame:
    """Ties, repeats and duplicates; maybe a user with most rows, an item in every history, or times before 1970."""
    users, items, span = ids(rng), ids(rng), rng.choice([1, 5, 10**3, 10**6])
    first = rng.choice([START // 10**6, -span // 2])
    skew = rng.random()
    drawn = [
        (users[0] if rng.random() < skew else rng.choice(users), rng.choice(items))
        for _ in range(rng.choice([1, 30, 200]))
    ]
    drawn += [(user, items[0]) for user in users] if rng.random() < 0.3 else []
    timed = [(*row, first + rng.randrange(span), rng.choice([0.0, 1.0, 2.5, 1e6])) for row in drawn]
    timed += rng.choices(timed, k=len(timed) // 4)
    frame = pl.DataFrame(timed, ["user_id", "item_id", "timestamp", "worth"], orient="row")
    return frame.with_columns(pl.from_epoch("timestamp").cast(pl.Datetime("us")))


def model_of(rng: random.Random) -> tuple[type, dict]:
    shared = {
        "reg": rng.choice([0.5, 10.0]),
        "neighbors": rng.choice([1, 3, 100]),
        "max_history": rng.choice([1, 2, 3, 2500]),
    }
    more = {
        tr.TALE: {"window": rng.choice([0.01, 180.0]), "trend": rng.choice([0.0, 0.5]), "alpha": rng.choice([0.0, 0.5])},
        tr.Tempo: {"even": rng.choice([0.0, 0.2]), "same_time": rng.choice(["auto", "joint"])},
        tr.SLIT: {"norm": rng.choice(["none", "l1"])},
        tr.SLIST: {"decay_user": rng.choice([0.0, 40.0])},
    }  # fmt: skip
    kind = rng.choice(list(more))
    return kind, {**shared, **more[kind]}


def written(rng: random.Random, frame: pl.DataFrame, folder):
    """In files of several folders, some of which may have no rows."""
    cuts = [0, *sorted(rng.randrange(len(frame) + 1) for _ in range(2)), len(frame)]
    for number, name in enumerate(("0", "a b/ä", "z")):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame[cuts[number] : cuts[number + 1]].write_parquet(path)
    return folder


def answer(work):
    try:
        return work()
    except TalerecError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(int(os.environ.get("TALEREC_RANDOM_LOGS", "1"))))
def test_a_random_log_gives_what_it_gives_on_one_machine(session, tmp_path, monkeypatch, seed):
    from talerec import spark

    monkeypatch.setattr(_questions, "_FEW", 5)  # so that tempo learns from small logs
    rng = random.Random(seed)
    frame, (kind, params) = rows_of(rng), model_of(rng)
    is_weighed = kind(**params).takes_weights and rng.random() < 0.5
    names = {"any_time": True, **({"weight": "worth"} if is_weighed else {})}
    ties, core, unique = rng.choice(["file", "item"]), rng.choice([None, 2]), rng.random() < 0.3

    def here() -> tr.Log | tr.models.base.Model:
        log = tr.Log.from_frame(frame, **names)
        log = tr.drop_duplicates(log) if unique else log
        log = tr.k_core(log, core) if core else log
        return kind(solver="local", **params).fit(tr.order_ties(log, ties))

    def there() -> tr.models.base.Model:
        return spark.fit(
            kind(**params), written(rng, frame, tmp_path / "log"), tmp_path / "m.tale", session=session,
            names=spark.Columns(**names), ties=ties, core=core, drop_duplicates=unique, histories=True,
            task_rows=rng.choice([50, 10**6]), task_pairs=rng.choice([500, 10**6]), solve_bytes=rng.choice([1, 10**9]),
        )  # fmt: skip

    expected, found = answer(here), answer(there)
    if isinstance(expected, str) or isinstance(found, str):
        assert expected == found
        return
    assert found.item_ids.to_list() == expected.item_ids.to_list()
    assert_same_json(found.fitted.training, expected.fitted.training)
    np.testing.assert_allclose(found.weights.toarray(), expected.weights.toarray(), rtol=1e-4, atol=1e-6)  # fmt: skip
    kept, log = tr.load(tmp_path / "m.tale").fitted.log, expected.fitted.log
    assert kept.to_frame().equals(log.to_frame())
    assert (kept.weight is None) == (log.weight is None)
    if log.weight is not None:
        np.testing.assert_allclose(kept.weight, log.weight)
    users = log.users.ids
    ours, theirs = (one.recommend(users, 1)["score"] for one in (tr.load(tmp_path / "m.tale"), expected))  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
