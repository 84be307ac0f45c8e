"""The trainer learns, stops early, resumes bit for bit, and reports errors in one line."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from kinds import NEURAL, SMALL, maker, need_torch
from logs import tiny_log
from talerec.errors import TalerecError
from talerec.models import MODELS

need = pytest.fixture(autouse=True, scope="module")(need_torch)


def rows_of(lists: list[list[int]], items: int):
    from talerec.neural import Rows

    ptr = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    item = np.concatenate(lists).astype(np.int32)
    return Rows(ptr, item, 10**15 + np.arange(len(item), dtype=np.int64) * 3600 * 10**6, items)


def settings_of(name: str = "sasrec", **changes):
    from talerec.neural import NetSettings

    return NetSettings.of(name, MODELS[name](**{**SMALL, **changes}).params)


def circle(users: int = 40, items: int = 8, rows: int = 7):
    return [[(u + s) % items for s in range(rows)] for u in range(users)]


def chain(users: int, items: int, rows: int, seed: int) -> tuple[list[list[int]], np.ndarray]:
    """Walks along a Markov chain, and its transitions."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(items, 0.1), items)
    walks = []
    for _ in range(users):
        walk = [int(rng.integers(items))]
        for _ in range(rows - 1):
            walk.append(int(rng.choice(items, p=P[walk[-1]])))
        walks.append(walk)
    return walks, P


LEARNS = {"dim": 16, "layers": 1, "dropout": 0.0, "rate": 0.02, "judges": 0, "epochs": 40}


@pytest.mark.parametrize("name", NEURAL)
def test_every_kind_learns_a_circle(name):
    log = tiny_log(
        [(u, i, 1e9 + 3600 * s) for u, one in enumerate(circle(16)) for s, i in enumerate(one)]
    )
    own = {
        "bert4rec": {"epochs": 200, "max_history": 7, "layers": 2, "rate": 0.005, "dim": 32},
        "gsasrec": {"negatives": 4},
    }
    model = maker(name, **{**LEARNS, **own.get(name, {})})().fit(log)
    for item in range(8):
        rows = [(item - back) % 8 for back in (5, 4, 3, 2, 1, 0)]
        found = model.recommend_histories(
            [[(i, 10**15 + 3600 * 10**6 * n) for n, i in enumerate(rows)]], k=1
        )
        assert found["item_id"].to_list() == [(item + 1) % 8]


def test_a_planted_chain_is_found_within_five_per_cent():
    """NDCG@10 of the trained network on new walks against that of the chain's own probabilities."""
    from talerec.neural.inference import HistoryRows, encode_histories, load_encoder, output_layer
    from talerec.neural.training import train

    walks, P = chain(users=300, items=20, rows=12, seed=1)
    settings = settings_of(**{**LEARNS, "epochs": 12, "batch": 256, "max_history": 12})
    made = train(rows_of(walks, 20), settings)
    rng = np.random.default_rng(9)
    history = rng.integers(0, 20, (400, 3)).astype(np.int32)
    target = np.array([rng.choice(20, p=P[last]) for last in history[:, -1]])
    bounds = np.arange(401) * 3
    runs = HistoryRows(bounds[:-1], bounds[1:], history.ravel(), np.arange(1200), bounds[1:])
    codes, _ = encode_histories(
        load_encoder(settings, made.arrays), runs, lambda items: made.arrays["items"][items]
    )
    scores = codes @ output_layer(settings, made.arrays).table

    def mean_ndcg(table: np.ndarray) -> float:
        place = 1 + (table > table[np.arange(400), target][:, None]).sum(1)
        return float(np.where(place <= 10, 1 / np.log2(1 + place), 0).mean())

    assert mean_ndcg(scores) >= 0.95 * mean_ndcg(P[history[:, -1]])


def test_shuffled_rows_teach_no_order():
    """On rows in random order, the network ranks held-out rows no better than popularity."""
    from talerec.neural.training import train

    rng = np.random.default_rng(0)
    odds = rng.dirichlet(np.full(30, 0.5))
    walks = [rng.choice(30, 8, p=odds).tolist() for _ in range(200)]
    rows = rows_of(walks, 30)
    made = train(rows, settings_of(dim=16, epochs=6, batch=256, rate=0.01))
    counts = np.bincount(rows.item, minlength=30)
    best = []
    for walk in walks:
        seen = [i for i in set(walk[:-1]) if i != walk[-1]]
        rest = counts.astype(float)
        rest[seen] = -1
        place = 1 + (rest > rest[walk[-1]]).sum()
        best.append(1 / math.log2(1 + place) if place <= 10 else 0.0)
    assert made.facts["ndcg"] <= np.mean(best) + 0.05


