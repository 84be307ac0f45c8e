"""Commands that fit, update, list and check models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.app import Context, Panel, command, explicit_options, print_warning
from talerec.cli.completion import complete_models
from talerec.cli.groups import EngineOptions, LaterLogSource, LogSource, ModelChoice
from talerec.cli.item_tables import ItemTableOptions, report_new_items
from talerec.cli.options import Artifact, Json, Port, Rows, Seed, Ties, argument, flag, option, out
from talerec.cli.refit_options import (
    READ_WITH,
    changed_options,
    fit_options,
    naming_options,
    read_rows,
    restore_options,
)
from talerec.cli.terminal import (
    format_timings,
    print_json,
    print_line,
    print_note,
    reporting,
    show_notes,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    import polars as pl

    from talerec.models import Drift
    from talerec.models.core import Model

_MANY_MORE = 10  # times as many rows in the old model make a replacement suspicious


@command(
    Panel.START, "talerec demo", "talerec demo --serve", "talerec demo --rows 200000 -o big-demo"
)
def demo(
    rows: Rows = 60_000,
    seed: Seed = 7,
    folder: Annotated[Path, out("DIR", "Folder for the report and the model.")] = Path(
        "talerec-demo"
    ),
    serve: Annotated[
        bool, flag("--serve", "Then serve the model on this machine, with a page to try it.")
    ] = False,
    port: Port = 8080,
) -> None:
    """Fit, compare and explain models on a synthetic shop: start here."""
    # run_demo prints the comparison and saves the default model; run_service serves it over HTTP
    from talerec.cli.demo import run_demo
    from talerec.cli.serve import run_service

    with show_notes(quiet=True):
        target = run_demo(rows, seed, folder)
    if serve:
        run_service(target, None, port=port)


@command(Panel.MODELS, "talerec models", "talerec models slist")
def models(
    name: Annotated[
        str | None, argument("NAME", "Only this model.", complete_models, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List all models, or show one model: its parameters, search ranges and paper."""
    from talerec.cli import results
    from talerec.models import MODELS, model_class
    from talerec.models.core import describe_params, registry

    entries = [
        {
            "model": kind.name,
            "about": (kind.__doc__ or kind.name).strip().splitlines()[0],
            "good_for": kind.summary,
            "extra": kind.extra,
            "paper": kind.paper,
            "parameters": describe_params(kind),
        }
        for kind in (
            [model_class(name)] if name else [*MODELS.values(), *registry.third_party_classes()]
        )
    ]
    if json:
        print_json(entries)
    elif name is None:
        results.print_models(entries)
    else:
        results.print_model(entries[0])


HistoriesTo = Annotated[
    str | None,
    option(
        "--histories-to",
        "PLACE",
        "Where Spark writes user histories: a folder, or a store, postgresql://HOST/NAME.",
    ),
]
NoHistories = Annotated[bool, flag("--no-histories", "Save the model without user histories.")]


@command(
    Panel.MODELS,
    "talerec fit events.csv -o shop.tale",
    "talerec fit events.csv -o shop.tale --model tale --set reg=200 --set decay=1/2",
    "talerec fit events.csv -o shop.tale --items products.csv --params best.json",
    "talerec fit events -o shop.tale --engine spark --master spark://host:7077",
)
def fit(
    source: LogSource,
    path: Annotated[Path, out("NAME.tale", "Folder to save the model to.")],
    choice: ModelChoice,
    engine: EngineOptions,
    table: ItemTableOptions,
    ties: Ties = "file",
    no_histories: NoHistories = False,
    histories: Annotated[
        bool, flag("--histories", "Save user histories in a model that is fitted on Spark.")
    ] = False,
    histories_to: HistoriesTo = None,
    updatable: Annotated[
        bool, flag("--updatable", "Save what talerec update needs to add later rows.")
    ] = False,
    json: Json = False,
) -> None:
    """Fit a model to all rows of a log and save it."""
    # source, choice, engine, table: options of the log, the model, Spark, and the item table
    from talerec.artifact import check_target, read_manifest
    from talerec.data.read import refuse_overwriting

    model = choice.build(source)
    refuse_overwriting([path], [*source.log, table.items, choice.params, source.user_table])
    check_target(path)
    engine.check()
    table.check()
    if updatable:
        _check_updatable(model, source, engine, no_histories)
    _check_histories(engine, histories, histories_to)
    with reporting(json):
        items = table.read(source.item)
        if engine.is_spark:
            place = histories if histories_to is None else histories_to
            _fit_on_spark(model, source, ties, engine, path, place, items)
        else:
            log = table.attach(source.read(ties, needs_time=model.needs_time), items)
            _warn_of_replaced_model(path, log.rows, updatable)
            training = model.fit(log).fitted.training
            # saved with the model: `update` and `lists` read later logs with the same options
            training[READ_WITH] = changed_options(source) | changed_options(table)
            model.save(path, histories=not no_histories, updatable=updatable)
            report_new_items(model, log)
    manifest = read_manifest(path)
    if json:
        from talerec.models.core import add_former_names

        params = add_former_names(type(model), manifest["params"])
        print_json({"path": str(path), **manifest, "params": params})
    else:
        from talerec.cli.results import print_fit

        print_fit(path, manifest)


