"""Write artifacts of today's format with their answers, for the tests of later versions.

python tests/artifacts/make.py          # writes tests/artifacts/format-N
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

import talerec as tr
from talerec.artifact.integrity import FORMAT
from talerec.models.core import ItemFilter, rank_top
from talerec.models.core.recommender import lists_frame

ASKED = [[1, 2, 3], [14], [5, 5, 7, 0, 3], []]
USERS = [f"u{n}" for n in (0, 1, 10, 11, 12, 13)]
MOMENT = 1_600_900_000 * 10**6


def log(users: int) -> tr.Log:
    """Users who go through fifteen items, often to the next one."""
    rng = np.random.default_rng(4)
    rows = []
    for user in range(users):
        time, item = 1_600_000_000 + int(rng.integers(0, 10**6)), int(rng.integers(0, 15))
        for _ in range(int(rng.integers(3, 12))):
            time += int(rng.choice([0, 60, 86_400]))
            item = (item + 1) % 15 if rng.random() < 0.5 else int(rng.integers(0, 15))
            rows.append((f"u{user}", item, time))
    schema = ["user_id", "item_id", "timestamp"]
    return tr.Log.from_frame(pl.DataFrame(rows, schema=schema, orient="row"))


def lists_of_all_rows(model: tr.Model, hide: bool) -> pl.DataFrame:
    """Lists of users at MOMENT from all their rows, those after MOMENT too."""
    log = model.fitted.log
    positions = log.users.positions(USERS, "user", "error")
    histories = tr.Histories.of_users(log, positions).as_of(MOMENT)
    lists = rank_top(model, histories, 4, ItemFilter(hide_seen=hide))
    return lists_frame(lists, model.item_ids, pl.Series("user_id", USERS))


def answers(model: tr.Model) -> dict[str, list[list[object]]]:
    """What the tests ask."""
    answers = {}
    for hide in (False, True):
        answers[f"histories-{hide}"] = model.recommend_histories(ASKED, k=5, hide_seen=hide).rows()
        answers[f"users-{hide}"] = lists_of_all_rows(model, hide).rows()
    answers["explain"] = model.explain([1, 2, 3], 7).rows()
    return {name: [list(row) for row in rows] for name, rows in answers.items()}


def main() -> None:
    out = Path(__file__).parent / f"format-{FORMAT}"
    small, large = log(25), log(900)
    fitted = {
        "tempo-sparse": tr.Tempo(solver="local", span=0.2).fit(small),
        "tempo-dense": tr.Tempo(solver="exact", span=0.2).fit(small),
        "tempo-learned": tr.Tempo().fit(large),
        "tempo-updatable": tr.Tempo(solver="local").fit(small),
        "tale": tr.TALE(solver="exact").fit(small),
        "blend": tr.Blend(parts="tempo,rules", weights_of_parts="1,0.3").fit(small),
        "stan": tr.STAN().fit(small),
        "fpmc": tr.FPMC(factors=4, epochs=2).fit(small),
        "popular": tr.Popular().fit(small),
    }
    bundle = {}
    for name, model in fitted.items():
        model.save(out / f"{name}.tale", updatable=name.endswith("updatable"))
        bundle[name] = answers(model)
    (out / "answers.json").write_text(json.dumps(bundle, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
