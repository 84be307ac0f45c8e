"""The parts of a ranker: models of the first stage, by name or by the log's size."""

from __future__ import annotations

from talerec.data import Log
from talerec.errors import TalerecError
from talerec.models.blend import parse_parts
from talerec.models.core import Model, build_model, parse_settings, registry

_RANKER = "ranker"  # the only model of the library that cannot be a part
_MAX_PARTS = 20
#: Largest number of items, and the parts of a log with at most as many, which fit in seconds.
_PARTS = (
    (6_000, "tempo,slist,swalk,sknn,rules,ease,trending"),
    (20_000, "tempo,slist,sknn,rules,ease,trending"),
)
LARGE_PARTS = "tempo,sknn,rules,markov,trending"
#: Decay lengths, in rows, with which the weights of tempo are queried again for features.
_RECENCIES = (0.5, 2.0, 30.0)


def default_parts(log: Log) -> str:
    """Return the parts of a ranker for a log of this size, as text; the first one is tempo."""
    sizes = (parts for n_items, parts in _PARTS if len(log.items) <= n_items)
    return next(sizes, LARGE_PARTS)


def build_parts(text: str) -> list[Model]:
    """Return new, unfitted models of the parts that a text such as tempo,ease(reg=500) names.

    Any linear model of the library can be a part, blends too. TalerecError for another name, for a
    setting that is not valid, or for more than 20 parts.
    """
    parts: list[Model] = []
    for name, settings in parse_parts(text):
        if name not in registry.LIBRARY_MODELS or name == _RANKER:
            names = ", ".join(part for part in registry.LIBRARY_MODELS if part != _RANKER)
            raise TalerecError(f"parts names {name!r}; the models that can be a part are {names}")
        kind = registry.LIBRARY_MODELS[name]
        parts.append(build_model(kind, parse_settings(kind, settings)))
    if len(parts) > _MAX_PARTS:
        raise TalerecError(f"parts names {len(parts)} models; at most {_MAX_PARTS} can be parts")
    return parts


def name_parts(parts: list[Model]) -> list[str]:
    """Return a name for each part, in order: that of its model; the second ease is "ease2"."""
    names: list[str] = []
    for number, part in enumerate(parts):
        n_before = sum(other.name == part.name for other in parts[:number])
        names.append(f"{part.name}{n_before + 1}" if n_before else part.name)
    return names


def build_views(parts: list[Model]) -> list[Model]:
    """Return views of the fitted parts: the same weights, queried in another way.

    Their scores are features, and their lists propose no candidates. Only a tempo has views: three,
    without current popularity, in which the history's last row, last few rows, or all rows decide.
    """
    views: list[Model] = []
    for part in parts:
        for recency in _view_recencies(part):
            other = {**part.params, "recency": recency, "popularity_weight": 0.0}
            views.append(type(part)(**other).set_fitted(part.fitted))
    return views


def name_scorers(parts: list[Model]) -> list[str]:
    """Return the names of the parts, then those of their views, such as tempo_recency_2."""
    names = name_parts(parts)
    views = [
        f"{name}_recency_{recency:g}".replace(".", "_")
        for name, part in zip(names, parts, strict=True)
        for recency in _view_recencies(part)
    ]
    return [*names, *views]


def _view_recencies(part: Model) -> tuple[float, ...]:
    """Return the decay lengths, in rows, of a part's views; only a tempo has any."""
    return _RECENCIES if part.name == "tempo" else ()