def _check_updatable(
    model: Model, source: LogSource, engine: EngineOptions, no_histories: bool
) -> None:
    """Raise TalerecError if --updatable does not work with the model or with another option.

    --updatable saves what a later update of the model needs. It does not work with --core,
    --no-histories (`no_histories`) and --engine spark.
    """
    from talerec.models import check_updatable

    check_updatable(model)
    conflicts = {
        "--core": source.core is not None,
        "--no-histories": no_histories,
        "--engine spark": engine.is_spark,
    }
    for flags, is_set in conflicts.items():
        if is_set:
            raise TalerecError(f"--updatable does not work with {flags}")


def _check_histories(engine: EngineOptions, histories: bool, place: str | None) -> None:
    """Raise an error for --histories and --histories-to together, or either without Spark.

    `histories` is whether --histories is set; `place` is the value of --histories-to.
    """
    if histories and not engine.is_spark:
        raise TalerecError("--histories needs --engine spark; the local engine always saves them")
    if place is not None and not engine.is_spark:
        raise TalerecError(
            "--histories-to needs --engine spark; talerec events import fills a store from here"
        )
    if histories and place is not None:
        raise TalerecError("use --histories or --histories-to, not both")


def _warn_of_replaced_model(path: Path, n_rows: int, updatable: bool) -> None:
    """Print warnings if the model saved at `path` has what the model that replaces it lacks.

    That is: rows (it was fitted on at least 10 times `n_rows`), or that it can be updated. `n_rows`
    and `updatable` are those of the new model. Without a readable model at `path`, nothing is
    printed.
    """
    from talerec.artifact import read_manifest

    try:
        training = read_manifest(path)["training"]
    except TalerecError:
        return
    if training.get("updatable") and not updatable:
        print_warning(f"{path} could be updated, and its replacement cannot: fit with --updatable")
    rows_before = training.get("rows", 0)
    if rows_before >= _MANY_MORE * n_rows:
        print_warning(
            f"{path} was fitted on {rows_before:,} rows and is replaced by a model of {n_rows:,}; "
            "to add rows, use talerec update"
        )


def _fit_on_spark(
    model: Model,
    source: LogSource,
    ties: str,
    engine: EngineOptions,
    path: Path,
    histories: bool | str,
    items: pl.DataFrame | None,
) -> None:
    """Fit a model on a Spark cluster and save it to the folder `path`.

    `source` and `engine` have the options to read the log and to reach the cluster. `ties` is the
    order of a user's rows with equal times. `histories` is whether the model contains the user
    histories, or the place (a folder or a store) that they are written to instead; `items` is the
    item table, None for none.
    """
    from talerec import spark  # reports by itself that pyspark is missing

    spark.check_fit(model)
    with engine.session(source) as job:
        spark.fit(model, output=path, ties=ties, histories=histories, items=items, **job)


# -- updates ---------------------------------------------------------------------------------------


@command(
    Panel.MODELS,
    "talerec fit events.csv -o shop.tale --model tale --updatable",
    "talerec update shop.tale today.csv",
    "talerec update shop.tale today.csv --items products.csv",
    "talerec update shop.tale --items products.csv",
    "talerec update shop.tale today.csv --check",
)
def update(
    invocation: Context,
    model: Artifact,
    source: LaterLogSource,
    table: ItemTableOptions,
    tolerance: Annotated[
        float,
        option(
            "--tolerance",
            "X",
            "Largest error of a weight, as a share of its target's largest weight, that leaves the"
            " target as it is; 0 solves all targets.",
        ),
    ] = 0.2,
    check: Annotated[
        bool,
        flag("--check", "Compare the updated model with a new fit of all rows, which takes a fit."),
    ] = False,
    json: Json = False,
) -> None:
    """Add later rows to a saved model without a refit; they are read as the fit read its log.

    An update keeps what the fit learned. --check says what a fit would learn today. Without a log,
    --items alone changes the item table, and adds its new items to a model that scores them.
    """
    # source, table: options of the later log, and of an item table
    from talerec.models import check_drift, load

    with reporting(json):
        result = _update_artifact(model, source, table, tolerance, explicit_options(invocation))
        drift = check_drift(load(model)) if check else None
    if json:
        print_json(result if drift is None else {**result, "drift": drift._asdict()})
        return
    _print_update(model, result)
    if drift is not None:
        _print_drift(drift)