def test_the_best_epoch_is_found_and_trained_again_on_all_rows():
    from talerec.neural.training import train

    rows = rows_of(circle(), 8)
    settings = settings_of(epochs=6, patience=2, rate=0.02)
    made = train(rows, settings)
    values = made.facts["values"]
    assert made.facts["epochs"] == 1 + int(np.argmax(values))
    assert len(values) <= made.facts["epochs"] + 2
    assert len(made.facts["losses"]) == made.facts["epochs"]
    again = train(rows, replace(settings, epochs=made.facts["epochs"], judges=0))
    for name, array in made.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


@pytest.mark.parametrize(
    ("targets", "batch"),
    [(10, 256), (4095, 256), (4096, 256), (8000, 500), (65_536, 4096), (10**6, 4096)],
)
def test_a_batch_of_zero_is_fewer_targets_on_small_logs(targets: int, batch: int) -> None:
    """Up to 4,096 targets a step, but 16 steps an epoch unless that is below 256 targets."""
    rows = rows_of([list(range(6)), [0] * (targets - 4)], 6)
    assert len(rows.item) == targets + 2  # a user's first row is no target
    assert settings_of(batch=0).with_batch(rows).batch == batch
    assert settings_of(batch=64).with_batch(rows).batch == 64


def test_a_batch_of_zero_trains_as_the_number_it_stands_for() -> None:
    """The training reports the parameters that it was asked for."""
    from talerec.neural.training import train

    rows = rows_of(circle(users=100), 8)
    automatic, explicit = (train(rows, settings_of(batch=size)) for size in (0, 256))
    assert (automatic.facts["params"]["batch"], explicit.facts["params"]["batch"]) == (0, 256)
    for name, array in automatic.arrays.items():
        np.testing.assert_array_equal(array, explicit.arrays[name])


def test_every_epoch_has_an_order_and_draws_of_its_own(monkeypatch):
    import torch

    from talerec.neural import trainer
    from talerec.neural.training import train

    orders, draws, real = [], [], trainer.shuffle_batches

    def batches(*asked):
        found = real(*asked)
        orders.append([sample.tolist() for sample, _ in found])
        draws.append(torch.rand(1).item())
        return found

    monkeypatch.setattr(trainer, "shuffle_batches", batches)
    settings = settings_of(epochs=3, judges=0)
    train(rows_of(circle(), 8), settings)
    assert len({str(order) for order in orders}) == len(set(draws)) == 3
    train(rows_of(circle(), 8), settings)
    assert orders[:3] == orders[3:]
    assert draws[:3] == draws[3:]


def test_rows_held_back_for_good_teach_nothing():
    from talerec.neural.training import train

    one, two = circle(), circle()
    for walk in two:
        walk[-1] = 3
    users = np.arange(40)
    settings = settings_of(epochs=1)
    made = [train(rows_of(walks, 8), settings, held=users) for walks in (one, two)]
    assert made[0].facts["ndcg"] != made[1].facts["ndcg"]
    assert made[0].facts["rows"] == made[1].facts["rows"] != rows_of(one, 8).fingerprint()
    for name, array in made[0].arrays.items():
        np.testing.assert_array_equal(array, made[1].arrays[name])


def test_a_judgement_is_what_a_loop_finds():
    import torch

    from talerec.neural.registry import build_net
    from talerec.neural.samples import Feed, widths
    from talerec.neural.validation import draw_users, hold_out, mean_ndcg

    rng = np.random.default_rng(2)
    walks = [rng.integers(0, 15, n).tolist() for n in rng.integers(1, 12, 30)]
    rows, settings = rows_of(walks, 15), settings_of()
    torch.manual_seed(1)
    net = build_net(15, settings)
    net.reset()
    held_out, _ = hold_out(rows, draw_users(rows, 100, 0))
    found = mean_ndcg(net, Feed(rows, held_out.samples(6), torch.device("cpu")), widths(6))
    gains = []
    net.eval()
    for walk in walks:
        if len(walk) < 3:
            continue
        one = rows_of([walk], 15)
        batch = Feed(one, hold_out(one, np.array([0]))[0].samples(6), torch.device("cpu")).batch(
            np.array([0]), 6
        )
        with torch.no_grad():
            scores = (net.encode_last(batch) @ net.items.mT)[0].numpy()
        ahead = [j for j in range(15) if scores[j] > scores[walk[-1]] and j not in walk[-7:-1]]
        gains.append(1 / math.log2(2 + len(ahead)) if len(ahead) < 10 else 0.0)
    assert found == pytest.approx(np.mean(gains))


