"""Blends on a cluster: parts are fitted twice, and their weights learned on the driver."""

from __future__ import annotations

from dataclasses import replace

from talerec.models.blend import Blend, learn_part_weights, stack_parts
from talerec.models.core import Fitted, Model
from talerec.models.tempo import Tempo
from talerec.runtime import Array
from talerec.spark.fit_model import FitOptions
from talerec.spark.log_stats import LogStats, partition_rows
from talerec.spark.parts import fit_final_parts, fit_parts, nested_run, save_training_rows
from talerec.spark.session import ClusterRun
from talerec.spark.tempo import TempoFit


def fit_blend(run: ClusterRun, stats: LogStats, blend: Blend, options: FitOptions) -> Fitted:
    """Return the fitted state of a blend, which adds the weighted scores of its parts.

    Its weights are those of the parts, stacked. Parts (models) of weight 0 are not fitted. The
    others write their tables of weights to folders below `options.table`, and the first of them
    writes the users' rows. run: the session and a shared folder; stats: the log's rows as a Spark
    table, with counts.
    """
    parts = blend.build_parts()
    part_weights, is_enough = blend.choose_weights(
        parts, lambda: _learn_blend_weights(run, stats, parts, options)
    )
    fit_final_parts(run, stats, parts, options, part_weights != 0)
    fitted_parts = [part if part.is_fitted else None for part in parts]
    states = [part.fitted for part in fitted_parts if part is not None]
    recent_counts = [state.stored_recent_counts for state in states]
    return replace(
        states[0],
        weights=stack_parts(fitted_parts, part_weights, is_enough),
        log=next((state.log for state in states if state.log is not None), None),
        solver=None,
        seconds=run.clock.seconds,
        stored_recent_counts=next((counts for counts in recent_counts if counts is not None), None),
    )


def _learn_blend_weights(
    run: ClusterRun, stats: LogStats, parts: list[Model], options: FitOptions
) -> Array | None:
    """Return the learned weight of each part of a blend; None if queries are too few.

    A held-out query is a user's history and, as target, the item of a later row that is not trained
    on. The parts (models) are fitted to the rest of the log; their weights are those that rank the
    targets best. run: the session and a shared folder; stats: the log's rows as a Spark table, with
    counts. The split is that of the model tempo.
    """
    tempo = Tempo()
    holdout_run = nested_run(run, "questions")
    tempo_fit = TempoFit(
        partition_rows(holdout_run, stats, tempo, options.ties, options.limits, every_row=True),
        tempo,
    )
    tempo_fit.order_by_time(tempo_fit.log.rows)
    holdout = tempo_fit.split_holdout(every_item=True)
    if holdout is None:
        return None
    train_run = nested_run(run, "first", has_items=False)
    train = save_training_rows(train_run, tempo_fit.log, holdout.rows.load_log)
    fit_parts(train_run, train, parts, options)
    repeats = tempo_fit.load_statistics(holdout.rows).has_repeats
    with run.stage("learn"):
        return learn_part_weights(parts, holdout.queries, len(stats.ids), repeats=repeats)
