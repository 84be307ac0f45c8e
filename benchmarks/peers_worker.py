"""One model of one library on one log: run by `peers.py` in the environment of that library.

    python benchmarks/peers_worker.py fit LIBRARY:MODEL FOLDER
    python benchmarks/peers_worker.py cold LIBRARY:MODEL FOLDER

FOLDER holds rows.npz: user, item (positions from 0) and time of every training row, by user, and
the request time of each user. `fit` writes lists.npy (ten items per user without those of the
user's rows, -1 for none), costs.json, and the saved model. `cold` loads the model and answers one
user: the caller measures the process.

Every contender gives its own fit, lists of all users, one answer, saving and loading, with defaults
except where a default would be unfair: noted beside it.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

K = 10
SINGLE = 300  # users who are answered one at a time
DAY = 86_400_000_000


class Contender:
    """A model of a library, with its training rows. Answers are item positions, best first."""

    def __init__(self, model: str, folder: Path) -> None:
        self.model_name, self.folder = model, folder
        rows = np.load(folder / "rows.npz")
        self.user, self.item, self.time = rows["user"], rows["item"], rows["time"]
        self.request_time = rows["request_time"]
        self.n_users, self.n_items = int(self.user.max()) + 1, int(rows["n_items"])

    def matrix(self) -> Any:
        """Return the rows as a sparse matrix of ones, user x item."""
        from scipy import sparse

        shape = self.n_users, self.n_items
        ones = np.ones(len(self.user), np.float32)
        counts = sparse.csr_matrix((ones, (self.user, self.item)), shape=shape)
        counts.data[:] = 1
        return counts

    def lists_in_time(self) -> np.ndarray:
        """Return the lists of all users, of whom each asks at the time of the held-out row."""
        return self.lists()

    def top_of(self, scores: np.ndarray, seen: Any) -> np.ndarray:
        """Return the best items of dense scores (user x item) without seen ones, in place."""
        for u in range(len(scores)):
            scores[u, seen.indices[seen.indptr[u] : seen.indptr[u + 1]]] = -np.inf
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)


class Talerec(Contender):
    """Models of this library; `model_name` is the name of one."""

    def fit(self) -> None:
        import polars as pl

        import talerec as tr

        frame = {"user_id": self.user, "item_id": self.item, "timestamp": self.time}
        log = tr.Log.from_frame(pl.DataFrame(frame), time_unit="us")
        self.model = tr.MODELS[self.model_name]().fit(log)

    def lists(self) -> np.ndarray:
        frame = self.model.recommend(np.arange(self.n_users), k=K, hide_seen=True)
        out = np.full((self.n_users, K), -1)
        out[frame["user_id"].to_numpy(), frame["rank"].to_numpy() - 1] = frame["item_id"].to_numpy()
        return out

    def lists_in_time(self) -> np.ndarray:
        from talerec.data import Histories
        from talerec.models.core import ItemFilter, rank_top

        ids = self.model.item_ids.to_numpy()
        item = self.model.fitted.items.positions(self.item.tolist(), "item", "error")
        ptr = np.searchsorted(self.user, np.arange(self.n_users + 1))
        histories = Histories(ptr[:-1], ptr[1:], item, self.time, self.request_time)
        lists = rank_top(self.model, histories, K, ItemFilter(hide_seen=True))
        return np.where(lists.items >= 0, ids[lists.items], -1)

    def answer(self, user: int) -> Any:
        rows = slice(*np.searchsorted(self.user, [user, user + 1]))
        history = self.item[rows].tolist()
        return self.model.top_items(history, K, hide_seen=True)

    def save(self, path: Path) -> None:
        self.model.save(path)

    def load(self, path: Path) -> None:
        import talerec as tr

        self.model = tr.load(path)


class Implicit(Contender):
    """implicit: als, bpr, cosine, bm25."""

    def fit(self) -> None:
        self.seen = self.matrix()
        self.model = self.build()
        self.model.fit(self.seen, show_progress=False)

    def build(self) -> Any:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking
        from implicit.nearest_neighbours import BM25Recommender, CosineRecommender

        kinds = {
            "als": lambda: AlternatingLeastSquares(factors=128, random_state=0),
            "bpr": lambda: BayesianPersonalizedRanking(factors=128, random_state=0),
            "cosine": lambda: CosineRecommender(K=100),  # 20 would be behind
            "bm25": lambda: BM25Recommender(K=100),
        }
        return kinds[self.model_name]()

    def lists(self) -> np.ndarray:
        users = np.arange(self.n_users)
        return self.model.recommend(users, self.seen, N=K, filter_already_liked_items=True)[0]

    def answer(self, user: int) -> Any:
        return self.model.recommend(user, self.seen[user], N=K, filter_already_liked_items=True)

    def save(self, path: Path) -> None:
        self.model.save(str(path))

    def load(self, path: Path) -> None:
        self.model = type(self.build()).load(f"{path}.npz")
        self.seen = self.matrix()


class Irspack(Contender):
    """irspack: models by the beginning of their class's name."""

    def fit(self) -> None:
        import irspack

        self.seen = self.matrix()
        self.model = getattr(irspack, f"{self.model_name}Recommender")(self.seen).learn()

    def lists(self) -> np.ndarray:
        out = np.empty((self.n_users, K), int)
        for a in range(0, self.n_users, 1024):
            some = slice(a, a + 1024)
            out[some] = self.top_of(
                self.model.get_score_cold_user(self.seen[some]), self.seen[some]
            )
        return out

    def answer(self, user: int) -> Any:
        seen = self.seen[[user]]
        return self.top_of(self.model.get_score_cold_user(seen), seen)

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self.model))

    def load(self, path: Path) -> None:
        self.model = pickle.loads(path.read_bytes())
        self.seen = self.matrix()


