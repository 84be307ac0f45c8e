"""Requests for recommendations that arrive together are answered together."""

from __future__ import annotations

import asyncio

from talerec.serve import schemas
from talerec.serve.model import ModelQuery, ServedModel

_ResponseFuture = asyncio.Future[schemas.Recommendations]


class RecommendQueue:
    """Collects the requests read in one turn of the event loop, and answers them after it.

    Answering them together uses the processor's caches better than one by one, each through HTTP,
    JSON and the model. Each request is answered by the model that it began with. `_waiting` has, by
    model, each query with the future that gets its recommendations.
    """

    def __init__(self) -> None:
        self._waiting: dict[ServedModel, list[tuple[ModelQuery, _ResponseFuture]]] = {}

    def enqueue(self, model: ServedModel, query: ModelQuery) -> _ResponseFuture:
        """Return a future that gets the model's recommendations, or an error, in the next turn.

        A turn is one pass of the event loop: all queries (a history and options) read in it are
        answered together after it, by `_flush`. `_waiting` has them by model.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        future: _ResponseFuture = loop.create_future()
        self._waiting.setdefault(model, []).append((query, future))
        return future

    def _flush(self) -> None:
        """Answer all waiting queries, model by model, and resolve their futures.

        A query has a history and options. `_waiting` has, by model, pairs of a query and its
        future; it is emptied. If a model fails as a whole, each of its futures gets the exception.
        """
        waiting, self._waiting = self._waiting, {}
        for model, queries_and_futures in waiting.items():
            try:
                outcomes = model.recommend_all([query for query, _ in queries_and_futures])
            except Exception as error:
                outcomes = [error] * len(queries_and_futures)
            for (_, response), outcome in zip(queries_and_futures, outcomes, strict=True):
                if response.cancelled():  # the client has gone
                    continue
                if isinstance(outcome, Exception):
                    response.set_exception(outcome)
                else:
                    response.set_result(outcome)
