"""The context of requests: values that a caller gives, and what a log has about its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from talerec.data import (
    Context,
    ContextColumn,
    ContextColumns,
    Histories,
    Log,
    check_type,
    context_of_requests,
    fill_missing,
    user_columns,
)
from talerec.errors import InvalidLogError, TalerecError
from talerec.models.core.scorer import Scorer
from talerec.runtime import Array

#: The context of all requests, or one per request.
Contexts = Context | Sequence[Context]


def check_context(model: Scorer) -> None:
    """Raise TalerecError if a model knows no context columns."""
    if not model.takes_context:
        message = f"{model.name} does not use `context`; the ranker does"
        raise TalerecError(message, "context")
    if not model.context_columns:
        message = "the model was fitted without context columns: leave out `context`"
        raise TalerecError(message, "context")


def apply_context(
    model: Scorer, histories: Histories, context: Contexts | None
) -> Histories:  # fmt: skip
    """Return histories with the context of the requests.

    A column that the context does not have stays as it was. context: values by column for all
    requests, or one dict per history; None: nothing is said. TalerecError for a column that the
    model does not know, or a value that it cannot have.
    """
    if context is None:
        return histories
    check_context(model)
    requests = [context] if isinstance(context, Mapping) else context
    if requests is context:
        _check_number(context, len(histories))
    columns = context_of_requests(requests, model.context_columns)
    if isinstance(context, Mapping):
        columns = tuple(column.take(np.zeros(len(histories), np.int64)) for column in columns)
    return replace(histories, context=_override(histories.context, columns))


def slice_context(context: Contexts | None, a: int, b: int) -> Contexts | None:
    """Return the contexts of the requests a..b (b excluded)."""
    return context if context is None or isinstance(context, Mapping) else context[a:b]


def select_context(context: Contexts | None, which: Array) -> Contexts | None:
    """Return the contexts of the requests that are flagged; TalerecError for another number."""
    if context is None or isinstance(context, Mapping):
        return context
    _check_number(context, len(which))
    return [each for each, is_chosen in zip(context, which.tolist(), strict=True) if is_chosen]


def _check_number(contexts: Sequence[Context], n_requests: int) -> None:
    """Raise TalerecError unless there are as many contexts as requests, each of them a dict."""
    is_list = isinstance(contexts, Sequence) and not isinstance(contexts, str)
    if not is_list or not all(isinstance(each, Mapping) for each in contexts):
        raise TalerecError("`context` takes values by column, such as device: phone", "context")
    if len(contexts) != n_requests:
        message = f"`context` has {len(contexts)} entries for {n_requests} requests"
        raise TalerecError(message, "context")


def _override(before: ContextColumns, columns: ContextColumns) -> ContextColumns:
    """Return columns of requests, in which missing values are those of `before`."""
    others = {column.name: column for column in before}
    filled = []
    for column in columns:
        other = others.pop(column.name, None)
        filled.append(column if other is None else fill_missing(column, other))
    return (*others.values(), *filled)


def complete_context(model: Scorer, log: Log) -> ContextColumns:
    """Return the context columns of another log, as a model needs them.

    User columns that the log does not have come from the users of the model's training log.
    InvalidLogError if a column has text where the model knows numbers, or the reverse.
    """
    if not model.takes_context:
        return ()
    by_name = {column.name: column for column in log.context}
    trained = model.fitted.log
    of_users = {column.name: column for column in trained.context} if trained else {}
    columns: list[ContextColumn] = []
    for name, is_number in model.context_columns:
        column = by_name.get(name)
        if column is not None:
            check_type(name, is_number, column)
            columns.append(column)
        elif trained is not None and of_users[name].by_user:
            columns.append(_spread_users(trained, of_users[name], log))
    return tuple(columns)


def _spread_users(trained: Log, column: ContextColumn, log: Log) -> ContextColumn:
    """Return a user column of a training log for the rows of another log, by user id."""
    position = trained.users.codes(trained.users.cast_ids(log.users.ids))
    of_users = user_columns(replace(trained, context=(column,)), np.maximum(position, 0))[0]
    codes = np.where(position >= 0, of_users.codes, np.int32(-1))
    return replace(column, codes=codes[log.user_codes()])


def require_context(model: Scorer, log: Log) -> Log:
    """Return a log; InvalidLogError unless it has the context columns of a model's fit.

    User columns may be missing: users keep their values, and new ones have none.
    """
    trained = model.fitted.log
    if trained is None:
        return log
    present = {column.name: column for column in log.context}
    for column in trained.context:
        if column.name in present:
            check_type(column.name, column.is_number, present[column.name])
        elif not column.by_user:
            message = f"the model was fitted with the context column {column.name!r}"
            raise InvalidLogError(f"{message}, which the new rows do not have", "context")
    return log
