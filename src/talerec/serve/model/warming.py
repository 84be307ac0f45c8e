"""The first queries of a model, which compile all kernels."""

from __future__ import annotations

from talerec.models.core import RecommendOptions
from talerec.runtime import always_compile
from talerec.serve import schemas
from talerec.serve.model.queries import ModelQuery, UserRows
from talerec.serve.model.served import ServedModel

_WARM_ROWS = 3  # rows of the histories that compile the kernels


def warm_model(served: ServedModel) -> None:
    """Answer one small query of each kind, so that all kernels are compiled beforehand.

    A query has a history and options. The responses are discarded; the queries use the first
    items and the first user of the log.
    """
    always_compile()
    ids = served.catalogue.ids.take(list(range(min(_WARM_ROWS, len(served.items)))))
    rows = [schemas.HistoryRow(item_id) for item_id in ids]
    plain = RecommendOptions(1)
    for hide_seen in (False, True):
        served.recommend(ModelQuery(RecommendOptions(1, hide_seen, deny=ids[:1]), rows))
    timed = [schemas.HistoryRow(item_id, second) for second, item_id in enumerate(ids)]
    served.recommend(ModelQuery(plain, timed))
    served.recommend(ModelQuery(plain, []))
    for name in served.rule_columns[:1]:
        options = RecommendOptions(1, per={name: 1}, boost={name: {}})
        served.recommend(ModelQuery(options, rows))
    if (log := served.model.fitted.log) is not None:
        user_rows = UserRows(log.item[: log.ptr[1]], log.time[: log.ptr[1]])
        served.recommend(ModelQuery(plain, [], rows=user_rows))
    served.similar(schemas.SimilarRequest(ids[0], 1))
    served.explain(ids[0], ModelQuery(plain, rows))
    served.search(str(ids[0]), 1)
    _ = served.catalogue.columns
