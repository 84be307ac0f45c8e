"""Third-party models: one-line errors for mistakes, and loading by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import sparse

import talerec as tr
from command import refusal, works, write_log
from talerec.errors import TalerecError
from talerec.models import core, model_class
from talerec.models.linear import Linear

LOG = tr.synthetic_log(users=40, items=30, seed=2)
N = len(LOG.items)


def follows(log: tr.Log) -> np.ndarray:
    B = np.zeros((len(log.items),) * 2, np.float32)
    for user in range(len(log.users)):
        rows = log.item[log.ptr[user] : log.ptr[user + 1]]
        np.add.at(B, (rows[:-1], rows[1:]), 1)
    return B


@dataclass(eq=False, kw_only=True)
class Own(Linear):
    """What came next."""

    name: ClassVar[str] = "own-of-the-tests"
    paper: ClassVar[str] = "-"

    stub_weights: ClassVar[Any] = (
        None  # what `learn_weights` returns instead of weights that are right
    )
    stub_query: ClassVar[Any] = None  # what `query` returns instead

    def learn_weights(self, log, clock):
        return (tr.Weights(follows(log)), None) if self.stub_weights is None else self.stub_weights

    def query(self, histories):
        return super().query(histories) if self.stub_query is None else self.stub_query


WRONG = [
    (lambda: (tr.Weights(np.zeros((N - 5, N), np.float32)), None), f"{N - 5} rows for {N} items"),
    (lambda: (tr.Weights(sparse.csr_array((N - 5, N), dtype=np.float32)), None), "rows for"),
    (lambda: (tr.Weights(np.zeros((N, N - 1), np.float32)), None), "have the shape"),
    (lambda: (tr.Weights(np.zeros((N, N), np.float32), base=np.zeros(3)), None), "base has the"),
    (lambda: (tr.Weights(np.full((N, N), np.nan, np.float32)), None), "not finite"),
    (lambda: tr.Weights(np.zeros((N, N), np.float32)), "returns \\(talerec.Weights"),
    (lambda: (np.zeros((N, N), np.float32), None), "returns \\(talerec.Weights"),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "said"), WRONG)
def test_weights_that_cannot_be_are_refused_by_fit(weights, said, monkeypatch):
    monkeypatch.setattr(Own, "stub_weights", weights())
    with pytest.raises(TalerecError, match=said):
        Own().fit(LOG)


ONE = np.ones(1)
QUERIES = [
    (tr.Query(np.array([0, 1]), np.array([10**6]), ONE), "source goes from 1000000"),
    (tr.Query(np.array([0, 1]), np.array([-1]), ONE), "source goes from -1"),
    (tr.Query(np.array([0, 1, 1]), np.array([0]), ONE), "ptr has the shape"),
    (tr.Query(np.array([0, 7]), np.array([0]), ONE), "ptr ends at 7"),
    (tr.Query(np.array([0, 1]), np.array([0]), np.ones(2)), "other weights than sources"),
    (np.zeros((1, N)), "returns a talerec.Query, not ndarray"),
]


@pytest.mark.parametrize(("query", "said"), QUERIES)
def test_queries_that_cannot_be_are_refused(query, said, monkeypatch):
    model = Own().fit(LOG)
    monkeypatch.setattr(Own, "stub_query", query)
    with pytest.raises(TalerecError, match=said):
        model.recommend_histories([[LOG.items.ids[0]]], k=3)


def test_a_saved_model_of_ones_own_is_found_again(tmp_path):
    model = Own(recency=2).fit(LOG)
    loaded = tr.load(model.save(tmp_path / "own.tale"))
    assert type(loaded) is Own
    assert loaded.recency == 2
    users = LOG.users.ids[:5]
    assert loaded.recommend(users, k=4).equals(model.recommend(users, k=4))
    assert model_class("own-of-the-tests") is Own


def test_a_model_of_ones_own_is_tuned_and_served(tmp_path):
    pytest.importorskip("optuna", reason="needs optuna (extra tune)")
    pytest.importorskip("uvicorn", reason="needs uvicorn (extra serve)")
    from service import Local, rows

    best = tr.tune("own-of-the-tests", LOG, trials=2)
    assert set(best.params) == set(Own().params)
    model = Own(**best.params).fit(LOG)
    history = LOG.items.ids[:3].to_list()
    answer = Local(model.save(tmp_path / "own.tale"), tmp_path / "run").post(
        "/v1/recommend", {"history": rows(history), "k": 4}
    )
    expected = model.recommend_histories([history], k=4)
    assert [item["item_id"] for item in answer.json["items"]] == expected["item_id"].to_list()
    assert [item["score"] for item in answer.json["items"]] == expected["score"].to_list()


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(TalerecError, match="there is a model 'ease' already: give Mine another"):

        class Mine(Linear):
            name: ClassVar[str] = "ease"


def test_a_name_of_a_model_that_is_not_imported_yet_is_refused_too():
    code = (
        "from talerec.models.core import Model\n"
        "from talerec.errors import TalerecError\n"
        "try:\n"
        "    type('Mine', (Model,), {'name': 'ease'})\n"
        "except TalerecError as error:\n"
        "    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "there is a model 'ease' already: give Mine another name\n"


def test_the_library_s_models_are_found_by_their_names():
    assert {name: kind.name for name, kind in tr.MODELS.items()} == {n: n for n in tr.MODELS}
    with pytest.raises(TalerecError, match="no model 'tael'; did you mean 'tale'"):
        model_class("tael")
    with pytest.raises(KeyError):
        tr.MODELS["tael"]


def test_a_model_without_a_name_of_its_own_is_not_saved(tmp_path):
    class Nameless(Linear):
        def learn_weights(self, log, clock):
            return tr.Weights(follows(log)), None

    with pytest.raises(TalerecError, match="Nameless needs a name: name"):
        Nameless().fit(LOG).save(tmp_path / "x.tale")
    assert not (tmp_path / "x.tale").exists()


MODULE = '''
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import talerec as tr
from talerec.models.linear.base import Linear

@dataclass(eq=False, kw_only=True)
class Twice(Linear):
    """Items that were had twice."""
    name: ClassVar[str] = "{name}"
    paper: ClassVar[str] = "-"
    def learn_weights(self, log, clock):
        n = len(log.items)
        return tr.Weights(np.eye(n, dtype=np.float32)[::-1].copy()), None
'''


def test_commands_find_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_of_tests.py").write_text(MODULE.format(name="twice-a"))
    log = write_log(tmp_path / "log.csv", users=40, rows=400)
    works("evaluate", log, "--model", "mine_of_tests:Twice")
    works("fit", log, "-o", "own.tale", "--model", "mine_of_tests:Twice")
    works("verify", "own.tale")
    assert "has no model 'Other'" in refusal("evaluate", log, "--model", "mine_of_tests:Other")
    assert "cannot be imported" in refusal("evaluate", log, "--model", "nowhere_at_all:Twice")


def test_commands_load_a_model_of_ones_own_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from talerec.models.core.registry import REGISTRY

    monkeypatch.chdir(tmp_path)
    (tmp_path / "other_of_tests.py").write_text(MODULE.format(name="twice-b"))
    log = write_log(tmp_path / "log.csv", users=40, rows=400)
    works("fit", log, "-o", "own.tale", "--model", "other_of_tests:Twice")
    monkeypatch.delitem(REGISTRY, "twice-b")
    monkeypatch.delitem(__import__("sys").modules, "other_of_tests")
    said = refusal("recommend", "own.tale", "--history", "i1")
    assert "TALEREC_MODELS=module" in said
    monkeypatch.setenv("TALEREC_MODELS", "other_of_tests")
    works("describe", log)
    assert tr.load("own.tale").name == "twice-b"
    lines = works("models").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  twice-b ")] == ["twice-b"]


def test_former_names_of_attributes_work_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="is now") as caught:

        class Former(tr.Model):
            """A class as version 0.2 documented it."""

            good_for = "tests"
            grows = False
            weighs_items = False

            def learn_weights(self, log, clock):
                return tr.Weights(np.eye(len(log.items), dtype=np.float32)), None

            def query(self, histories):
                raise NotImplementedError

            def chosen(self):
                return ["nothing"]

    assert sorted(str(warning.message).split(" is now ")[0] for warning in caught) == [
        "Former: chosen", "Former: good_for", "Former: grows", "Former: weighs_items",
    ]  # fmt: skip
    assert all(warning.filename == __file__ for warning in caught)
    assert (Former.summary, Former.supports_update, Former.sources_are_items) == (
        "tests", False, False,
    )  # fmt: skip
    assert Former().describe_learned() == ["nothing"]
    with pytest.warns(DeprecationWarning, match="good_for is now summary"):
        assert tr.Tempo.good_for == tr.Tempo.summary
    with pytest.warns(DeprecationWarning, match="grows is now supports_update"):
        assert tr.FPMC().grows is False
    with pytest.warns(DeprecationWarning, match="weighs_items is now sources_are_items"):
        assert tr.FPMC.weighs_items is False
    model = tr.Tempo().fit(tr.synthetic_log(users=50, items=20))
    with pytest.warns(DeprecationWarning, match="the old name goes with version 0.4"):
        assert model.chosen() == model.describe_learned()


def test_the_former_module_of_param_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now talerec\.models\.core") as caught:
        from talerec.models.params import param
    assert param is core.param
    assert caught[0].filename == __file__
    with pytest.raises(ImportError, match="HasParams"):
        from talerec.models.params import HasParams  # noqa: F401
