"""A fit on a real cluster has the weights of one machine, also when half of it is lost."""

from __future__ import annotations

import json
from time import monotonic, sleep

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import talerec as tr
from cluster import filled, fit, inject, killed, skewed, write
from talerec.errors import TalerecError
from talerec.runtime import listening
from waiting import until

pytestmark = [
    pytest.mark.slow,
    # pyspark leaves the socket of every result that it reads to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
]


def assert_same_weights(model, expected) -> None:
    """Equal to the last bit: sums are added, and targets solved, in the order of one machine."""
    a, b = model.weights, expected.weights
    assert model.item_ids.to_list() == expected.item_ids.to_list()
    np.testing.assert_array_equal(a.indptr, b.indptr)
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_array_equal(a.data, b.data)


def assert_same_lists(lists: pl.DataFrame, expected: pl.DataFrame) -> None:
    order = ["user_id", "rank"]
    lists, expected = lists.sort(order), expected.sort(order)
    assert lists.drop("score").equals(expected.drop("score"))
    np.testing.assert_allclose(lists["score"], expected["score"], rtol=1e-5)


def test_a_skewed_log_has_the_weights_and_lists_of_one_machine(session, tmp_path, monkeypatch):
    from talerec import spark
    from talerec.spark import recommend_job

    monkeypatch.setattr(
        recommend_job, "_SLICE_ROWS", 300
    )  # the longest history is ranked in slices
    rows = skewed()
    table = pl.DataFrame({"item_id": range(900), "size": [x % 7 for x in range(900)]})
    log = tr.Log.from_frame(rows).with_items(table)
    expected = tr.TALE(solver="local", max_history=400, window=90).fit(log)
    source, out = write(rows, tmp_path / "log"), tmp_path / "skewed.tale"
    model = fit(tr.TALE(max_history=400, window=90), source, out, session, items=table)
    assert_same_weights(model, expected)
    assert_same_weights(tr.load(out, verify=True), expected)
    assert model.fitted.training == expected.fitted.training
    assert set(model.fitted.seconds) >= {"read", "rows", "trend", "gram", "solve"}

    pairs = expected.weights.tocoo()
    table = pl.read_parquet(tmp_path / "skewed.weights.parquet" / "*.parquet")
    ids = expected.item_ids.to_numpy()
    assert set(zip(table["source"], table["target"], strict=True)) == set(
        zip(ids[pairs.row].tolist(), ids[pairs.col].tolist(), strict=True)
    )
    args = {"session": session, "hide_seen": True, "task_rows": 4_000}
    spark.recommend(out, source, tmp_path / "next", **args)
    lists = pl.read_parquet(tmp_path / "next" / "*.parquet")
    assert_same_lists(lists, expected.recommend(log.users.ids, 10, hide_seen=True))
    assert_same_filtered_lists(out, source, expected, log, args)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "filtered", "log", "next", "skewed.tale", "skewed.weights.parquet",
    ]  # fmt: skip


def assert_same_filtered_lists(out, source, expected, log, args) -> None:
    """Lists with a filter, boosts and a limit per kind are those of one machine."""
    from talerec import spark

    options = {
        "where": "size between 2 and 5",
        "deny": [3],
        "per": {"size": 3},
        "boost": {"size": {4: 0.3}},
        "as_of": "2011-06-01",
    }
    spark.recommend(out, source, out.parent / "filtered", k=5, **options, **args)
    lists = pl.read_parquet(out.parent / "filtered" / "*.parquet")
    local = expected.recommend(log.users.ids, 5, hide_seen=True, **options)
    assert_same_lists(lists, local)
    assert set(local["item_id"] % 7) == {2, 3, 4, 5}
    for options, message in (
        ({"where": "colour = 1"}, "the item table has no column colour"),
        ({"deny": [10**6]}, "item 1000000 is not known to the model"),
    ):
        with pytest.raises(TalerecError, match=message):
            spark.recommend(out, source, out.parent / "none", **options, **args)


