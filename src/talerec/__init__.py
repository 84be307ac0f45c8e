"""talerec: from a log of user, item, time to what comes next.

Names are loaded when they are first used, so that `import talerec` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Log": "talerec.data.log",
    "read_log": "talerec.data.readers",
    "read_items": "talerec.data.readers",
    "k_core": "talerec.data.preprocessing",
    "drop_duplicates": "talerec.data.preprocessing",
    "order_ties": "talerec.data.preprocessing",
    "leave_one_out": "talerec.data.splits",
    "time_split": "talerec.data.splits",
    "Split": "talerec.data.splits",
    "synthetic_log": "talerec.data.synthetic",
    "describe": "talerec.data.summary",
    "Gram": "talerec.gram.gram",
    "tale_gram": "talerec.gram.builders",
    "slit_gram": "talerec.gram.builders",
    "slis_gram": "talerec.gram.builders",
    "Model": "talerec.models",
    "TALE": "talerec.models",
    "Tempo": "talerec.models",
    "SLIS": "talerec.models",
    "SLIT": "talerec.models",
    "SLIST": "talerec.models",
    "EASE": "talerec.models",
    "EDLAE": "talerec.models",
    "RDLAE": "talerec.models",
    "SWalk": "talerec.models",
    "SKNN": "talerec.models",
    "STAN": "talerec.models",
    "Markov": "talerec.models",
    "Rules": "talerec.models",
    "Association": "talerec.models",
    "Popular": "talerec.models",
    "Trending": "talerec.models",
    "FPMC": "talerec.models",
    "MODELS": "talerec.models",
    "load": "talerec.models",
    "evaluate": "talerec.evaluation.evaluation",
    "evaluate_log": "talerec.evaluation.evaluation",
    "Evaluation": "talerec.evaluation.result",
    "compare": "talerec.evaluation.comparison",
    "rolling_split": "talerec.data.splits",
    "tune": "talerec.evaluation.tuning",
    "Histories": "talerec.data.histories",
    "Query": "talerec.ranking.weights",
    "Weights": "talerec.ranking.weights",
    "TalerecError": "talerec.errors",
    "InvalidLogError": "talerec.errors",
    "NotFittedError": "talerec.errors",
    "UnknownIdError": "talerec.errors",
}

if TYPE_CHECKING:
    from talerec.data.histories import Histories as Histories
    from talerec.data.log import Log as Log
    from talerec.data.preprocessing import drop_duplicates as drop_duplicates
    from talerec.data.preprocessing import k_core as k_core
    from talerec.data.preprocessing import order_ties as order_ties
    from talerec.data.readers import read_items as read_items
    from talerec.data.readers import read_log as read_log
    from talerec.data.splits import Split as Split
    from talerec.data.splits import leave_one_out as leave_one_out
    from talerec.data.splits import rolling_split as rolling_split
    from talerec.data.splits import time_split as time_split
    from talerec.data.summary import describe as describe
    from talerec.data.synthetic import synthetic_log as synthetic_log
    from talerec.errors import InvalidLogError as InvalidLogError
    from talerec.errors import NotFittedError as NotFittedError
    from talerec.errors import TalerecError as TalerecError
    from talerec.errors import UnknownIdError as UnknownIdError
    from talerec.evaluation.comparison import compare as compare
    from talerec.evaluation.evaluation import evaluate as evaluate
    from talerec.evaluation.evaluation import evaluate_log as evaluate_log
    from talerec.evaluation.result import Evaluation as Evaluation
    from talerec.evaluation.tuning import tune as tune
    from talerec.gram.builders import slis_gram as slis_gram
    from talerec.gram.builders import slit_gram as slit_gram
    from talerec.gram.builders import tale_gram as tale_gram
    from talerec.gram.gram import Gram as Gram
    from talerec.models import MODELS as MODELS
    from talerec.models import load as load
    from talerec.models.base import Model as Model
    from talerec.models.ease import EASE as EASE
    from talerec.models.ease import EDLAE as EDLAE
    from talerec.models.ease import RDLAE as RDLAE
    from talerec.models.fpmc import FPMC as FPMC
    from talerec.models.nearest import SKNN as SKNN
    from talerec.models.nearest import STAN as STAN
    from talerec.models.popular import Popular as Popular
    from talerec.models.popular import Trending as Trending
    from talerec.models.rules import Association as Association
    from talerec.models.rules import Markov as Markov
    from talerec.models.rules import Rules as Rules
    from talerec.models.slist import SLIS as SLIS
    from talerec.models.slist import SLIST as SLIST
    from talerec.models.slist import SLIT as SLIT
    from talerec.models.swalk import SWalk as SWalk
    from talerec.models.tale import TALE as TALE
    from talerec.models.tempo import Tempo as Tempo
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
    """What an old name stands for now; whoever asks for it is told the new one."""
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
