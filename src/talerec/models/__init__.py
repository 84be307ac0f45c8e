"""Every model by name. The command line, the tuner and the docs read this list.

Examples
--------
>>> from talerec.models import DEFAULT, MODELS
>>> DEFAULT
'tempo'
>>> MODELS["tale"](reg=50).params["reg"]
50.0
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.models.blend.model import Blend
from talerec.models.core import params
from talerec.models.core import registry as own
from talerec.models.core.base import Model, restore
from talerec.models.counting.popular import Popular, Trending
from talerec.models.counting.rules import Association, Markov, Rules
from talerec.models.factors.fpmc import FPMC
from talerec.models.linear.ease import EASE, EDLAE, RDLAE
from talerec.models.linear.slist import SLIS, SLIST, SLIT
from talerec.models.linear.swalk import SWalk
from talerec.models.linear.tale import TALE
from talerec.models.neighbors.models import SKNN, STAN
from talerec.models.networks.bert4rec import BERT4Rec
from talerec.models.networks.contrastive import DuoRec, TCPSRec, TiCoSeRec
from talerec.models.networks.hstu import HSTU
from talerec.models.networks.linrec import LinRec
from talerec.models.networks.recurrent import GRU4Rec, LRURec
from talerec.models.networks.sasrec import ESASRec, GSASRec, SASRec
from talerec.models.networks.spectral import BSARec, FEARec
from talerec.models.networks.tisasrec import TiSASRec
from talerec.models.tempo.model import Tempo

#: The model that every command, the demo and the docs take where none is named.
DEFAULT = "tempo"

#: Every model's class by its name, the default first: `MODELS["tale"](reg=50)` is `TALE(reg=50)`.
MODELS: dict[str, type[Model]] = {
    model.name: model
    for model in (
        Tempo,
        TALE,
        SLIS,
        SLIT,
        SLIST,
        EASE,
        EDLAE,
        RDLAE,
        SWalk,
        SKNN,
        STAN,
        Markov,
        Rules,
        Association,
        Popular,
        Trending,
        FPMC,
        SASRec,
        GSASRec,
        ESASRec,
        GRU4Rec,
        BERT4Rec,
        DuoRec,
        FEARec,
        BSARec,
        TiSASRec,
        TCPSRec,
        TiCoSeRec,
        LinRec,
        LRURec,
        HSTU,
        Blend,
    )
}
Blend.known = {name: model for name, model in MODELS.items() if model is not Blend}


def model_class(name: str) -> type[Model]:
    """The class of the model with this name, or at this place (``module:Class``); an unknown name is refused."""
    found = MODELS.get(name) or own.find(name)
    if found is None:
        raise TalerecError(f"there is no model {name!r}; the models are {', '.join(MODELS)}")
    return found


def load(path: str | Path, *, verify: bool = False) -> Model:
    """Load a saved model; its arrays are memory-mapped, so that this takes no time and little memory.

    Parameters
    ----------
    path : str or Path
        The folder (NAME.tale) that `Model.save` wrote.
    verify : bool, default False
        Read every byte, check its hash and look at every number. Shapes and indices are checked in any case.

    Returns
    -------
    Model
        The fitted model.

    Raises
    ------
    TalerecError
        Where the folder is missing or damaged, or holds a model that this version does not know.

    Examples
    --------
    >>> import tempfile
    >>> import talerec as tr
    >>> model = tr.Markov(recency=1).fit(tr.synthetic_log(2000, seed=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = model.save(f"{folder}/shop.tale")
    ...     tr.load(path, verify=True).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 95]
    """
    return opened(artifact.read(path, verify=verify), path, verify=verify)


def opened(kept: artifact.Bundle, path: str | Path, *, verify: bool = False) -> Model:
    """The model that an artifact holds, checked as in `load`; `path` is for messages."""
    name = kept.facts["model"]
    kind = MODELS.get(name) or own.find(name)
    if kind is None:
        raise TalerecError(
            f"{path} holds a model {name!r}, which this version does not know; a model of your own is known "
            f"once its module is imported (for commands: {own.VARIABLE}=module)"
        )
    try:
        return restore(params.build(kind, kept.facts["params"]), kept, verify=verify)
    except TalerecError as error:
        raise TalerecError(f"{path} holds a model that cannot be used: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        raise TalerecError(f"{path} holds a model that cannot be used: {error!r}") from error