def assert_same_tempo(model, expected) -> None:
    """The weights and all learned query parameters are equal."""
    assert_same_weights(model, expected)
    ours, theirs = (fit.fitted.weights.query_arrays for fit in (model, expected))
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    a, b = (fit.fitted.weights.blocks[2].matrix for fit in (model, expected))
    np.testing.assert_array_equal(a.toarray(), b.toarray())
    assert model.describe_learned() == expected.describe_learned()


def test_tempo_learns_what_it_learns_on_one_machine(session, tmp_path):
    from talerec import spark

    rows = skewed(10_000, "item {}").with_columns(
        pl.col("user_id").cast(pl.String),  # text that is ordered as numbers
        event=pl.Series(np.random.default_rng(5).choice(["view", "buy", "odd"], 10_000)),
    )
    event_weights = {"view": 1.0, "buy": 3.0, "odd": 0.0}
    log = tr.Log.from_frame(rows, event="event", event_weights=event_weights)
    expected = tr.Tempo(solver="local", max_history=400).fit(log)
    assert "number_recency" in expected.fitted.weights.query_arrays  # it has learned
    source, out = write(rows, tmp_path / "log"), tmp_path / "tempo.tale"
    names = spark.Columns(event="event", event_weights=event_weights)
    model = fit(tr.Tempo(max_history=400), source, out, session, names=names, histories=True)
    assert_same_tempo(model, expected)
    users = log.users.ids[::7]
    assert_same_lists(tr.load(out, verify=True).recommend(users, 10), expected.recommend(users, 10))
    assert model.fitted.training == expected.fitted.training
    np.testing.assert_allclose(
        tr.load(out).fitted.recent_counts, expected.fitted.recent_counts, rtol=1e-12
    )
    table = pl.read_parquet(tmp_path / "tempo.weights.parquet" / "*.parquet")
    assert table["weight"].sum() == pytest.approx(float(expected.weights.sum()), rel=1e-4)


def test_queries_decide_on_the_order_of_ties_as_on_one_machine(session, tmp_path):
    draw, rows = np.random.default_rng(1), []
    shelf = draw.permutation(200)
    for user in range(400):  # people go along a shelf, to the left or to the right
        for basket in range(3):
            steps = draw.choice([-1, 1]) * np.cumsum(draw.integers(1, 4, 6))
            items = shelf[(int(draw.integers(200)) + steps) % 200]
            rows += [(user, int(item), 10**9 + 86_400 * basket + user) for item in items]
    frame = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row")
    expected = tr.Tempo(solver="local").fit(tr.Log.from_frame(frame))
    assert not expected.fitted.weights.query_arrays["joint"][0]
    assert tr.Tempo(learn="off").fit(tr.Log.from_frame(frame)).measure(expected.fitted.log).is_joint
    source = write(frame, tmp_path / "log", files=1)
    model = fit(tr.Tempo(), source, tmp_path / "tempo.tale", session, histories=True)
    assert_same_tempo(model, expected)


def test_a_frame_with_names_a_core_and_duplicates(session, tmp_path):
    rows = pl.concat([skewed(4_000, "item {}"), skewed(4_000, "item {}")[:500]])
    log = tr.order_ties(tr.k_core(tr.drop_duplicates(tr.Log.from_frame(rows)), 4), "item")
    expected = tr.SLIT(solver="local", neighbors=8).fit(log)
    frame = session.read.parquet(str(write(rows, tmp_path / "log")))
    options = {"core": 4, "ties": "item", "drop_duplicates": True}
    model = fit(tr.SLIT(neighbors=8), frame, tmp_path / "named.tale", session, **options)
    assert_same_weights(model, expected)
    with pytest.raises(TalerecError, match="rows of a DataFrame have no order"):
        fit(tr.SLIT(), frame, tmp_path / "named.tale", session)
    with pytest.raises(TalerecError, match="nothing is left of the log after a 9999-core"):
        fit(tr.SLIT(), frame, tmp_path / "none.tale", session, core=9_999, ties="item")


