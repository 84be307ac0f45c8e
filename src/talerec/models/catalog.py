"""The catalogue of models: every model class by name, and the loading of saved models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from talerec.artifact import Bundle, read_artifact
from talerec.errors import ArtifactError, TalerecError, suggest_name
from talerec.models.core import Model, build_model, registry, restore_model

#: The model of every command, the demo and the docs unless another is named.
DEFAULT = "tempo"

#: Model classes by name, the default first: `MODELS["tale"](reg=50)` is `TALE(reg=50)`. A class is
#: imported when it is looked up.
MODELS: Mapping[str, type[Model]] = registry.LIBRARY_MODELS


def model_class(name: str) -> type[Model]:
    """Return the model class of a name such as "tale", or ``module:Class``, which is imported.

    Only for names that the caller gives; for a name from a file see `registered_class`.
    TalerecError for an unknown one, or if the module cannot be imported.
    """
    return registry.import_class(name) if ":" in name else registered_class(name)


def registered_class(name: str) -> type[Model]:
    """Return the model class of a name that may come from a file, such as an artifact.

    It is looked up among the models of the library, those that this process defines, and those of
    TALEREC_MODELS (an environment variable) and of entry points; ``module:Class`` is not imported.
    TalerecError, which lists the names, for an unknown one.
    """
    kind = MODELS.get(name) or registry.find_class(name)
    if kind is None:
        remedy = suggest_name(name, MODELS, f"the models are {', '.join(MODELS)}")
        raise TalerecError(f"there is no model {name!r}; {remedy}")
    return kind


def load(path: str | Path, *, verify: bool = False) -> Model:
    """Load a saved model; its arrays are memory-mapped, which takes little time and memory.

    Parameters
    ----------
    path : str or Path
        The folder (NAME.tale) that `Model.save` wrote.
    verify : bool, default False
        Read every byte, check its hash and every number. Shapes and indices are always checked.

    Returns
    -------
    Model
        The fitted model.

    Raises
    ------
    TalerecError
        If the folder is missing or damaged, or holds a model that this version does not have.

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
    return restore_bundle(read_artifact(path, verify=verify), path, verify=verify)


def restore_bundle(bundle: Bundle, path: str | Path, *, verify: bool = False) -> Model:
    """Return the fitted model of an artifact's contents (`bundle`: facts, arrays and tables).

    `path` is for messages. Shapes and indices are checked; `verify` checks every number, too.
    ArtifactError if the contents cannot be used, TalerecError for an unknown model.
    """
    name = bundle.facts["model"]
    kind = MODELS.get(name) or registry.find_class(name)
    if kind is None:
        raise TalerecError(
            f"{path} holds a model {name!r}, which this version does not have; import the module "
            f"of a third-party model first (for commands: {registry.VARIABLE}=module:Class)"
        )
    try:
        model: Model = build_model(kind, bundle.facts["params"])
        restore_model(model, bundle, verify=verify)
    except TalerecError as error:
        raise ArtifactError(f"holds a model that cannot be used: {error}", path) from None
    except (LookupError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        raise ArtifactError(f"holds a model that cannot be used: {error!r}", path) from error
    return model
