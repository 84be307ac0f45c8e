"""talerec: from a log of user, item, time to what comes next.

    import talerec as tr
    log = tr.read_log("events.parquet")
    model = tr.Tempo().fit(log)
    model.recommend(["ann"], k=10)

Logs
    read_log, read_items      files and frames -> Log and its table of items
    Log, Histories            interactions sorted by user and time; histories to recommend for
    drop_duplicates, k_core, order_ties     cleaning
    leave_one_out, time_split, rolling_split, Split     what is learned from, and what is asked
    synthetic_log, describe   a made-up shop; a log in numbers
Models
    Tempo, TALE, SLIS, SLIT, SLIST, EASE, EDLAE, RDLAE, SWalk     linear models
    SKNN, STAN, Markov, Rules, Association, Popular, Trending, FPMC     others
    SASRec, GSASRec, ESASRec, GRU4Rec, BERT4Rec, DuoRec, FEARec, BSARec, TiSASRec, TCPSRec, TiCoSeRec, LinRec, LRURec,
    HSTU                      neural models (they need torch)
    Blend                     several models as one
    MODELS, load, update      every model by name; a saved model; a model after new rows
    Model, Query, Weights     what a model of your own is made of
    Gram, tale_gram, slit_gram, slis_gram     sums over pairs of rows that linear models are solved from
Judging
    evaluate, evaluate_log, Evaluation     held-back rows ranked among all items
    compare, tune             is B better than A; the best parameters
Errors
    TalerecError, and under it InvalidLogError, NotFittedError, UnknownIdError

Names are loaded when they are first used: `import talerec` itself loads nothing heavy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

#: Module -> the public names that are loaded from it.
_NAMES = {
    "talerec.data.histories": ("Histories",),
    "talerec.data.log": ("Log",),
    "talerec.data.preprocessing": ("drop_duplicates", "k_core", "order_ties"),
    "talerec.data.read.readers": ("read_items", "read_log"),
    "talerec.data.split.splits": ("Split", "leave_one_out", "rolling_split", "time_split"),
    "talerec.data.summary": ("describe",),
    "talerec.data.synthetic": ("synthetic_log",),
    "talerec.errors": ("InvalidLogError", "NotFittedError", "TalerecError", "UnknownIdError"),
    "talerec.evaluation.comparison": ("compare",),
    "talerec.evaluation.evaluator": ("evaluate", "evaluate_log"),
    "talerec.evaluation.result": ("Evaluation",),
    "talerec.evaluation.tuning": ("tune",),
    "talerec.gram.builders": ("slis_gram", "slit_gram", "tale_gram"),
    "talerec.gram.gram": ("Gram",),
    "talerec.models": (
        "Association", "BERT4Rec", "BSARec", "Blend", "DuoRec", "EASE", "EDLAE", "ESASRec", "FEARec", "FPMC", "GRU4Rec", "GSASRec", "HSTU",
        "LRURec", "LinRec", "MODELS", "Markov", "Model", "Popular", "RDLAE", "Rules", "SASRec", "SKNN", "SLIS", "SLIST", "SLIT", "STAN",
        "SWalk", "TALE", "TCPSRec", "Tempo", "TiCoSeRec", "TiSASRec", "Trending", "load",
    ),
    "talerec.models.updates": ("update",),
    "talerec.ranking.weights": ("Query", "Weights"),
}  # fmt: skip

_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from talerec.data.histories import Histories as Histories
    from talerec.data.log import Log as Log
    from talerec.data.preprocessing import drop_duplicates as drop_duplicates
    from talerec.data.preprocessing import k_core as k_core
    from talerec.data.preprocessing import order_ties as order_ties
    from talerec.data.read.readers import read_items as read_items
    from talerec.data.read.readers import read_log as read_log
    from talerec.data.split.splits import Split as Split
    from talerec.data.split.splits import leave_one_out as leave_one_out
    from talerec.data.split.splits import rolling_split as rolling_split
    from talerec.data.split.splits import time_split as time_split
    from talerec.data.summary import describe as describe
    from talerec.data.synthetic import synthetic_log as synthetic_log
    from talerec.errors import InvalidLogError as InvalidLogError
    from talerec.errors import NotFittedError as NotFittedError
    from talerec.errors import TalerecError as TalerecError
    from talerec.errors import UnknownIdError as UnknownIdError
    from talerec.evaluation.comparison import compare as compare
    from talerec.evaluation.evaluator import evaluate as evaluate
    from talerec.evaluation.evaluator import evaluate_log as evaluate_log
    from talerec.evaluation.result import Evaluation as Evaluation
    from talerec.evaluation.tuning import tune as tune
    from talerec.gram.builders import slis_gram as slis_gram
    from talerec.gram.builders import slit_gram as slit_gram
    from talerec.gram.builders import tale_gram as tale_gram
    from talerec.gram.gram import Gram as Gram
    from talerec.models import MODELS as MODELS
    from talerec.models import load as load
    from talerec.models.blend.model import Blend as Blend
    from talerec.models.core.base import Model as Model
    from talerec.models.counting.popular import Popular as Popular
    from talerec.models.counting.popular import Trending as Trending
    from talerec.models.counting.rules import Association as Association
    from talerec.models.counting.rules import Markov as Markov
    from talerec.models.counting.rules import Rules as Rules
    from talerec.models.factors.fpmc import FPMC as FPMC
    from talerec.models.linear.ease import EASE as EASE
    from talerec.models.linear.ease import EDLAE as EDLAE
    from talerec.models.linear.ease import RDLAE as RDLAE
    from talerec.models.linear.slist import SLIS as SLIS
    from talerec.models.linear.slist import SLIST as SLIST
    from talerec.models.linear.slist import SLIT as SLIT
    from talerec.models.linear.swalk import SWalk as SWalk
    from talerec.models.linear.tale import TALE as TALE
    from talerec.models.neighbors.models import SKNN as SKNN
    from talerec.models.neighbors.models import STAN as STAN
    from talerec.models.networks.bert4rec import BERT4Rec as BERT4Rec
    from talerec.models.networks.contrastive import DuoRec as DuoRec
    from talerec.models.networks.contrastive import TCPSRec as TCPSRec
    from talerec.models.networks.contrastive import TiCoSeRec as TiCoSeRec
    from talerec.models.networks.hstu import HSTU as HSTU
    from talerec.models.networks.linrec import LinRec as LinRec
    from talerec.models.networks.recurrent import GRU4Rec as GRU4Rec
    from talerec.models.networks.recurrent import LRURec as LRURec
    from talerec.models.networks.sasrec import ESASRec as ESASRec
    from talerec.models.networks.sasrec import GSASRec as GSASRec
    from talerec.models.networks.sasrec import SASRec as SASRec
    from talerec.models.networks.spectral import BSARec as BSARec
    from talerec.models.networks.spectral import FEARec as FEARec
    from talerec.models.networks.tisasrec import TiSASRec as TiSASRec
    from talerec.models.tempo.model import Tempo as Tempo
    from talerec.models.updates import update as update
    from talerec.ranking.weights import Query as Query
    from talerec.ranking.weights import Weights as Weights

__all__ = [*_HOMES, "__version__"]

#: Names of version 0.1 that still work, with a warning: old name -> new name.
_RENAMED = {
    "split_at": "time_split",
    "rolling": "rolling_split",
    "load_result": "Evaluation.load",
}


def _renamed(name: str) -> Any:
    """What an old name stands for now, with a warning that says the new name."""
    import warnings

    new = _RENAMED[name]
    warnings.warn(
        f"talerec.{name} is now talerec.{new}; the old name goes with version 0.3",
        DeprecationWarning,
        stacklevel=3,
    )
    first, *rest = new.split(".")
    value = getattr(sys.modules[__name__], first)
    for part in rest:
        value = getattr(value, part)
    return value


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        return _renamed(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'talerec' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