def test_times_are_read_as_on_one_machine(session, tmp_path):
    from talerec.spark import log_columns, read

    rows = skewed(500).with_columns(user_id=pl.int_range(500))
    micro = rows["timestamp"].cast(pl.Int64) + pl.Series(np.arange(500))
    for number, time in enumerate(
        (
            micro.cast(pl.Datetime("us")),
            micro.cast(pl.Datetime("us", "UTC")),
            micro.cast(pl.Datetime("us")).cast(pl.Date),
            micro // 10**6,
            micro / 1e6,
            micro // 10**3,
            micro * 1000 + 999,
        )
    ):
        frame = rows.with_columns(time.alias("timestamp"))
        log = tr.Log.from_frame(frame)
        source = write(frame, tmp_path / str(number), 2)
        events, unit = read.read_events(session, source, log_columns.NAMES, "file")
        times = {row["user"]: row["time"] for row in events.collect()}
        assert unit == log.unit
        assert [times[user] for user in log.users.ids] == log.time.tolist()


def test_what_spark_does_not_fit_is_refused_by_name(session, tmp_path):
    source, out = write(skewed(300), tmp_path / "log"), tmp_path / "m.tale"
    for model, message in (
        (tr.EASE(), "Spark does not fit ease; it fits tempo, tale, slit, slist, rules, markov, "),
        (tr.SWalk(), "Spark does not fit swalk"),
        (tr.Association(), "Spark does not fit association"),
        (tr.Tempo(solver="exact"), "solver is exact; on Spark it takes auto or local"),
        (tr.TALE(solver="exact"), "solver is exact; on Spark it takes auto or local"),
        (tr.SLIT(norm="symmetric"), "norm is symmetric; on Spark it takes none or l1"),
    ):
        with pytest.raises(TalerecError, match=message):
            fit(model, source, out, session)
    with pytest.raises(TalerecError, match="`ties` is 'random:1'; on Spark it takes file or item"):
        fit(tr.TALE(), source, out, session, ties="random:1")
    columns = {"user_id": ["a", None, " "], "item_id": [1, 2, 3], "timestamp": [5] * 3}
    empty = write(pl.DataFrame(columns), tmp_path / "empty", 1)
    with pytest.raises(TalerecError, match="user_id is empty in 2 of 3 rows"):
        fit(tr.TALE(), empty, out, session)
    times = pl.Series([1.6e9, *[1.6e12] * 89])
    mixed = write(skewed(90).with_columns(timestamp=times), tmp_path / "mixed", 1)
    with pytest.raises(TalerecError, match=r"times are of mixed units: \(16000000"):
        fit(tr.TALE(), mixed, out, session)
    with pytest.raises(TalerecError, match="there is no column 'user_id'; the columns are"):
        fit(tr.TALE(), write(pl.DataFrame({"u": [1]}), tmp_path / "other", 1), out, session)
    assert not out.exists()
    assert not list(tmp_path.glob("talerec-*"))


def test_the_command_fits_on_a_cluster_and_passes_settings_on(session, machines, tmp_path):
    from talerec.cli.main import app

    rows = skewed(2_000)
    source, out = write(rows, tmp_path / "log"), tmp_path / "shop.tale"
    command = ["fit", str(source), "-o", str(out), "--model", "tale", "--set", "reg=30"]
    spark = ["--engine", "spark", "--master", machines.url]
    conf = ["--spark-conf", "spark.speculation=true"]
    result = CliRunner().invoke(app, [*command, "--core", "3", "--json", *spark, *conf])
    assert result.exit_code == 0, result.output
    manifest = json.loads(result.stdout)
    assert manifest["params"]["reg"] == 30
    assert manifest["solver"] == "local"
    log = tr.k_core(tr.Log.from_frame(rows), 3)
    assert_same_weights(tr.load(out), tr.TALE(reg=30, solver="local").fit(log))