def _update_artifact(
    path: Path, source: LogSource, table: ItemTableOptions, tolerance: float, explicit: set[str]
) -> dict[str, Any]:
    """Add the rows of a log to the model saved at `path`, and save it unless nothing is new.

    The log and the item table are read with the options that the fit used; `explicit` names the
    options that the command line sets instead. The returned dict has the path, the counts of
    `models.update`, "rows_known" (rows of the log that the model had already), "described" (an item
    table was read), the version and the training record. `tolerance` is the error of a weight up to
    which a target is not solved again. Other updates of the model wait; if a fit or an install
    replaces it meanwhile, TalerecError.
    """
    from talerec.artifact import hold_for_update, read_artifact, read_manifest
    from talerec.models import check_updatable, restore_bundle, update

    if source.core is not None:
        raise TalerecError("--core is for fit; an update keeps the model's users and items")
    if not source.log and table.items is None:
        raise TalerecError("an update needs a log (LOG), an item table (--items), or both")
    table.check()
    with hold_for_update(path):
        bundle = read_artifact(path)
        training = bundle.facts["training"]
        model = restore_bundle(bundle, path)
        check_updatable(model, tolerance)
        if not training.get("updatable"):
            raise TalerecError(f"{path} was fitted without --updatable; refit with --updatable")
        saved = fit_options(training, source, explicit)
        source, table = restore_options(source, saved), restore_options(table, saved)
        with naming_options(saved):
            items = table.read(source.item)
            rows = read_rows(model, source) if source.log else None
        counts = update(model, rows, tolerance=tolerance, items=items)
        if counts.rows or items is not None:
            model.save(path, updatable=True, replaces=bundle.facts["version"])
        after = read_manifest(path)
    return {
        "path": str(path),
        **asdict(counts),
        "rows_known": 0 if rows is None else rows.rows - counts.rows,
        "described": items is not None,
        "version": after["version"],
        "training": after["training"],
    }


def _print_update(path: Path, result: dict[str, Any]) -> None:
    """Print what an update changed in the model at `path`.

    `result` has the counts of new rows, users and items, "described" (a new item table), "targets"
    and "solved": a target is an item with a column of weights, and solved ones were solved again;
    also version and seconds.
    """
    rows_known = f" ({result['rows_known']:,} were known already)" if result["rows_known"] else ""
    added = f"{result['added']:,} new items without events" if result["added"] else ""
    if not result["rows"] and not result["described"]:
        print_line(f"{path}: no new rows{rows_known}")
        return
    if not result["rows"]:
        table = f"new item table with {added}" if added else "new item table"
        print_line(f"{path}: no new rows{rows_known}; {table}, version {result['version']}")
        return
    print_line(
        f"{path}: {result['rows']:,} new rows{rows_known}, {result['users']:,} new users, "
        f"{result['items']:,} new items{added and f', {added}'}; {result['solved']:,} of "
        f"{result['targets']:,} targets solved, version {result['version']}"
    )
    print_note(format_timings(result["seconds"]))


def _print_drift(drift: Drift) -> None:
    """Print how far an updated model is from a new fit, and what the fit would learn."""
    print_line(
        f"A new fit would list {drift.overlap:.1%} of the same items (top {drift.k} of "
        f"{drift.users:,} users)."
    )
    if drift.has_drifted:
        print_line("It would learn otherwise (+ today, - before):")
        for line in drift.learned_today:
            print_line(f"+ {line}")
        for line in drift.learned_before:
            print_line(f"- {line}")


@command(Panel.MODELS, "talerec verify shop.tale")
def verify(model: Artifact, json: Json = False) -> None:
    """Check every file of a saved model against its manifest, and every number in it."""
    from talerec.artifact import read_manifest
    from talerec.models import load

    load(model, verify=True)
    version = read_manifest(model)["version"]
    if json:
        print_json({"path": str(model), "ok": True, "version": version})
    else:
        print_line(f"{model} is intact (version {version})")
