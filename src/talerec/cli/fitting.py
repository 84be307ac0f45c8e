"""Commands that make and keep models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from talerec.cli.app import (
    Cleaning,
    app,
    check_engine,
    examples,
    fit_on_spark,
    make_model,
    read,
    run_service,
    talking,
)
from talerec.cli.options import (
    AnyTime,
    Artifact,
    Core,
    Item,
    Items,
    Json,
    LogFile,
    ModelName,
    Params,
    Settings,
    Ties,
    Time,
    Unique,
    Unit,
    User,
    flag,
    option,
)
from talerec.errors import TalerecError

_PANEL = "Models"
_SPARK = "Spark"


@app.command(
    rich_help_panel="Start here",
    epilog=examples(
        "talerec demo", "talerec demo --serve", "talerec demo --rows 200000 -o big-demo"
    ),
)
def demo(
    rows: Annotated[int, option("--rows", metavar="N", help="Rows of the shop's log.")] = 60_000,
    seed: Annotated[int, option("--seed", metavar="N", help="Another seed is another shop.")] = 7,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="Folder for the report and the model.")
    ] = Path("talerec-demo"),
    serve: Annotated[
        bool, flag("--serve", "Then serve the shop's model on this machine, with a page to try it.")
    ] = False,
    port: Annotated[int, option("--port", metavar="N", help="Of that service.")] = 8080,
) -> None:
    """Fit, compare and explain on a made-up shop: start here."""
    from talerec.cli import terminal
    from talerec.cli.demo import run

    with terminal.setup_logging(quiet=True):
        target = run(rows, seed, out)
    if serve:
        run_service(target, None, port=port)


@app.command(rich_help_panel=_PANEL, epilog=examples("talerec models", "talerec models slist"))
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model alone.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Every model: its parameters, their defaults, meaning and search ranges, and where it comes from."""
    from talerec.cli import terminal
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
        terminal.as_json(kinds)
    else:
        terminal.models(kinds)


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec fit events.csv -o shop.tale",
        "talerec fit events.parquet -o shop.tale --set reg=200 --set decay=1/2",
        "talerec fit events -o shop.tale --engine spark --master spark://host:7077",
    ),
)
def fit(
    log: LogFile,
    output: Annotated[
        Path,
        option("-o", "--output", metavar="NAME.tale", help="Where the model goes (a folder)."),
    ],
    model: ModelName = None,
    params: Params = None,
    set: Settings = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    no_histories: Annotated[
        bool,
        flag("--no-histories", "Do not keep users' rows with the model (no recommend --users)."),
    ] = False,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    ties: Ties = "file",
    drop_duplicates: Unique = False,
    items: Items = None,
    engine: Annotated[
        str, option("--engine", metavar="local|spark", help="Where the fit runs.", panel=_SPARK)
    ] = "local",
    master: Annotated[
        str | None,
        option("--master", metavar="URL", help="The cluster, spark://host:7077.", panel=_SPARK),
    ] = None,
    spark_conf: Annotated[
        list[str],
        option(
            "--spark-conf",
            metavar="KEY=VALUE",
            help="A setting of Spark; repeat for more.",
            panel=_SPARK,
        ),
    ] = [],  # noqa: B006
    work: Annotated[
        Path | None,
        option(
            "--work",
            metavar="DIR",
            help="Folder that all executors see; next to the model by default.",
            panel=_SPARK,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Learn from every row of a log and save the model."""
    from talerec import artifact
    from talerec.cli import terminal

    made = make_model(model, params, set)
    artifact.check_target(output)
    names = (user, item, time)
    cleaning: Cleaning = {"core": core, "drop_duplicates": drop_duplicates, "ties": ties}
    check_engine(engine, master=master, spark_conf=spark_conf, work=work)
    with talking(json):
        if engine == "spark":
            if items is not None:
                raise TalerecError("--items goes with --engine local: Spark keeps no side table")
            fit_on_spark(
                made, log, output, names, time_unit, any_time, cleaning, master, spark_conf, work
            )
        else:
            made.fit(read(log, names, time_unit, any_time, **cleaning, items=items))
            made.save(output, histories=not no_histories)
    manifest = artifact.read_manifest(output)
    if json:
        terminal.as_json({"path": str(output), **manifest})
    else:
        terminal.fitted(output, manifest)


@app.command(rich_help_panel=_PANEL)
def verify(model: Artifact, json: Json = False) -> None:
    """Read every byte of a saved model and check it against its manifest."""
    from talerec import artifact
    from talerec.cli import terminal

    version = artifact.read(model, verify=True).facts["version"]
    if json:
        terminal.as_json({"path": str(model), "ok": True, "version": version})
    else:
        terminal.line(f"{model} is whole (version {version})")
