"""Every model by name. The command line, the tuner and the docs read this list."""

from __future__ import annotations

from pathlib import Path

from talerec import artifact
from talerec.errors import TalerecError
from talerec.models import params
from talerec.models.base import Model, restore
from talerec.models.ease import EASE, EDLAE, RDLAE
from talerec.models.fpmc import FPMC
from talerec.models.nearest import SKNN, STAN
from talerec.models.popular import Popular, Trending
from talerec.models.rules import Association, Markov, Rules
from talerec.models.slist import SLIS, SLIST, SLIT
from talerec.models.swalk import SWalk
from talerec.models.tale import TALE
from talerec.models.tempo import Tempo

MODELS: dict[str, type[Model]] = {
    model.name: model
    for model in (
        TALE,
        Tempo,
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
    )
}
DEFAULT = "tempo"  # what the command line fits unless told otherwise


def model_class(name: str) -> type[Model]:
    """The model of that name."""
    if name not in MODELS:
        raise TalerecError(f"there is no model {name!r}; the models are {', '.join(MODELS)}")
    return MODELS[name]


def load(path: str | Path, *, verify: bool = False) -> Model:
    """A saved model, memory-mapped. `verify` reads every byte and checks its hash."""
    return opened(artifact.read(path, verify=verify), path)


def opened(kept: artifact.Bundle, path: str | Path) -> Model:
    """The model that an artifact holds."""
    if kept.facts["model"] not in MODELS:
        raise TalerecError(
            f"{path} holds a model {kept.facts['model']!r}, which this version does not know"
        )
    return restore(params.build(model_class(kept.facts["model"]), kept.facts["params"]), kept)
