"""FPMC (WWW 2010): a Markov chain in item factors and the taste of the history, by BPR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from talerec.data import Histories, Log
from talerec.models.core import Model, param, require
from talerec.ranking import Query, Weights, make_block
from talerec.runtime import Array, Clock, kernel, stage, template

_INITIAL_DEVIATION = 0.1  # standard deviation of the factors before the first step


@dataclass(eq=False, kw_only=True)
class FPMC(Model):
    """A Markov chain in factors, and the history's taste: score_j = u . Q_j + M_last . N_j.

    u is the mean taste factor of the history's items, not a factor of the user: histories that were
    not in the training log are scored like all others. M_last are the transition factors of the
    last item; Q_j and N_j are those of item j as a target. The factors are fitted with BPR.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.FPMC(epochs=5).fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 86]
    """

    name = "fpmc"
    summary = "Baskets and taste in few numbers; a classic baseline"
    supports_update = False
    paper = "Factorizing Personalized Markov Chains for Next-Basket Recommendation, WWW 2010"
    sources_are_items = False

    factors: int = param(
        32, "factors of an item, for taste and transitions each", low=1, high=4096, search=(16, 128)
    )
    rows: int = param(20, "last rows of a history whose mean is its taste", low=1, high=100_000)
    epochs: int = param(20, "passes over the log", low=1, high=10_000, search=(10, 60))
    rate: float = param(
        0.1, "learning rate, which decreases to 0", above=0, high=10, search=(0.01, 0.5)
    )
    reg: float = param(0.002, "shrinkage of factors per step", low=0, high=1, search=(1e-4, 0.1))
    seed: int = param(
        0, "seed of the initial factors, the order of rows and the sampled items", low=0
    )

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the target factors as weights, factor x item; no solver is used (None).

        The first `factors` rows are multiplied by the taste (mean factor of a history), the others
        by the factors of its last item. Query arrays are the factors of history items: "taste" and
        "from_last". clock: adds up the seconds of each stage.
        """
        options = StepOptions(self.rows, self.rate, self.reg)
        with clock("solve"):
            fitted = fit_factors(log, self.factors, self.epochs, self.seed, options)
        targets = np.ascontiguousarray(np.hstack([fitted.to_taste, fitted.to_last]).T)
        block = make_block(targets, source_item=np.full(len(targets), -1, np.int32))
        arrays = {"taste": fitted.taste, "from_last": fitted.from_last}
        return Weights(block, query_arrays=arrays), None

    def _check_loaded(self) -> None:
        """Raise TalerecError if factors, loaded from an artifact, have other shapes.

        The arrays "taste" and "from_last" are item x factor; the weights have 2 `factors` rows.
        """
        weights, expected = self.fitted.weights, (len(self.fitted.items), self.factors)
        for name in ("taste", "from_last"):
            shape = weights.query_arrays[name].shape
            require(shape == expected, f"{name} has the shape {shape}, not {expected}")
        sources = weights.blocks[0].sources
        require(sources == 2 * self.factors, f"the weights have {sources} rows of factors")

    def query(self, histories: Histories) -> Query:
        """Return x of each history: the mean taste of its items, then factors of its last item.

        Sources of x are factors, which the weights (factor x item) turn into scores; a history
        without known items has none. Only the last `rows` known items count.
        """
        arrays = self.fitted.weights.query_arrays
        rows = (histories.start, histories.stop, histories.item)
        codes, has_code = encode(*rows, self.rows, arrays["taste"], arrays["from_last"])
        sources = np.tile(np.arange(codes.shape[1]), int(has_code.sum()))
        indptr = np.concatenate([[0], np.cumsum(has_code * codes.shape[1])])
        return Query(indptr, sources, codes[has_code].ravel())

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of a history (column) adds to targets' scores (rows).

        targets: item positions; `x` is not used. Each of the last `rows` known rows adds its share
        of the mean taste; the last row also adds its transition. Unknown items (-1) add 0.
        """
        weights, arrays = self.fitted.weights, self.fitted.weights.query_arrays
        columns = weights.matrix[:, targets].astype(np.float64)
        rows = np.flatnonzero(history.item >= 0)[-self.rows :]
        shares = np.zeros((len(targets), len(history.item)))
        if rows.size:
            items = history.item[rows]
            taste = arrays["taste"][items].astype(np.float64)
            last = arrays["from_last"][items[-1]].astype(np.float64)
            shares[:, rows] = (taste @ columns[: self.factors]).T / len(rows)
            shares[:, rows[-1]] += last @ columns[self.factors :]
        return shares


# -- BPR: gradient steps on pairs of the next item and a sampled one -------------------------------


class ItemFactors(NamedTuple):
    """Factors of the items, float32, item x factor.

    Item j after a history scores mean(taste) . to_taste_j + from_last . to_last_j, with the mean
    over the history's items and `from_last` of its last item.
    """

    taste: Array  # of history items
    from_last: Array  # of the history's last item
    to_taste: Array  # of target items, multiplied by the mean taste
    to_last: Array  # of target items, multiplied by `from_last`


class BPRExamples(NamedTuple):
    """Rows to learn from, in this order; each row's item should score above a sampled one.

    The history of a row is its user's earlier rows.
    """

    item: Array  # of every row of the log
    begin: Array  # the first row of every row's user
    order: Array  # rows to learn from
    sampled: Array  # for each of them the item that should score lower


class StepOptions(NamedTuple):
    """Options of a gradient step of BPR: rows of history, learning rate, regularization."""

    rows: int  # rows before the target that make up its history
    rate: float  # learning rate
    reg: float  # share of the rate by which factors shrink


class BPRPair(NamedTuple):
    """The items of one step: the next one, the sampled one, and the last one of the history.

    BPR moves factors so that the next item scores above the sampled one.
    """

    item: int
    sampled: int
    last: int


def fit_factors(
    log: Log, n_factors: int, epochs: int, seed: int, options: StepOptions
) -> ItemFactors:
    """Return the item factors after `epochs` passes over a log, in an order drawn from `seed`.

    Each row with an earlier row of its user is an example of BPR: its item should score above a
    random one. One thread makes all steps, so that results are identical every time. The learning
    rate falls to 0.
    """
    rng = np.random.default_rng(seed)
    n = len(log.items)
    options = options._replace(rows=min(options.rows, int(np.diff(log.ptr).max())))
    draws = rng.normal(0, _INITIAL_DEVIATION, (4, n, n_factors))
    factors = ItemFactors(*draws.astype(np.float32))
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    with_history = np.flatnonzero(np.arange(log.rows) > begin)
    tick = stage("factors", float(epochs))
    for epoch in range(epochs):
        order = rng.permutation(with_history)
        sampled = rng.integers(0, n, len(order), dtype=np.int32)
        step = options._replace(rate=options.rate * (1 - epoch / epochs))
        bpr_steps(BPRExamples(log.item, begin, order, sampled), step, factors)
        tick(1.0)
    return factors


@template
def _mean_taste(item: Array, a: int, b: int, taste: Array, out: Array) -> None:
    """Write the mean of `taste` (item x factor) over the items of rows a to b - 1 to `out`."""
    out[:] = 0.0
    for r in range(a, b):
        for f in range(len(out)):
            out[f] += taste[item[r], f]
    for f in range(len(out)):
        out[f] /= b - a


@template
def _margin(factors: ItemFactors, pair: BPRPair, mean: Array) -> np.float32:
    """Return the score of the pair's next item minus that of its sampled one.

    pair: positions of the next, the sampled and the history's last item. mean: the mean taste
    factors of the history.
    """
    i, j, last = pair
    total = np.float32(0.0)
    for f in range(len(mean)):
        total += mean[f] * (factors.to_taste[i, f] - factors.to_taste[j, f])
        total += factors.from_last[last, f] * (factors.to_last[i, f] - factors.to_last[j, f])
    return total


@template
def _update_pair(
    factors: ItemFactors, pair: BPRPair, mean: Array, gradient: np.float32, shrink: np.float32
) -> None:
    """Move the factors of the pair's items and of the last item along the gradient, in place.

    pair: the next item, which should score above the sampled one, and the history's last item.
    mean: the mean taste of the history. gradient: of the objective by the margin between the two
    scores, times the learning rate. shrink: the share by which factors shrink in a step
    (regularization).
    """
    i, j, last = pair
    _, from_last, to_taste, to_last = factors
    for f in range(len(mean)):
        to_taste[i, f] += gradient * mean[f] - shrink * to_taste[i, f]
        to_taste[j, f] -= gradient * mean[f] + shrink * to_taste[j, f]
        step = gradient * (to_last[i, f] - to_last[j, f]) - shrink * from_last[last, f]
        to_last[i, f] += gradient * from_last[last, f] - shrink * to_last[i, f]
        to_last[j, f] -= gradient * from_last[last, f] + shrink * to_last[j, f]
        from_last[last, f] += step


@template
def _update_taste(taste: Array, items: Array, step: Array, shrink: np.float32, old: Array) -> None:
    """Move the taste of a history's items by `step`, once for each of its rows, in place.

    taste: item x factor. items: of the history's rows. shrink: the share by which a taste shrinks
    (regularization), divided among the rows. old: work array, row x factor.
    """
    size = np.float32(len(items))
    for r in range(len(items)):
        old[r] = taste[items[r]]
    for r in range(len(items)):
        for f in range(len(step)):
            taste[items[r], f] += step[f] - shrink * old[r, f] / size


@kernel
def bpr_steps(examples: BPRExamples, options: StepOptions, factors: ItemFactors) -> None:
    """Make a gradient step on ln sigma(margin) - reg / 2 |factors|^2 for each example.

    The margin is the score of the next item less that of the sampled one, after a history of at
    most `options.rows` rows. Changes `factors` in place; a pair of equal items is skipped.
    """
    item, d = examples.item, factors.taste.shape[1]
    mean, taste_step = np.empty(d, np.float32), np.empty(d, np.float32)
    before = np.empty((options.rows, d), np.float32)
    rate = np.float32(options.rate)
    shrink = rate * np.float32(options.reg)
    for x in range(len(examples.order)):
        q = examples.order[x]
        pair = BPRPair(item[q], examples.sampled[x], item[q - 1])
        if pair.item == pair.sampled:
            continue
        a = max(examples.begin[q], q - options.rows)
        _mean_taste(item, a, q, factors.taste, mean)
        # d/dm ln sigma(m) = 1 / (1 + e^m), m the margin
        gradient = rate / (np.float32(1.0) + np.exp(_margin(factors, pair, mean)))
        for f in range(d):
            difference = factors.to_taste[pair.item, f] - factors.to_taste[pair.sampled, f]
            taste_step[f] = gradient * difference / np.float32(q - a)
        _update_pair(factors, pair, mean, gradient, shrink)
        _update_taste(factors.taste, item[a:q], taste_step, shrink, before)


@kernel
def encode(
    start: Array, stop: Array, item: Array, n_rows: int, taste: Array, from_last: Array
) -> tuple[Array, Array]:
    """Return codes (history x 2 factors), and a flag per history: whether it has known items.

    A code is the mean of `taste` over the last `n_rows` known items, then `from_last` of the last
    one. History q is item[start[q]:stop[q]]; unknown items are -1.
    """
    d = taste.shape[1]
    out = np.zeros((len(start), 2 * d))
    has_items = np.zeros(len(start), np.bool_)
    mean = np.empty(d)
    recent = np.empty(n_rows, np.int32)
    for q in range(len(start)):
        count = 0
        for r in range(stop[q] - 1, start[q] - 1, -1):
            if item[r] >= 0 and count < n_rows:
                recent[count] = item[r]
                count += 1
        if count > 0:
            has_items[q] = True
            _mean_taste(recent, 0, count, taste, mean)
            for f in range(d):
                out[q, f], out[q, d + f] = mean[f], from_last[recent[0], f]
    return out, has_items
