"""Requests that arrive at the same moment are answered together."""

from __future__ import annotations

import asyncio

from talerec.serve import schemas
from talerec.serve.model.served import ServedModel

_Answer = asyncio.Future[schemas.Recommendations]


class RecommendQueue:
    """Collects the requests that are read in one turn of the event loop, and answers them after it.

    One by one, each would pass through HTTP, JSON and the model, and find the processor's caches full of the data of
    another step. Each request is answered by the model that it took.
    """

    def __init__(self) -> None:
        self._waiting: dict[ServedModel, list[tuple[schemas.RecommendRequest, _Answer]]] = {}

    def enqueue(self, model: ServedModel, request: schemas.RecommendRequest) -> _Answer:
        """The future answer to this request."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        answer: _Answer = loop.create_future()
        self._waiting.setdefault(model, []).append((request, answer))
        return answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for model, entries in waiting.items():
            requests = [request for request, _ in entries]
            for (_, answer), found in zip(entries, _recommend(model, requests), strict=True):
                _resolve(answer, found)


def _recommend(
    model: ServedModel, requests: list[schemas.RecommendRequest]
) -> list[schemas.Recommendations | Exception]:
    try:
        return model.recommend_all(requests)
    except Exception as error:
        return [error] * len(requests)


def _resolve(answer: _Answer, found: schemas.Recommendations | Exception) -> None:
    if answer.cancelled():  # the client has gone
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