class Rectools(Contender):
    """RecTools: models by the beginning of their class's name."""

    def build_dataset(self) -> None:
        import pandas as pd
        from rectools.dataset import Dataset

        when = pd.to_datetime(self.time, unit="us")
        frame = {"user_id": self.user, "item_id": self.item, "weight": 1.0, "datetime": when}
        self.dataset = Dataset.construct(pd.DataFrame(frame))

    def fit(self) -> None:
        import rectools.models as models

        self.build_dataset()
        self.model = getattr(models, f"{self.model_name}Model")()
        self.model.fit(self.dataset)

    def recommend(self, users: Any) -> Any:
        return self.model.recommend(users, self.dataset, k=K, filter_viewed=True)

    def lists(self) -> np.ndarray:
        frame = self.recommend(np.arange(self.n_users))
        out = np.full((self.n_users, K), -1)
        out[frame["user_id"].to_numpy(), frame["rank"].to_numpy() - 1] = frame["item_id"].to_numpy()
        return out

    def answer(self, user: int) -> Any:
        return self.recommend([user])

    def save(self, path: Path) -> None:
        self.model.save(str(path))

    def load(self, path: Path) -> None:
        import rectools.models as models

        self.model = getattr(models, f"{self.model_name}Model").load(str(path))
        self.build_dataset()


class Lenskit(Contender):
    """LensKit: ItemKNN, ALS (implicit feedback) and EASE, in its top-n pipeline."""

    def fit(self) -> None:
        import pandas as pd
        from lenskit.als import ImplicitMFScorer
        from lenskit.data import from_interactions_df
        from lenskit.knn import EASEScorer, ItemKNNScorer
        from lenskit.pipeline import topn_pipeline

        kinds = {
            "ItemKNN": lambda: ItemKNNScorer(feedback="implicit"),
            "ALS": lambda: ImplicitMFScorer(),
            "EASE": lambda: EASEScorer(),
        }
        frame = pd.DataFrame({"user_id": self.user, "item_id": self.item})
        self.model = topn_pipeline(kinds[self.model_name](), n=K)
        self.model.train(from_interactions_df(frame.drop_duplicates()))

    def lists(self) -> np.ndarray:
        from lenskit import batch

        out = np.full((self.n_users, K), -1)
        for key, items in batch.recommend(self.model, np.arange(self.n_users), n=K, n_jobs=1):
            ids = items.ids()
            out[key.user_id, : len(ids)] = ids
        return out

    def answer(self, user: int) -> Any:
        from lenskit import recommend

        return recommend(self.model, user, n=K)

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self.model))

    def load(self, path: Path) -> None:
        self.model = pickle.loads(path.read_bytes())


LIBRARIES = {
    "talerec": Talerec, "implicit": Implicit, "irspack": Irspack, "rectools": Rectools,
    "lenskit": Lenskit,
}  # fmt: skip


def peak_mb() -> float:
    """Return the largest resident memory of this process so far, in MB.

    From /proc: `getrusage` counts the memory of the process that started this one, too.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def size_mb(folder: Path, name: str) -> float:
    """Return the size of what was saved under a name in a folder, in MB."""
    paths = [p for top in folder.glob(f"{name}*") for p in [top, *top.rglob("*")] if p.is_file()]
    return sum(p.stat().st_size for p in paths) / 1e6


def measure(contender: Any, folder: Path) -> dict[str, float]:
    """Fit, save and answer; return processor seconds, memory in MB and size in MB.

    `fit` and `save` are seconds by the clock. Where more than one thread runs, processor seconds
    are the sum over threads.
    """
    before, wall, processor = peak_mb(), time.perf_counter(), time.process_time()
    contender.fit()
    costs = {"fit": time.perf_counter() - wall, "fit_cpu": time.process_time() - processor}
    costs["memory_mb"] = peak_mb() - before
    wall = time.perf_counter()
    contender.save(folder / "model")
    costs["save"] = time.perf_counter() - wall
    costs["size_mb"] = size_mb(folder, "model")
    users = np.random.default_rng(0).integers(0, contender.n_users, SINGLE).tolist()
    for user in users[:20]:  # warm
        contender.answer(user)
    times = []
    for user in users:
        processor = time.process_time()
        contender.answer(user)
        times.append(time.process_time() - processor)
    costs["answer_ms"] = 1000 * float(np.median(times))
    contender.lists()  # warm
    processor = time.process_time()
    contender.lists()
    costs["lists_per_s"] = contender.n_users / (time.process_time() - processor)
    np.save(folder / "lists.npy", contender.lists_in_time())
    return costs


def main() -> None:
    step, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    library, _, model = name.partition(":")
    contender = LIBRARIES[library](model, folder)
    if step == "cold":
        contender.load(folder / "model")
        contender.answer(0)
        return
    (folder / "costs.json").write_text(json.dumps(measure(contender, folder)))


if __name__ == "__main__":
    main()