@pytest.mark.parametrize("kind", [tr.TALE, tr.Tempo])
def test_beauty_has_the_weights_and_lists_of_one_machine(session, data, tmp_path, kind):
    from talerec import spark

    log = tr.read_log(data / "amazon-beauty.inter.gz")
    log.to_frame().write_parquet(tmp_path / "beauty.parquet")
    expected = kind(solver="local").fit(log)
    source, out = tmp_path / "beauty.parquet", tmp_path / "beauty.tale"
    model = spark.fit(kind(), source, out, session=session, task_pairs=1_000_000)
    assert_same_tempo(model, expected) if kind is tr.Tempo else assert_same_weights(model, expected)
    spark.recommend(out, source, tmp_path / "next", session=session)
    lists = pl.read_parquet(tmp_path / "next" / "*.parquet")
    assert_same_lists(lists, expected.recommend(log.users.ids, 10))


class Hesitant(tr.TALE):
    """The first task waits until Spark has started it a second time on another machine."""

    second = ""  # a file that the second attempt creates

    def gram_terms(self, log: tr.Log):
        from pathlib import Path

        from pyspark import TaskContext

        if (task := TaskContext.get()) is not None and task.partitionId() == 0:
            second, end = Path(self.second), monotonic() + 300
            if task.attemptNumber():
                second.touch()
            while not second.exists() and monotonic() < end:
                sleep(0.05)
        return super().gram_terms(log)


def count_speculative(machines) -> int:
    """Return how many attempts Spark has started while another one was still running."""
    (log,) = (machines.folder / "events").iterdir()
    events = (json.loads(line) for line in log.read_text().splitlines())
    starts = (event for event in events if event["Event"] == "SparkListenerTaskStart")
    return sum(event["Task Info"]["Speculative"] for event in starts)


def test_a_partition_that_two_attempts_count_is_counted_once(session, machines, tmp_path):
    import sys

    from pyspark import cloudpickle

    rows = skewed(2_000)
    before, Hesitant.second = count_speculative(machines), str(tmp_path / "second")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    model = fit(Hesitant(trend=0), write(rows, tmp_path / "log"), tmp_path / "m.tale", session)
    assert (tmp_path / "second").exists()
    until(lambda: count_speculative(machines) > before)  # Spark writes its event log later
    assert_same_weights(model, tr.TALE(trend=0, solver="local").fit(tr.Log.from_frame(rows)))


