"""Recommendation and explanation in external ids: the methods that every model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Context, Histories, Log, TimeLike
from talerec.errors import TalerecError
from talerec.models.core.boosts import BoostSpec
from talerec.models.core.filters import Ids, ItemFilter, RecommendOptions
from talerec.models.core.inference import explain_boosts, rank_top, user_histories
from talerec.models.core.request_context import Contexts, apply_context, select_context
from talerec.models.core.result_frames import append_boosts, families_frame, lists_frame, names_at
from talerec.models.core.scorer import Scorer
from talerec.models.core.slots import SlotSpec
from talerec.runtime import Array

_EXPLAINED_BY = ("rows", "families")


class Recommender(Scorer):
    """Recommendation methods in external ids, on the operations that a model defines."""

    @property
    def item_ids(self) -> pl.Series:
        """External item ids in position order."""
        return self.fitted.items.ids

    def add_titles(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return a frame with an item_id column, with the items' titles in a column after it.

        Titles are those of the item table, null for items without one; TalerecError if the model
        has no table with titles.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> table = log.items.ids.rename("item_id").to_frame()
        >>> table = table.with_columns(title="Item " + table["item_id"].cast(str))
        >>> model = tr.Markov().fit(log.with_items(table))
        >>> model.add_titles(model.recommend(log.users.ids[:1], k=3)).columns
        ['user_id', 'item_id', 'title', 'score', 'rank']
        """
        name, table = columns.TITLES[0], self.fitted.info
        if table is None or name not in table.columns:
            raise TalerecError("the model has no item table (`items`) with titles", "items")
        positions = self.fitted.items.positions(frame[columns.ITEM].to_list(), "item", "skip")
        titles = table[name].gather(pl.Series(positions).replace(-1, None)).alias(name)
        return frame.insert_column(frame.columns.index(columns.ITEM) + 1, titles)

    def recommend(
        self, users: Ids, k: int = 10, *,
        hide_seen: bool = False, allow: Ids | None = None, deny: Ids | None = None,
        where: str | None = None, per: Mapping[str, int] | None = None,
        boost: BoostSpec | None = None, unknown: str = "error", as_of: TimeLike | None = None,
        context: Contexts | None = None, slots: SlotSpec | None = None,
    ) -> pl.DataFrame:  # fmt: skip
        """Recommend the next items to users of the training log.

        Parameters
        ----------
        users, k : list of ids, int
            Users of the training log; the length of each list, which is shorter only where filters
            or missing scores leave fewer.
        hide_seen : bool
            Leave out the items of the user's history.
        allow, deny, where : lists of ids, str, optional
            The only items that may be recommended, items that may not, and a condition on the item
            table: ``"category = 'tents' and price < 100"``.
        per : dict, optional
            By the item table: ``{"category": 2}`` for at most two items of a category in a list.
        boost : dict, optional
            By the item table: ``{"brand": {"X": 0.2}}`` adds a fifth of the list's score range to
            the scores of brand X, from the first to the hundredth of the list without boosts.
        unknown : "error" or "skip"
            Whether unknown ids are an error or are ignored.
        as_of : moment, optional
            Request time; by default the end of the log. Only rows before this time are history. A
            date, a datetime, its text, or a number: the size of a number from 10^8 on tells whether
            it counts s, ms, us or ns; a smaller one counts in the log's time unit.
        context : dict, or a list of dicts (one per user), optional
            The situation of the requests, for a ranker that was fitted with context columns.
        slots : dict, optional
            By place: ``{3: {"where": "campaign = 'spring'"}}`` for the best item of the campaign
            that is not listed before; without any, the place is filled as others are.

        Returns: a Polars frame with the columns user_id, item_id, score, rank; with slots also
        slot: whether a rule chose the item.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> len(tr.Markov().fit(log).recommend(log.users.ids[:2], k=3))
        6
        """
        rules = (allow, deny, where, per, boost, as_of, unknown, None, slots)
        options, log = (
            RecommendOptions(k, hide_seen, *rules),
            self._training_log("recommend_histories"),
        )
        positions = log.users.positions(users, "user", unknown)
        context = select_context(context, positions >= 0)
        positions = positions[positions >= 0]
        item_filter = options.build_filter(self)
        histories = user_histories(log, positions, options.request_time(self.fitted.unit))
        histories = apply_context(self, histories, context)
        lists = rank_top(self, histories, k, item_filter)
        names = log.users.ids[positions].alias(columns.USER)
        return lists_frame(lists, self.item_ids, names, item_filter.slots)

    def recommend_histories(
        self, histories: Sequence[Sequence[Any]], k: int = 10, *,
        hide_seen: bool = False, allow: Ids | None = None, deny: Ids | None = None,
        where: str | None = None, per: Mapping[str, int] | None = None,
        boost: BoostSpec | None = None, unknown: str = "error", as_of: TimeLike | None = None,
        context: Contexts | None = None, slots: SlotSpec | None = None,
    ) -> pl.DataFrame:  # fmt: skip
        """Recommend the next items after given histories.

        Parameters
        ----------
        histories : list of lists
            Each history a list of item ids, oldest first, or of (item id, time), where a time is
            written like `as_of`.
        k, hide_seen
            Length of each list; leave out the items of its history.
        allow, deny, where
            Ids of the only items that may be recommended, ids of items that may not, and a
            condition on the item table: ``"category = 'tents' and price < 100"``.
        per, boost
            Largest number of items with the same value of a column, ``{"category": 2}``; fractions
            of the score range to add by column and value, ``{"brand": {"X": 0.2}}``.
        unknown, as_of, slots
            "error" or "skip" for unknown ids; the request time; conditions by place. All as for
            `recommend`.
        context : dict, or a list of dicts, optional
            The situation of the requests, ``{"device": "phone"}``, or one dict per history.

        Returns
        -------
        polars.DataFrame
            Columns history (its number, from 0), item_id, score, rank.
        """
        rules = (allow, deny, where, per, boost, as_of, unknown, context, slots)
        options = RecommendOptions(k, hide_seen, *rules)
        rows = self._encode_histories(histories, options)
        item_filter = options.build_filter(self)
        lists = rank_top(self, rows, k, item_filter)
        names = pl.Series(columns.HISTORY, np.arange(len(rows)))
        return lists_frame(lists, self.item_ids, names, item_filter.slots)

    def top_items(
        self, history: Sequence[Any], k: int = 10, *,
        hide_seen: bool = False, allow: Ids | None = None, deny: Ids | None = None,
        unknown: str = "error", as_of: TimeLike | None = None,
    ) -> list[tuple[Any, float]]:  # fmt: skip
        """Return the next items after one history as plain pairs (item id, score), best first.

        history: item ids, oldest first, or pairs (item id, time). The list is that of
        `recommend_histories`, which takes longer because it builds a frame, and has more options.

        Examples
        --------
        >>> import talerec as tr
        >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
        >>> len(model.top_items([3, 5], k=2))
        2
        """
        options = RecommendOptions(k, hide_seen, allow, deny, as_of=as_of, unknown=unknown)
        rows = self._encode_histories([history], options)
        lists = rank_top(self, rows, k, options.build_filter(self))
        count = int(lists.counts[0])
        names = self.fitted.items.take_ids(lists.items[0, :count])
        return list(zip(names, lists.scores[0, :count].tolist(), strict=True))

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """Recommend items after one item alone, without the item: columns item_id, score, rank.

        item: an external id; an unknown one is a TalerecError. k: the length of the list.
        """
        history = Histories.from_ids([[item]], self.fitted.items, "error")
        lists = rank_top(self, history, k, ItemFilter(hide_seen=True))
        return lists_frame(lists, self.item_ids, pl.Series("item", [0])).drop("item")

    def audience(
        self, item: Any, k: int = 100, *, hide_seen: bool = False, as_of: TimeLike | None = None
    ) -> pl.DataFrame:
        """Return the users of the training log who are most likely to take an item next.

        Parameters
        ----------
        item : id
            An item of the model; an unknown one is a TalerecError.
        k : int
            Number of users; fewer if not as many have a score for the item.
        hide_seen, as_of
            Leave out users who have the item; the request time, as for `recommend`.

        Returns
        -------
        polars.DataFrame
            Columns user_id, list_rank (the item's rank in the user's list), lead (its score less
            that of the best other item, as a share of the list's score range; null beyond the first
            hundred of a list) and rank. Sorted by list_rank, then by lead: scores of different
            users cannot be compared.

        Examples
        --------
        >>> import talerec as tr
        >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
        >>> model.audience(model.item_ids[0], k=3).columns
        ['user_id', 'list_rank', 'lead', 'rank']
        """
        from talerec.models.core.audience import audience_frame, rank_audience

        log = self._training_log("recommend_histories")
        position = int(self.fitted.items.positions([item], "item", "error")[0])
        options = RecommendOptions(k, hide_seen, as_of=as_of)
        users = np.arange(len(log.users))
        return audience_frame(log, rank_audience(self, log, users, position, options))

    def explain(
        self, history: Sequence[Any], item: Any, *,
        hide_seen: bool = False, allow: Ids | None = None, deny: Ids | None = None,
        where: str | None = None, boost: BoostSpec | None = None, unknown: str = "error",
        as_of: TimeLike | None = None, by: str = "rows", context: Context | None = None,
    ) -> pl.DataFrame:  # fmt: skip
        """Return what each row of a history, and each boost, contributes to the score of an item.

        An item that occurs more than once in the history has its contribution in its last row. A
        model that scores items without a history adds a row whose item_id is null. With `boost`,
        each boost that applies to the item adds a row; its score range is that of the list with the
        other options.

        Parameters
        ----------
        history : list of ids, or of (id, time)
            The items of the history, oldest first.
        item : id
            The item whose score is explained.
        hide_seen, allow, deny, where
            Which items the list has whose score range `boost` refers to, as for `recommend`.
        boost, unknown, as_of, context
            Fractions of the score range to add by column and value, ``{"brand": {"X": 0.2}}``;
            "error" or "skip" for unknown ids; the request time and situation.
        by : "rows" or "families"
            "families": what families of features add, for a model that ranks by them (the ranker).

        Returns
        -------
        polars.DataFrame
            Columns item_id, contribution; the contributions sum to the score. With `boost`, also a
            column boost with the column and the value: brand=X. By families: columns family,
            reason, contribution and share (of the sum of absolute contributions), largest first;
            they sum to the score without boosts. No rows if the score is not a sum over families.
        """
        if isinstance(history, str | int):
            message = f"history is {history!r}, not a list of items; use explain_user for a user"
            raise TalerecError(message, "history")
        options = RecommendOptions(
            1, hide_seen, allow, deny, where, None, boost, as_of, unknown, context
        )
        rows = self._encode_histories([history], options)
        return self._explain_history(rows, item, options, by)

    def explain_user(
        self, user: Any, item: Any, *,
        hide_seen: bool = False, allow: Ids | None = None, deny: Ids | None = None,
        where: str | None = None, boost: BoostSpec | None = None, unknown: str = "error",
        as_of: TimeLike | None = None, by: str = "rows", context: Context | None = None,
    ) -> pl.DataFrame:  # fmt: skip
        """Explain the score of an item for a user of the training log.

        Parameters
        ----------
        user : id
            A user of the training log.
        item : id
            The item whose score is explained.
        hide_seen, allow, deny, where
            Rules of the list whose score range scales `boost`, as for `recommend`; they have no
            effect without `boost`.
        boost : dict, optional
            Fractions of the score range to add by column and value, ``{"brand": {"X": 0.2}}``.
        unknown : "error" or "skip"
            What unknown ids in `allow` and `deny` do; an unknown user or item is always an error.
        as_of : time, optional
            The request time; default: right after the last row of the log.
        context : optional
            The situation of the request: values of context columns.
        by : "rows" or "families"
            Rows of the history, or families of features, as for `explain`.

        Returns
        -------
        polars.DataFrame
            As for `explain`; the contributions sum to the score that `recommend` gives the item.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> model = tr.Markov().fit(log)
        >>> best = model.recommend([1], k=1)
        >>> contributions = model.explain_user(1, best["item_id"][0])["contribution"]
        >>> abs(contributions.sum() - best["score"][0]) < 1e-6
        True
        """
        options = RecommendOptions(
            k=1, hide_seen=hide_seen, allow=allow, deny=deny, where=where, per=None, boost=boost,
            as_of=as_of, unknown=unknown, context=context,
        )  # fmt: skip
        log = self._training_log("explain")
        position = log.users.positions([user], "user", "error")
        history = user_histories(log, position, options.request_time(self.fitted.unit))
        history = apply_context(self, history, context)
        return self._explain_history(history, item, options, by)

    def describe_links(self, items: Array, target: int) -> list[str] | None:
        """Return what each of some items has in common with a target, as text.

        items, target: item positions. None, as here, for models that do not know the content of
        items.
        """
        return None

    def describe_base(self, history: Histories, target: int) -> str | None:
        """Return why a target has a score that no row of one history contributes, as text.

        target: an item position. None, as here, for models that have one reason for all items.
        """
        return None

    def _training_log(self, alternative: str) -> Log:
        """Return the training log; TalerecError if the model was saved without histories.

        alternative: the method that the message recommends instead.
        """
        if self.fitted.log is None:
            raise TalerecError(f"this model was saved without histories: use {alternative}")
        return self.fitted.log

    def _explain_history(
        self, history: Histories, item: Any, options: RecommendOptions, by: str
    ) -> pl.DataFrame:
        """Return the contributions of one history, and of boosts, to the score of an item.

        history: item positions, oldest first. `item` is an external id. options: with `boost`
        (additions to scores by column and value) the frame has a column boost, too. Columns:
        item_id, contribution; a row with item_id null is the part of the score that no history row
        contributes. by: "rows" for that, "families" for families of features.
        """
        if by not in _EXPLAINED_BY:
            raise TalerecError(f"`by` is {by!r}; it takes rows or families", "by")
        fitted, history = self.fitted, history.slice(0, 1)  # without rows that are left out
        target = int(fitted.items.positions([item], "item", "error")[0])
        if by == "families":
            return families_frame(self.explain_families(history, target) or [])
        (contributions,) = next(self.explain_targets(history, [np.array([target])]))
        names = names_at(fitted.items, history.item)
        if (base := self.base_score(history, target)) is not None:
            names = names.append(pl.Series([None], dtype=names.dtype))
            contributions = np.append(contributions, base)
        frame = pl.DataFrame({columns.ITEM: names, columns.SHARE: contributions})
        if (links := self.describe_links(history.item, target)) is not None:
            shared: list[str | None] = [*links, *[None] * (len(frame) - len(links))]
            if base is not None:
                shared[-1] = self.describe_base(history, target)
            frame = frame.with_columns(pl.Series(columns.SHARED, shared, pl.String))
        if options.boost is None:
            return frame
        item_filter = replace(options, boost=None).build_filter(self)
        boosts = explain_boosts(self, history, target, options.boost, item_filter)
        return append_boosts(frame, boosts)

    def _encode_histories(
        self, histories: Sequence[Sequence[Any]], options: RecommendOptions
    ) -> Histories:
        """Return histories of external item ids as item positions, at `options`' request time.

        A history is a list of ids or of (id, time). options.unknown: "error" or "skip" for unknown
        ids. Rows that are not before the request time are left out.
        """
        items, unit = self.fitted.items, self.fitted.unit
        rows = Histories.from_ids(histories, items, options.unknown, unit)
        return apply_context(self, rows.before(options.request_time(unit)), options.context)
