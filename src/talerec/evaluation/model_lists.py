"""Lists of models by text, such as linear or tempo,ease(reg=500), in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.errors import TalerecError
from talerec.models import MODELS, model_class
from talerec.models.blend import parse_models
from talerec.models.core import Model, RecommenderModel, build_model, param_fields, parse_settings

#: Models of the library, the most promising first: accurate ones that take seconds, then those
#: that take minutes, simple counts, and networks.
PROMISING = (
    "tempo", "tale", "slist", "rules", "slit", "swalk", "stan", "markov", "rdlae", "edlae", "ease",
    "slis", "ranker", "blend", "content", "sknn", "association", "popular", "trending", "personal",
    "lastbasket", "tifuknn", "fpmc", "tisasrec", "sasrec", "bsarec", "lrurec", "hstu", "esasrec",
    "gsasrec", "linrec", "tcpsrec", "gru4rec", "bert4rec", "duorec", "fearec", "ticoserec",
)  # fmt: skip

#: Names of lists of models: closed-form item-item models, and every model of the library.
MODEL_LISTS = {
    "linear": ("tempo", "tale", "slist", "slit", "slis", "swalk", "ease", "edlae", "rdlae"),
    "all": PROMISING,
}


@dataclass(frozen=True, eq=False)
class ListedModel:
    """A model of a list: its label in results, and whether a caller named it.

    label: the model's name, with its settings that differ from the defaults. is_named: False if
    the model comes from a list such as "all", of which some models may lack a library.
    """

    model: Model
    label: str
    is_named: bool = True


def single_model(model: str) -> Model:
    """Return the unfitted model of a text such as ``ease(reg=500)``.

    TalerecError if the text names no model, several models, or an unknown one.
    """
    listed = list_models(model)
    if len(listed) > 1:
        message = f"`model` is {model!r}, which is {len(listed)} models; use `evaluate_models`"
        raise TalerecError(message, "model")
    return listed[0].model


def list_models(models: str | Sequence[str | Model]) -> list[ListedModel]:
    """Return the models of a text or of several texts and models, in their order.

    Parameters
    ----------
    models
        "linear", "all", or names with settings such as ``tempo,ease(reg=500; recency=4)``; or a
        sequence of such texts and of unfitted models.

    Returns
    -------
    list of ListedModel
        Unfitted models, each with a label of its own.

    Raises
    ------
    TalerecError
        If there is no model, a name or setting is unknown, or a model is there twice.
    """
    parts = [models] if isinstance(models, str | RecommenderModel) else list(models)
    listed = [entry for part in parts for entry in _list_part(part)]
    if not listed:
        raise TalerecError(
            "`models` is empty; it takes names of models such as tempo,ease", "models"
        )
    labels: set[str] = set()
    for entry in listed:
        if entry.label in labels:
            raise TalerecError(f"`models` has {entry.label} twice", "models")
        labels.add(entry.label)
    return listed


def _list_part(part: str | Model) -> Iterable[ListedModel]:
    """Yield the models of one text, such as "linear" or "tempo,ease(reg=500)", or one model."""
    if isinstance(part, RecommenderModel):
        yield ListedModel(part, label_model(part))
        return
    if not isinstance(part, str):
        message = f"`models` has {part!r}; it takes names of models, or models that are not fitted"
        raise TalerecError(message, "models")
    for name, settings in parse_models(part, "models"):
        if name in MODEL_LISTS and not settings:
            models: list[Model] = [MODELS[other]() for other in MODEL_LISTS[name]]
            yield from (ListedModel(model, model.name, is_named=False) for model in models)
        else:
            kind = model_class(name)
            model = build_model(kind, parse_settings(kind, settings))
            yield ListedModel(model, label_model(model))


def label_model(model: Model) -> str:
    """Return a model's name with the settings that differ from its defaults: ease(reg=500)."""
    changed = (
        f"{field.name}={_format_value(getattr(model, field.name))}"
        for field in param_fields(model)
        if getattr(model, field.name) != field.default
    )
    settings = "; ".join(changed)
    return f"{model.name}({settings})" if settings else model.name


def _format_value(value: Any) -> str:
    """Return a parameter's value as text that `list_models` reads; numbers are short."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