def test_a_process_killed_in_every_stage_changes_nothing(session, tmp_path, monkeypatch):
    rows = skewed(5_000)
    expected = tr.Tempo(solver="local", max_history=300).fit(tr.Log.from_frame(rows))
    source = write(rows, tmp_path / "log")
    inject(monkeypatch, killed)
    model = fit(tr.Tempo(max_history=300), source, tmp_path / "m.tale", session)
    assert_same_tempo(model, expected)
    left = ["log", "m.tale", "m.weights.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_disk_that_is_full_once_changes_nothing_and_one_that_stays_full_leaves_nothing(
    session, tmp_path, monkeypatch
):
    rows = skewed(1_000)
    source, out = write(rows, tmp_path / "log"), tmp_path / "m.tale"
    with monkeypatch.context() as patch:
        inject(patch, filled(1))
        model = fit(tr.TALE(window=90), source, out, session)
    assert_same_weights(model, tr.TALE(window=90, solver="local").fit(tr.Log.from_frame(rows)))
    left = ["log", "m.tale", "m.weights.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    inject(monkeypatch, filled(99))
    with pytest.raises(TalerecError, match=r"^\S+ cannot be written: No space left on device$"):
        fit(tr.Tempo(), source, tmp_path / "other.tale", session)
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_bad_weights_and_a_huge_user_are_refused_in_one_line(session, tmp_path):
    from talerec import spark

    rows = skewed(600).with_columns(
        worth=pl.Series([-1.0, float("nan"), *[1.0] * 598]),
        event=pl.Series(["view", None, *["buy"] * 598]),
    )
    source, out = write(rows, tmp_path / "log"), tmp_path / "m.tale"
    not_finite = "worth is not a finite number in 1 of 600 rows; weights are 0 or more"
    for names, message in (
        ({"weight": "worth"}, not_finite),
        ({"weight": "none"}, "there is no column 'none'"),
        ({"event": "event", "event_weights": {"buy": 1.0}}, "event is empty in some rows"),
        ({"event_weights": {"buy": 1.0}}, "`event_weights` needs `event`"),
    ):
        with pytest.raises(TalerecError, match=message):
            fit(tr.Tempo(), source, out, session, names=spark.Columns(**names))
    with pytest.raises(TalerecError, match="slit takes no weights of rows"):
        fit(tr.SLIT(), source, out, session, names=spark.Columns(weight="worth"))
    with pytest.raises(TalerecError, match=r"user 7 has about \d+ rows, and a task holds 9"):
        fit(tr.Tempo(), source, out, session, task_rows=9)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_worker_lost_in_the_middle_of_the_gram_changes_nothing(session, machines, tmp_path):
    rows = skewed(8_000)
    expected = tr.TALE(solver="local", max_history=400).fit(tr.Log.from_frame(rows))
    lost: list[float] = []

    def listener(stage, total):
        done = 0.0

        def tick(more: float) -> None:
            nonlocal done
            done += more
            if stage == "gram" and 0 < done < 1 and not lost:
                lost.append(done)
                machines.lose(0)

        return tick

    source = write(rows, tmp_path / "log")
    with listening(listener):
        model = fit(tr.TALE(max_history=400), source, tmp_path / "m.tale", session)
    assert lost
    assert 0 < lost[0] < 1
    assert machines.workers[0].poll() is not None
    assert_same_weights(model, expected)


def test_a_triangle_of_g_ten_times_what_a_task_may_hold_gives_the_same_weights(session, tmp_path):
    rows, max_bytes = skewed(3_000), 10_000
    expected = tr.TALE(trend=0, solver="local").fit(tr.Log.from_frame(rows))
    G = expected.gram(tr.Log.from_frame(rows)).G
    size = (np.count_nonzero(G if isinstance(G, np.ndarray) else G.toarray()) // 2) * 12
    assert size > 10 * max_bytes
    source, out = write(rows, tmp_path / "log"), tmp_path / "m.tale"
    model = fit(tr.TALE(trend=0), source, out, session, solve_bytes=max_bytes)
    assert_same_weights(model, expected)


def test_a_gram_of_its_own_is_refused_rather_than_left_out():
    """Tasks count the Gram terms of a model: they would not call a `gram` that is not their sum."""
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.fit_model import check_model

    class Doubled(tr.TALE):
        def gram(self, log: tr.Log):
            return 2.0 * super().gram(log)

    assert check_model(tr.TALE())
    with pytest.raises(TalerecError, match="Spark does not fit tale"):
        check_model(Doubled())


@pytest.mark.parametrize(
    ("arrived", "cut", "is_refused"),
    [(10, False, False), (9, False, True), (11, False, True), (9, True, False), (11, True, True)],
)
def test_a_log_that_changes_while_it_is_read_is_refused(arrived, cut, is_refused):
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    from talerec.spark.log_stats import _require_all_rows

    if not is_refused:
        _require_all_rows(arrived, 10, is_cut=cut)
        return
    with pytest.raises(TalerecError, match=f"had 10 rows when they were counted and {arrived}"):
        _require_all_rows(arrived, 10, is_cut=cut)
