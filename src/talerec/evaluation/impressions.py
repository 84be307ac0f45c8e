"""Click rates of shown items, with intervals, and the candidate's difference.

A click is an event on a shown item, by the same user (by anybody, if the visitor was anonymous),
within the attribution window after the response. An event that names a response can be a click of
that response only; an event that names none is a click of the user's latest response with the item.
However many events there are, an item of a response is clicked once or not at all.

Items that exploration put into a list are counted apart: rates of models, ranks and lists, and the
comparison of a candidate, are those of the items that the model chose. Named lists, which everybody
sees, have rates of their own only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from talerec import columns
from talerec.errors import TalerecError
from talerec.evaluation.intervals import mean_intervals
from talerec.evaluation.sequences import OutcomeSums, describe_difference, difference_sequence
from talerec.evaluation.user_sums import sum_users

_SECOND_US = 1_000_000
_CLOCK_SKEW_US = 60_000_000  # microseconds by which a client's clock may be behind the service's
_MIN_UNITS = 10  # users; an estimate from fewer is refused
_NORMAL_QUANTILE = 1.959964  # of 97.5 %
_MAX_RANK = 50  # ranks whose rates are shown
_MAX_MODELS = 10  # versions whose rates are shown, the latest ones
_KEY = ["recommendation_id", columns.ITEM]


def attribute_clicks(
    shown: pl.DataFrame, events: pl.DataFrame, window: int, negative: Collection[str] = ()
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the shown items with a column `clicked`, and why other events are no clicks.

    Of events that are no clicks, those are counted that name a response among `shown`, that repeat
    a click, or that are negative feedback on a shown item. An event with a time in whole seconds is
    taken to be at the end of its second, since the response before it may be in the same second.

    Parameters
    ----------
    shown : DataFrame
        A row per shown item, as `expand_impressions` returns them, with `time` in microseconds.
    events : DataFrame
        Columns user_id, item_id, time (microseconds), event (its name or null) and
        recommendation_id, null without one.
    window : int
        Microseconds after a response in which an event counts as its click.
    negative : collection of str
        Names of events that are negative feedback.
    """
    time = pl.col("time")
    events = events.with_columns(
        pl.when(time % _SECOND_US == 0).then(time + _SECOND_US - 1).otherwise(time).alias("time"),
        pl.col("event").is_in(list(negative)).fill_null(value=False).alias("is_negative"),
    )
    has_id = pl.col("recommendation_id").is_not_null()
    matches, reasons = _match_by_id(shown, events.filter(has_id), window)
    matches = pl.concat([matches, _match_by_user(shown, events.filter(~has_id), window)])
    clicks = matches.filter(~pl.col("is_negative")).select(_KEY)
    clicked = clicks.unique()
    reasons["repeated"] = len(clicks) - len(clicked)
    reasons["negative"] = len(matches) - len(clicks)
    flag = pl.lit(value=True).alias("clicked")
    frame = shown.join(clicked.with_columns(flag), on=_KEY, how="left")
    return frame.with_columns(pl.col("clicked").fill_null(value=False)), reasons


def _match_by_user(shown: pl.DataFrame, events: pl.DataFrame, window: int) -> pl.DataFrame:
    """Return the shown item (`_KEY`) that each event without a recommendation id belongs to.

    It is the event's item in the user's latest response that has it, at most `window` microseconds
    before the event; `is_negative` is that of the event. Events without such a response are
    dropped.
    """
    of_users = shown.filter(pl.col(columns.USER).is_not_null())
    return (
        events.drop("recommendation_id")
        .sort("time")
        .join_asof(
            of_users.select(*_KEY, columns.USER, "time").sort("time"),
            on="time", by=[columns.USER, columns.ITEM], strategy="backward", tolerance=window,
            check_sortedness=False,
        )
        .filter(pl.col("recommendation_id").is_not_null())
        .select(*_KEY, "is_negative")
    )  # fmt: skip


