"""The model card: what a service reports of a model, its training data and its limits."""

from __future__ import annotations

import math
from datetime import datetime

from talerec.models.core import add_former_names
from talerec.serve import schemas
from talerec.serve.model.queries import format_time
from talerec.serve.model.served import ServedModel


def model_times(served: ServedModel) -> dict[str, float]:
    """Return when a model was "saved" and "loaded" here, in Unix seconds; 0 if unknown."""
    try:
        saved = datetime.fromisoformat(str(served.facts.get("saved") or "")).timestamp()
    except ValueError:
        saved = 0.0
    return {"saved": saved, "loaded": served.loaded}


def build_card(
    served: ServedModel, limits: dict[str, float], other_models: list[str]
) -> schemas.ModelCard:
    """Return the model card: the model, its training data, and the service's limits.

    `limits` has limits of requests by setting; `other_models` are the names of the comparison
    models of the service. `facts` is the manifest of the saved model. Times become ISO 8601.
    """
    facts, model = served.facts, served.model
    model_params = add_former_names(type(model), model.params)
    training = dict(facts["training"])
    for name in training.keys() & {"first_time", "last_time"}:
        training[name] = format_time(training[name], "seconds")
    recency = model_params.get("recency")
    return schemas.ModelCard(
        model=served.version, name=model.name, paper=model.paper,
        params={name: "inf" if v == math.inf else v for name, v in model_params.items()},
        solver=facts.get("solver"), training=training, saved=facts.get("saved"),
        metrics=facts.get("metrics"), limits=limits, columns=served.catalogue.columns,
        recency=recency if isinstance(recency, int | float) else None, beside=other_models,
    )  # fmt: skip