# -- resuming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [1, 3])
@pytest.mark.parametrize("held", [False, True])
def test_a_training_that_was_stopped_and_resumed_is_one_that_was_not(tmp_path, stops, held):
    from talerec.neural.training import train

    rows, settings = rows_of(circle(), 8), settings_of(epochs=5, patience=2, rate=0.02)
    users = np.arange(40) if held else None
    whole = train(rows, settings, held=users)
    file, made, calls = tmp_path / "one.npz", None, 0
    while made is None:
        made = train(
            rows, settings, held=users, checkpoint=file, seconds=0.0 if calls < 20 else 1e9
        )
        calls += 1
        assert file.exists()
    assert calls > 3
    assert made.facts["epochs"] == whole.facts["epochs"]
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(made.arrays[name], array)


KILLED = """
import sys, os, signal
import numpy as np
from talerec.neural import training, trainer, checkpoints
sys.path.insert(0, sys.argv[2])
sys.path.insert(0, sys.argv[3])
from test_trainer import rows_of, settings_of, circle
wrote = checkpoints.write
left = [3]
def write(path, facts, arrays):
    wrote(path, facts, arrays)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.write = write
from pathlib import Path
settings = settings_of(epochs=5, rate=0.02)
training.train(rows_of(circle(), 8), settings, checkpoint=Path(sys.argv[1]), every=0.0)
"""


def test_a_training_killed_after_epoch_three_goes_on_from_there(tmp_path):
    from talerec.neural import checkpoints
    from talerec.neural.training import train

    file, here = tmp_path / "one.npz", Path(__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", KILLED, file, here, here.parent],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == -9
    assert checkpoints.read(file)[0]["course"]["epoch"] == 3
    rows, settings = rows_of(circle(), 8), settings_of(epochs=5, rate=0.02)
    whole, resumed = train(rows, settings), train(rows, settings, checkpoint=file)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array)


def test_a_checkpoint_of_other_settings_or_rows_is_not_taken(tmp_path):
    from talerec.neural.training import train

    rows, settings, file = rows_of(circle(), 8), settings_of(epochs=3), tmp_path / "one.npz"
    assert train(rows, replace(settings, seed=5), checkpoint=file, seconds=0.0) is None
    one = train(rows, settings, checkpoint=file)
    two = train(rows, settings)
    other = rows_of(circle(users=39), 8)
    three, four = train(other, settings, checkpoint=file), train(other, settings)
    for name in one.arrays:
        np.testing.assert_array_equal(one.arrays[name], two.arrays[name])
        np.testing.assert_array_equal(three.arrays[name], four.arrays[name])


def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path):
    from talerec.neural.training import train

    file = tmp_path / "one.npz"
    file.write_bytes(b"PK\x03\x04 half")
    with pytest.raises(TalerecError, match=r"one.npz is not a readable training"):
        train(rows_of(circle(), 8), settings_of(), checkpoint=file)


def test_fitting_keeps_checkpoints_where_the_environment_says_and_leaves_none(
    tmp_path, monkeypatch
):
    log = tiny_log([(u, i, 1e9 + s) for u, one in enumerate(circle()) for s, i in enumerate(one)])
    plain = maker("sasrec")().fit(log)
    monkeypatch.setenv("TALEREC_CHECKPOINTS", str(tmp_path / "kept"))
    kept = maker("sasrec")().fit(log)
    assert not list((tmp_path / "kept").glob("*")) or not (tmp_path / "kept").exists()
    assert plain.recommend([1], k=3).equals(kept.recommend([1], k=3))


# -- what is refused -------------------------------------------------------------------------------


def test_a_training_that_diverges_says_so(monkeypatch):
    from talerec.neural.nets.sasrec import SASRecNet
    from talerec.neural.training import train

    losses = iter([1.0, 1.0, math.nan])
    monkeypatch.setattr(SASRecNet, "loss", lambda self, *_: self.items.sum() * next(losses))
    with pytest.raises(
        TalerecError, match=r"training diverged in epoch 3: lower rate \(now 0.02\)"
    ):
        train(rows_of(circle(users=4), 8), settings_of(rate=0.02, epochs=9))


def test_a_training_that_does_not_fit_is_refused_before_it_begins(monkeypatch):
    from talerec.neural import devices, training

    monkeypatch.setattr(devices, "available_bytes", lambda: 10**6)
    with pytest.raises(
        TalerecError, match=r"training needs about .* but 1 MB is free; lower batch"
    ):
        training.train(rows_of(circle(), 8), settings_of(dim=128, heads=2, batch=4096))


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    log = tiny_log([(1, 1, 1e9), (1, 2, 2e9)])
    with pytest.raises(TalerecError, match="device is 'cuda', but torch finds no GPU"):
        tr.SASRec(device="cuda").fit(log)


