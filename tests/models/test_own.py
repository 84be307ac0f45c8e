"""Models that people write themselves: mistakes are one line, and what is saved is found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import sparse

import talerec as tr
from command import refusal, works, write_log
from talerec.errors import TalerecError
from talerec.models import model_class
from talerec.models.linear.base import Linear

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

    given: ClassVar[Any] = None  # what `learn_weights` returns instead of weights that are right
    asked: ClassVar[Any] = None  # what `query` returns instead

    def learn_weights(self, log, clock):
        return (tr.Weights(follows(log)), None) if self.given is None else self.given

    def query(self, histories):
        return super().query(histories) if self.asked is None else self.asked


WRONG = [
    (lambda: (tr.Weights(np.zeros((N - 5, N), np.float32)), None), f"{N - 5} rows for {N} items"),
    (lambda: (tr.Weights(sparse.csr_array((N - 5, N), dtype=np.float32)), None), "rows for"),
    (lambda: (tr.Weights(np.zeros((N, N - 1), np.float32)), None), "have the shape"),
    (lambda: (tr.Weights(np.zeros((N, N), np.float32), base=np.zeros(3)), None), "base has the shape"),
    (lambda: (tr.Weights(np.full((N, N), np.nan, np.float32)), None), "not finite"),
    (lambda: tr.Weights(np.zeros((N, N), np.float32)), "returns \\(talerec.Weights"),
    (lambda: (np.zeros((N, N), np.float32), None), "returns \\(talerec.Weights"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "said"), WRONG)
def test_weights_that_cannot_be_are_refused_by_fit(made, said, monkeypatch):
    monkeypatch.setattr(Own, "given", made())
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
    monkeypatch.setattr(Own, "asked", query)
    with pytest.raises(TalerecError, match=said):
        model.recommend_histories([[LOG.items.ids[0]]], k=3)


def test_a_saved_model_of_ones_own_is_found_again(tmp_path):
    model = Own(recency=2).fit(LOG)
    again = tr.load(model.save(tmp_path / "own.tale"))
    assert type(again) is Own
    assert again.recency == 2
    users = LOG.users.ids[:5]
    assert again.recommend(users, k=4).equals(model.recommend(users, k=4))
    assert model_class("own-of-the-tests") is Own


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(TalerecError, match="there is a model 'ease' already: give Mine another"):

        class Mine(Linear):
            name: ClassVar[str] = "ease"


def test_a_model_without_a_name_of_its_own_is_not_saved(tmp_path):
    class Nameless(Linear):
        def learn_weights(self, log, clock):
            return tr.Weights(follows(log)), None

    with pytest.raises(TalerecError, match="Nameless needs a name: name"):
        Nameless().fit(LOG).save(tmp_path / "x.tale")
    assert not (tmp_path / "x.tale").exists()


MODULE = '''
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
    from talerec.models.core import registry as own

    monkeypatch.chdir(tmp_path)
    (tmp_path / "other_of_tests.py").write_text(MODULE.format(name="twice-b"))
    log = write_log(tmp_path / "log.csv", users=40, rows=400)
    works("fit", log, "-o", "own.tale", "--model", "other_of_tests:Twice")
    monkeypatch.delitem(own.KNOWN, "twice-b")
    monkeypatch.delitem(__import__("sys").modules, "other_of_tests")
    said = refusal("recommend", "own.tale", "--history", "i1")
    assert "TALEREC_MODELS=module" in said
    monkeypatch.setenv("TALEREC_MODELS", "other_of_tests")
    works("describe", log)
    assert tr.load("own.tale").name == "twice-b"
    lines = works("models").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  twice-b ")] == ["twice-b"]
