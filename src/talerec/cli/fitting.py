"""Commands that make and check models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from talerec.cli.app import Panel, command, reporting, run_service
from talerec.cli.groups import Choice, Engine, Source
from talerec.cli.options import (
    Artifact,
    DemoFolder,
    DemoServe,
    Items,
    Json,
    NewArtifact,
    NoHistories,
    OneModel,
    Port,
    Rows,
    Seed,
    Ties,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.base import Model


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
    """List the models: parameters, defaults, meaning, search ranges, and the paper of each."""
    from talerec.models import MODELS, model_class, params

    kinds = [
        {
            "model": kind.name,
            "about": (kind.__doc__ or "").strip().splitlines()[0],
            "paper": kind.paper,
            "parameters": params.described(kind),
        }
        for kind in ([model_class(name)] if name else MODELS.values())
    ]
    if json:
        from talerec.cli import terminal

        terminal.as_json(kinds)
    else:
        from talerec.cli import results

        results.models(kinds)


@command(
    Panel.MODELS,
    "talerec fit events.csv -o shop.tale",
    "talerec fit events.csv -o shop.tale --model tale --set reg=200 --set decay=1/2",
    "talerec fit events.csv -o shop.tale --items products.csv --params best.json",
    "talerec fit events -o shop.tale --model tale --engine spark --master spark://host:7077",
)
def fit(
    source: Source,
    out: NewArtifact,
    choice: Choice,
    engine: Engine,
    ties: Ties = "file",
    items: Items = None,
    no_histories: NoHistories = False,
    json: Json = False,
) -> None:
    """Learn from every row of a log and save the model."""
    from talerec import artifact

    made = choice.make()
    artifact.check_target(out)
    engine.check()
    if engine.is_spark and items is not None:
        raise TalerecError("--items goes with --engine local: Spark keeps no item table")
    with reporting(json):
        if engine.is_spark:
            _fit_on_spark(made, source, ties, engine, out)
        else:
            made.fit(source.read(ties, items)).save(out, histories=not no_histories)
    manifest = artifact.read_manifest(out)
    if json:
        from talerec.cli import terminal

        terminal.as_json({"path": str(out), **manifest})
    else:
        from talerec.cli import results

        results.fitted(out, manifest)


def _fit_on_spark(model: Model, source: Source, ties: str, engine: Engine, out: Path) -> None:
    """Fit on a cluster and save; users' rows stay in the log."""
    from talerec import spark  # says so itself where pyspark is missing

    spark.check_model(model)
    conf = engine.conf
    names = spark.Columns(*source.names, source.time_unit, source.any_time)
    with spark.connected(engine.master, conf) as session:
        spark.fit(
            model, source.log, out, session=session, names=names, work=engine.work, ties=ties,
            core=source.core, drop_duplicates=source.drop_duplicates,
        )  # fmt: skip


@command(Panel.MODELS, "talerec verify shop.tale")
def verify(model: Artifact, json: Json = False) -> None:
    """Read every byte of a saved model, check it against its manifest, and look at every number."""
    from talerec import artifact
    from talerec.cli import tables, terminal
    from talerec.models import load

    load(model, verify=True)
    version = artifact.read_manifest(model)["version"]
    if json:
        terminal.as_json({"path": str(model), "ok": True, "version": version})
    else:
        tables.line(f"{model} is whole (version {version})")
