"""Tempo on a cluster: what it learns of a log beside the Gram, by the functions of one machine on parts of the log."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from talerec.models.core.params import AUTO
from talerec.models.tempo.holdout import (
    Questions,
    are_few,
    chosen_end,
    end_choices,
    known_answers,
    wanted_items,
)
from talerec.models.tempo.learning import appeal, first_memories, learned
from talerec.models.tempo.log_statistics import Habits
from talerec.models.tempo.model import Tempo
from talerec.models.tempo.popularity import Memories, memories
from talerec.models.tempo.query_params import Numbers
from talerec.ranking.blocks import block_of
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array
from talerec.spark import blocks, tasks
from talerec.spark import log_statistics as habits
from talerec.spark.gram import Paced
from talerec.spark.partitions import Rows, time_cuts
from talerec.spark.session import Run, run_tasks, send_tasks
from talerec.spark.sizes import Sizes
from talerec.spark.solve import Named, Work, solve_rows
from talerec.spark.trend import count_trends


class Held(NamedTuple):
    """The rows of a first fit, and the questions about the others."""

    rows: Rows
    asking: habits.Asking
    counts: Array  # of items in these rows
    questions: tuple[Questions, Questions]  # fresh ones, and late ones


@dataclass(frozen=True, eq=False)
class Study:
    """A log in parts, and the tempo that is learned from it."""

    run: Run
    model: Tempo
    rows: Rows
    parts: int
    sizes: Sizes
    position: Array  # of items, by rank
    sampled: Array  # times (see `parts.time_cuts`)
    trends: tasks.TrendPlan

    def weights(self, named: Named) -> Weights:
        """The weights of the whole log, with the numbers that it chooses."""
        model = self.model
        own = self.habits_of(self.rows)
        self.order_by_time(self.rows)
        numbers = self._numbers(own) if model.learn == AUTO else None
        counts = blocks.read_array(self.run.folder, "counts-0")
        if numbers is not None and numbers.lift[0]:
            factor = np.exp(float(numbers.lift[0]) * appeal(counts)).astype(np.float32)
            named = named._replace(factor=factor)
        work = self._work(self.rows, own)
        leads = solve_rows(self.run, work, self.sizes, self.parts, self.position, named)
        return model.assembled(
            block_of(leads), own, numbers, counts, lambda lengths: self._memories(lengths)
        )

    def habits_of(self, rows: Rows) -> Habits:
        return habits.habits_of(self.model, rows, self.parts)

    def _work(self, rows: Rows, own: Habits) -> Work:
        """What is solved to get weights from rows."""
        model = self.model
        if model.trend:
            rows = count_trends(self.run, rows, self.parts, self.trends, model.window, "both")
        counting = Paced(model, own.interval, own.joint)
        return Work(rows, counting, model, even=model.even)

    # -- rows in the order of time --

    def order_by_time(self, rows: Rows) -> None:
        """Put all rows into the order of time, in files."""
        stretches = max(1, math.ceil(self.sizes.rows / self.sizes.task_rows))
        cuts, position = time_cuts(self.sampled, -1, stretches), self.position
        count = len(cuts) + 1
        sent = send_tasks(
            self.run, self.parts, lambda p: habits.time_cells(rows, p, cuts, position)
        )
        with self.run.stage("habits"):
            run_tasks(sent, count, lambda t, b: habits.save_stretch(b, t, rows))
            self._alone(lambda: habits.join_stretches(rows, count))

    def _memories(self, lengths: list[float]) -> Memories:
        """Memories of what was popular in all rows."""
        rows, span = self.rows, self.model.span
        with self.run.stage("habits"):
            self._alone(
                lambda: habits.save_memories(memories(habits.in_time(rows), span, lengths), rows)
            )
        return habits.load_memories(rows)

    def _alone(self, work: Callable[[], None]) -> None:
        """Run work that looks at all rows in order as one task: it reads files from front to back, and holds no rows."""
        run_tasks(self.run.numbers(1), 1, lambda _, __: work())

    # -- learning --

    def _numbers(self, own: Habits) -> Numbers | None:
        """The numbers that the log chooses; None where it is too small to ask enough questions."""
        held = self.held_back(every_item=own.does_repeat)
        if held is None:
            return None
        first, asking, counts, questions = held
        wanted = np.empty(first.items, bool)
        wanted[self.position] = asking.wanted
        habits_then = self.habits_of(first)
        study = replace(self, model=self.model.first_fit(), rows=first)
        work = study._work(first, habits_then)._replace(wanted=asking.wanted)
        leads = solve_rows(self.run, work, self.sizes, self.parts, self.position, None)
        span = self.model.span
        with self.run.stage("learn"):
            self._alone(
                lambda: habits.save_memories(first_memories(habits.in_time(first), span), first)
            )
            time = habits.in_time(first).time
            known = self.model.known(
                block_of(leads),
                habits_then,
                habits.load_memories(first),
                counts,
                (int(time[0]), int(time[-1])),
            )
            return learned(known, questions, wanted)

    def held_back(self, *, every_item: bool) -> Held | None:
        """Save the rows of a first fit, and questions about the others; None where the log is too small to ask enough."""
        asking = self._asking(every_item)
        first = self.rows._replace(kind="first_")
        self._ask(first, asking)
        self.order_by_time(first)
        counts = blocks.read_array(self.run.folder, "first_counts-0")
        fresh, late = (
            known_answers(habits.questions(first, kind, self.parts, self.position), counts > 0)
            for kind in habits.KINDS
        )
        return None if are_few(fresh) else Held(first, asking, counts, (fresh, late))

    def _asking(self, every_item: bool) -> habits.Asking:
        """Where the first fit ends, and what is asked for."""
        rows, parts = self.rows, self.parts
        ends = end_choices(habits.in_time(rows).time)
        with self.run.stage("learn"):
            run_tasks(
                self.run.numbers(parts), parts, lambda p, _: habits.save_across(rows, p, ends)
            )
        across = sum(rows.arrays("across", parts))
        wanted = wanted_items(rows.items, every_item=every_item)
        return habits.Asking(chosen_end(ends, np.asarray(across)), wanted[self.position])

    def _ask(self, first: Rows, asking: habits.Asking) -> None:
        """Choose who is asked, and save the questions and the rows of the first fit."""
        rows, parts, numbers = self.rows, self.parts, self.run.numbers(self.parts)
        with self.run.stage("learn"):
            run_tasks(numbers, parts, lambda p, _: habits.save_askers(rows, p, asking))
        chosen = [habits.chosen_askers(rows, kind, parts, self.sizes.rows) for kind in habits.KINDS]

        def ask(part: int, _: blocks.Batches) -> None:
            mine = (chosen[0][part], chosen[1][part])
            habits.save_questions(rows, first, part, asking, mine)

        with self.run.stage("learn"):
            run_tasks(self.run.numbers(parts), parts, ask)