def test_heads_have_to_divide_dim():
    with pytest.raises(TalerecError, match="dim is 64 and heads is 3; heads must divide dim"):
        tr.SASRec(heads=3)
    model = tr.SASRec()
    with pytest.raises(TalerecError, match="heads must divide dim"):
        model.set_params(dim=7)
    assert model.dim == 64


def test_torch_is_left_as_it_was_found():
    import torch

    torch.manual_seed(7)
    before = torch.get_rng_state()
    log = tiny_log([(u, i, 1e9 + s) for u, one in enumerate(circle()) for s, i in enumerate(one)])
    maker("sasrec")().fit(log)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"


ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("polars", "numba", "scipy", "pyarrow", "typer", "rich"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import json
import numpy as np
from talerec.neural.settings import Rows, NetSettings
from talerec.neural.training import train
from pathlib import Path
told = json.load(open(sys.argv[1]))
kept = np.load(sys.argv[2])
rows = Rows(kept["ptr"], kept["item"], kept["time"], int(kept["items"]))
made = train(rows, NetSettings.of("sasrec", told))
made.save(sys.argv[3])
"""


def test_a_training_runs_with_numpy_and_torch_alone_and_becomes_the_model_here(tmp_path):
    import json

    log = tiny_log([(u, i, 1e9 + s) for u, one in enumerate(circle()) for s, i in enumerate(one)])
    model = maker("sasrec")()
    files = [tmp_path / name for name in ("told.json", "rows.npz", "made.npz")]
    files[0].write_text(json.dumps(model.params))
    np.savez(files[1], ptr=log.ptr, item=log.item, time=log.time, items=len(log.items))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True, env=environment)
    found = tr.SASRec.from_training(log, files[2])
    assert found.params == model.params
    assert found.fitted.seconds["solve"] > 0
    here = model.fit(log)
    assert found.recommend([1, 2], k=3).equals(here.recommend([1, 2], k=3))
    with pytest.raises(TalerecError, match="a training of other rows than the log's"):
        tr.SASRec.from_training(tiny_log([(1, 1, 1e9), (1, 2, 2e9)]), files[2])
    with pytest.raises(TalerecError, match="the training has dim 8, not 16"):
        tr.SASRec.from_training(log, files[2], dim=16)
    other = tmp_path / "half.npz"
    np.savez(other, about=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(TalerecError, match="not those of a training that has ended"):
        tr.SASRec.from_training(log, other)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import talerec as tr
log = tr.synthetic_log(200, seed=1)
for do in (lambda: tr.SASRec().fit(log), lambda: tr.load(sys.argv[1]).recommend([0], k=3)):
    try:
        do()
    except tr.TalerecError as error:
        print(error)
"""


def test_without_torch_fitting_and_asking_say_how_to_get_it(tmp_path):
    log = tiny_log([(u, i, 1e9 + s) for u, one in enumerate(circle()) for s, i in enumerate(one)])
    folder = maker("sasrec")().fit(log).save(tmp_path / "m.tale")
    out = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, folder], capture_output=True, text=True
    )
    line = "a neural model needs torch, which is not installed: pip install 'talerec[torch]'"
    assert out.stdout.splitlines() == [line, line], out.stderr


def test_progress_says_how_it_goes_and_never_more_than_is_certain():
    from talerec.neural.training import train
    from talerec.runtime.progress import listening

    told, done = [], []

    def listener(name, total):
        told.append(total)
        return lambda amount, words="": done.append((amount, words))

    with listening(listener):
        made = train(rows_of(circle(), 8), settings_of(epochs=6, patience=2, rate=0.02))
    run = len(made.facts["values"]) + made.facts["epochs"]
    assert sum(told) == sum(amount for amount, _ in done) == run
    assert any("epoch 1, loss" in words and "NDCG@10" in words for _, words in done)


def test_histories_of_unknown_items_alone_get_nothing():
    log = tiny_log([(u, i, 1e9 + s) for u, one in enumerate(circle()) for s, i in enumerate(one)])
    model = maker("sasrec")().fit(log)
    assert model.recommend_histories([[99, 98]], k=3, unknown="skip").is_empty()
    assert model.recommend_histories([[]], k=3).is_empty()
    mixed = model.recommend_histories([[99, 3, 98, 4]], k=3, unknown="skip")
    assert mixed.equals(model.recommend_histories([[3, 4]], k=3))