def _match_by_id(
    shown: pl.DataFrame, events: pl.DataFrame, window: int
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the events with a recommendation id that count as clicks, and counts of others.

    shown, events: as for `attribute_clicks`; window: microseconds after the response. The first
    result has a row per matched event: the shown item (`_KEY`) and `is_negative`. The second counts
    other events by the reason why they do not match. An event of a response that is not among
    `shown` is not counted. An event up to a minute earlier than its response matches: the clocks of
    two machines differ.
    """
    responses = shown.select("recommendation_id", "time", columns.USER).unique("recommendation_id")
    pairs = events.join(responses, on="recommendation_id", suffix=" shown")
    pairs = pairs.join(
        shown.select(*_KEY, pl.lit(value=True).alias("is_shown")), on=_KEY, how="left"
    )
    delay = pl.col("time") - pl.col("time shown")
    same_user = (pl.col(columns.USER) == pl.col(f"{columns.USER} shown")).fill_null(value=True)
    reason = (  # null for an event that matches
        pl.when(~same_user)
        .then(pl.lit("other_user"))
        .when(pl.col("is_shown").is_null())
        .then(pl.lit("not_shown"))
        .when(delay < -_CLOCK_SKEW_US)
        .then(pl.lit("early"))
        .when(delay > window)
        .then(pl.lit("late"))
    )
    pairs = pairs.with_columns(reason.alias("reason"))
    names = ("other_user", "not_shown", "early", "late")
    counts = {name: int((pairs["reason"] == name).sum()) for name in names}
    return pairs.filter(pl.col("reason").is_null()).select(*_KEY, "is_negative"), counts


def count_rates(frame: pl.DataFrame, *by: str) -> list[dict[str, Any]]:
    """Return impressions, clicks and their rate with a 95 % interval, by columns.

    `frame` is what `attribute_clicks` returns, a row per shown item. The unit of the interval is
    the user, since the clicks of a user depend on each other; an anonymous response is a unit too.
    """
    unit = pl.coalesce(columns.USER, "recommendation_id").alias("unit")
    sums = [pl.col("clicked").sum().cast(pl.Float64), pl.len().cast(pl.Float64).alias("shown")]
    units = frame.with_columns(unit).group_by(*by, "unit").agg(*sums)
    groups = units.partition_by(*by, as_dict=True) if by else {(): units}
    rows = []
    for key in sorted(groups, key=lambda values: tuple(str(value) for value in values)):
        group = groups[key].sort("unit")
        sums_of_users = sum_users(group.select("clicked").to_numpy(), group["shown"].to_numpy())
        low, high = mean_intervals(sums_of_users)
        clicks, shown = int(group["clicked"].sum()), int(group["shown"].sum())
        rate = clicks / shown if shown else None
        interval = [float(low[0]), float(high[0])]
        values = {"impressions": shown, "clicks": clicks, "ctr": rate, "interval": interval}
        rows.append({**dict(zip(by, key, strict=True)), **values, "users": len(group)})
    return rows


def estimate_policy_rate(frame: pl.DataFrame, target: str) -> dict[str, Any]:
    """Return the click rate that another policy would have had, from kept probabilities.

    The mean over shown items of clicked * target / probability is unbiased if the other policy
    shows only items that could be shown at their ranks (inverse propensity scoring).

    Parameters
    ----------
    frame : DataFrame
        A row per shown item, with `probability` and `clicked`, as `impressions export` writes.
    target : str
        The column with the probability that the other policy has for this item at this rank.

    Returns
    -------
    dict
        `ctr`; `interval` of 95 %, whose unit is the user; `effective`, the number of shown items of
        the other policy itself that would tell as much.
    """
    weight = (pl.col(target) / pl.col("probability")).alias("weight")
    unit = pl.coalesce(columns.USER, "recommendation_id").alias("unit")
    rows = frame.with_columns(weight, unit)
    sums = [(pl.col("weight") * pl.col("clicked")).sum().alias("total"), pl.len().alias("shown")]
    units = rows.group_by("unit").agg(*sums).sort("unit")
    n_units, n_shown = len(units), len(frame)
    if n_units < _MIN_UNITS:
        raise TalerecError(f"{n_units} users are too few for an estimate; {_MIN_UNITS} are needed")
    rate = float(units["total"].sum()) / n_shown
    squares = float(((units["total"] - rate * units["shown"]) ** 2).sum())
    distance = _NORMAL_QUANTILE * (squares * n_units / (n_units - 1)) ** 0.5 / n_shown
    total, square = (float((rows["weight"] ** power).sum()) for power in (1, 2))
    effective = total**2 / square if square else 0.0
    return {"ctr": rate, "interval": [rate - distance, rate + distance], "effective": effective}


def compute_user_rates(frame: pl.DataFrame, window: int, end: int) -> pl.DataFrame:
    """Return the click rate of each user whose first response was before `end`, and the model.

    A user's rate is that of the items shown within one window after the first response. Users to
    whom both models answered in this window are left out. The result has user_id, role and rate.

    Parameters
    ----------
    frame : DataFrame
        A row per shown item with `clicked`, from the first response of each user until two windows
        after `end`. Explored items and named lists, which no model chose, are left out.
    window, end : int
        Microseconds.
    """
    is_counted = pl.col(columns.USER).is_not_null() & pl.col("list").is_null()
    return (
        frame.filter(is_counted & ~pl.col("explored"))
        .with_columns(pl.col("time").min().over(columns.USER).alias("first"))
        .filter(pl.col("first") < end, pl.col("time") < pl.col("first") + window)
        .group_by(columns.USER)
        .agg(pl.col("clicked").mean().alias("rate"), pl.col("role").unique())
        .filter(pl.col("role").list.len() == 1)
        .select(columns.USER, pl.col("role").list.first(), "rate")
    )


def describe_comparison(
    version: str, outcomes: Mapping[str, OutcomeSums], until: int
) -> dict[str, Any]:
    """Return the comparison of a candidate's click rate with the current model's, for JSON.

    The interval of the difference is a confidence sequence: it is valid at every look. `outcomes`
    has the sums of the users of "current" and "candidate" whose first response was before `until`,
    in microseconds; the field `until` is in Unix seconds.
    """
    current, candidate = outcomes["current"], outcomes["candidate"]
    interval = difference_sequence(current, candidate)
    return {
        "candidate": version,
        "until": until / 1e6,
        "users": {role: total.users for role, total in outcomes.items()},
        "ctr": {role: total.mean for role, total in outcomes.items()},
        "difference": candidate.mean - current.mean,
        "interval": None if interval is None else list(interval),
        "advice": describe_difference(interval),
    }


def summarize_impressions(
    shown: pl.DataFrame, events: pl.DataFrame, window: int, negative: Collection[str] = ()
) -> dict[str, Any]:
    """Return the rates of what was shown, as /v1/stats has them.

    `shown`, `events`, `window` and `negative` are those of `attribute_clicks`. Rates by model, role
    and rank leave out named lists, which no model orders for a user.
    """
    every, reasons = attribute_clicks(shown, events, window, negative)
    explored = every.filter(pl.col("explored"))
    frame = every.filter(~pl.col("explored"))
    personal = frame.filter(pl.col("list").is_null())
    by_rank = count_rates(personal.filter(pl.col("rank") <= _MAX_RANK), "rank")
    lists = count_rates(frame.with_columns(pl.col("list").fill_null("recommend")), "list")
    return {
        "answers": every["recommendation_id"].n_unique(),
        **count_rates(every)[0],
        "by_model": _count_by_model(personal),
        "by_role": {row.pop("role"): row for row in count_rates(personal, "role")},
        "by_rank": {
            str(row.pop("rank")): row for row in sorted(by_rank, key=lambda row: int(row["rank"]))
        },
        "by_list": {row.pop("list"): row for row in lists},
        "explored": None if explored.is_empty() else count_rates(explored)[0],
        "not_clicks": reasons,
    }


def _count_by_model(frame: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return impressions, clicks and rate of the latest ten versions of models, newest first.

    Each has the role (current, candidate) in which it answered last.
    """
    latest = (
        frame.sort("time")
        .group_by("model")
        .agg(pl.col("role").last(), pl.col("time").max())
        .sort("time", "model", descending=True)
        .head(_MAX_MODELS)
    )
    roles = dict(latest.select("model", "role").iter_rows())
    rates = count_rates(frame.filter(pl.col("model").is_in(list(roles))), "model")
    rows = {row.pop("model"): row for row in rates}
    return {model: {"role": role, **rows[model]} for model, role in roles.items()}
