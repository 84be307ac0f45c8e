"""Commands that make and check models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from talerec.cli import spark as cluster
from talerec.cli.app import Context, Panel, command, given, reporting, run_service, warn
from talerec.cli.groups import READ_WITH, Choice, Engine, ItemTable, Source, unusual
from talerec.cli.options import (
    Artifact,
    DemoFolder,
    DemoServe,
    Json,
    KeepHistories,
    NewArtifact,
    NoHistories,
    OneModel,
    Port,
    Rows,
    Seed,
    Ties,
    Tolerance,
    Updatable,
)
from talerec.cli.spark import HistoriesTo
from talerec.errors import TalerecError

if TYPE_CHECKING:
    import polars as pl

    from talerec.models.core.base import Model


@command(
    Panel.START,
    "talerec demo",
    "talerec demo --serve",
    "talerec demo --rows 200000 -o big-demo",
)
def demo(
    rows: Rows = 60_000,
    seed: Seed = 7,
    out: DemoFolder = Path("talerec-demo"),
    serve: DemoServe = False,
    port: Port = 8080,
) -> None:
    """Fit, compare and explain models on a made-up shop: start here."""
    from talerec.cli import terminal
    from talerec.cli.demo import run

    with terminal.notes(quiet=True):
        target = run(rows, seed, out)
    if serve:
        run_service(target, None, port=port)


@command(Panel.MODELS, "talerec models", "talerec models slist")
def models(name: OneModel = None, json: Json = False) -> None:
    """List the models; of one, its parameters with defaults, meaning and search ranges, and its paper."""
    from talerec.models import MODELS, model_class
    from talerec.models.core import params
    from talerec.models.core import registry as own

    kinds = [
        {
            "model": kind.name,
            "about": (kind.__doc__ or kind.name).strip().splitlines()[0],
            "good_for": kind.good_for,
            "extra": kind.extra,
            "paper": kind.paper,
            "parameters": params.described(kind),
        }
        for kind in ([model_class(name)] if name else [*MODELS.values(), *own.named()])
    ]
    if json:
        from talerec.cli import terminal

        terminal.as_json(kinds)
    else:
        from talerec.cli import results

        if name is None:
            results.models(kinds)
        else:
            results.model(kinds[0])


@command(
    Panel.MODELS,
    "talerec fit events.csv -o shop.tale",
    "talerec fit events.csv -o shop.tale --model tale --set reg=200 --set decay=1/2",
    "talerec fit events.csv -o shop.tale --items products.csv --params best.json",
    "talerec fit events -o shop.tale --engine spark --master spark://host:7077",
)
def fit(
    source: Source,
    out: NewArtifact,
    choice: Choice,
    engine: Engine,
    table: ItemTable,
    ties: Ties = "file",
    no_histories: NoHistories = False,
    histories: KeepHistories = False,
    histories_to: HistoriesTo = None,
    updatable: Updatable = False,
    json: Json = False,
) -> None:
    """Learn from every row of a log and save the model."""
    from talerec.artifact import format as artifact
    from talerec.data.read import sources

    made = choice.make()
    sources.refuse_overwriting([out], [*source.log, table.items, choice.params])
    artifact.check_target(out)
    engine.check()
    table.check()
    if updatable:
        _check_updatable(made, source, engine, no_histories)
    cluster.check_histories(engine, histories, histories_to)
    with reporting(json):
        described = table.read(source.item)
        if engine.is_spark:
            kept = histories if histories_to is None else histories_to
            _fit_on_spark(made, source, ties, engine, out, kept, described)
        else:
            rows = source.read(ties, needs_time=made.needs_time)
            rows = rows if described is None else rows.with_items(described)
            _warn_of_less(out, rows.rows)
            made.fit(rows).fitted.training[READ_WITH] = unusual(source) | unusual(table)
            made.save(out, histories=not no_histories, updatable=updatable)
    manifest = artifact.read_manifest(out)
    if json:
        from talerec.cli import terminal

        terminal.as_json({"path": str(out), **manifest})
    else:
        from talerec.cli import results

        results.fitted(out, manifest)


def _check_updatable(made: Model, source: Source, engine: Engine, no_histories: bool) -> None:
    """Refuse, by name, what an update could not do again."""
    from talerec.models.updates import refuse

    refuse(made)
    given = {
        "--core": source.core, "--no-histories": no_histories, "--engine spark": engine.is_spark,
    }  # fmt: skip
    for name, value in given.items():
        if value:
            raise TalerecError(
                f"--updatable and {name} do not go together: an update cannot do that again"
            )


_MUCH_LESS = 10


def _warn_of_less(out: Path, rows: int) -> None:
    """A warning where a model of far more rows is about to be replaced."""
    from talerec.artifact import format as artifact

    try:
        before = artifact.read_manifest(out)["training"].get("rows", 0)
    except TalerecError:
        return
    if before >= _MUCH_LESS * rows:
        warn(
            f"{out} was fitted on {before:,} rows, and is replaced by a model of {rows:,}: was talerec update meant?"
        )


@command(
    Panel.MODELS,
    "talerec fit events.csv -o shop.tale --model tale --updatable",
    "talerec update shop.tale today.csv",
    "talerec update shop.tale today.csv --items products.csv",
)
def update(
    context: Context,
    model: Artifact,
    source: Source,
    table: ItemTable,
    tolerance: Tolerance = 0.2,
    json: Json = False,
) -> None:
    """Add rows that came later to a saved model, without starting over; they are read as the fit read its log."""
    from talerec.cli import update as updating

    with reporting(json):
        facts = updating.run(model, source, table, tolerance, given(context))
    updating.show(model, facts, json)


def _fit_on_spark(
    model: Model,
    source: Source,
    ties: str,
    engine: Engine,
    out: Path,
    histories: bool | str,
    items: pl.DataFrame | None,
) -> None:
    """Fit on a cluster and save; users' rows stay in the log, unless they are asked for."""
    from talerec import spark  # says so itself where pyspark is missing

    spark.check_fit(model)
    with cluster.session(source, engine) as told:
        spark.fit(model, output=out, ties=ties, histories=histories, items=items, **told)


@command(Panel.MODELS, "talerec verify shop.tale")
def verify(model: Artifact, json: Json = False) -> None:
    """Read every byte of a saved model, check it against its manifest, and look at every number."""
    from talerec.artifact import format as artifact
    from talerec.cli import tables, terminal
    from talerec.models import load

    load(model, verify=True)
    version = artifact.read_manifest(model)["version"]
    if json:
        terminal.as_json({"path": str(model), "ok": True, "version": version})
    else:
        tables.line(f"{model} is whole (version {version})")
