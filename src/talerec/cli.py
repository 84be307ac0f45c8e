"""The command `talerec`. Each command is a few lines: read, call the library, show."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypedDict

import typer

from talerec.errors import TalerecError
from talerec.options import (
    AnyTime,
    Artifact,
    Core,
    HideSeen,
    Item,
    Items,
    Json,
    K,
    LogFile,
    ModelName,
    Settings,
    Ties,
    Time,
    Unique,
    Unit,
    Unknown,
    User,
    flag,
    option,
)

if TYPE_CHECKING:
    from talerec.log import Log
    from talerec.models.base import Model
    from talerec.prepare import Split

logger = logging.getLogger("talerec")

app = typer.Typer(
    name="talerec",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _examples(*commands: str) -> str:
    return "\n".join(["Examples:", *commands])


def _ids(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


# -- shared steps ----------------------------------------------------------------------------------


class Cleaning(TypedDict):
    """Options that say what becomes of the rows that were read."""

    core: int | None
    drop_duplicates: bool
    ties: str


def _read(
    path: Path,
    names: tuple[str, str, str],
    time_unit: str | None,
    any_time: bool,
    *,
    core: int | None,
    drop_duplicates: bool,
    ties: str = "file",
    items: Path | None = None,
) -> Log:
    """The log as the options ask for it: read, cleaned, ordered."""
    from talerec import prepare, readers

    user, item, time = names
    log = readers.read_log(
        path, user=user, item=item, time=time, time_unit=time_unit, any_time=any_time, items=items
    )
    if drop_duplicates:
        log = prepare.drop_duplicates(log)
    if core is not None:
        log = prepare.k_core(log, core)
    return prepare.order_ties(log, ties)


def _make_model(name: str, settings: list[str]) -> Model:
    from talerec.models import model_class, params

    kind = model_class(name)
    return kind(**params.parse(kind, settings))


@contextmanager
def _talking(json: bool) -> Iterator[None]:
    from talerec import show
    from talerec.threads import thread_count

    thread_count()  # a bad TALEREC_THREADS is said before the work, not in it
    with show.setup_logging(quiet=json), show.bars():
        yield


# -- commands --------------------------------------------------------------------------------------


@app.command(epilog=_examples("talerec demo", "talerec demo --rows 200000 -o big-demo"))
def demo(
    rows: Annotated[int, option("--rows", metavar="N", help="Rows of the shop's log.")] = 60_000,
    seed: Annotated[int, option("--seed", metavar="N", help="Another seed is another shop.")] = 7,
    out: Annotated[
        Path, option("-o", "--out", metavar="DIR", help="Folder for the report and the model.")
    ] = Path("talerec-demo"),
) -> None:
    """Fit, compare and explain on a made-up shop: start here."""
    from talerec import show
    from talerec.demo import run

    with show.setup_logging(quiet=True):
        run(rows, seed, out)


@app.command(
    epilog=_examples(
        "talerec describe events.csv", "talerec describe ratings.tsv --user uid --time ts --core 5"
    )
)
def describe(
    log: LogFile,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Counts, density, intervals, ties and repeats of a log."""
    from talerec import show
    from talerec.description import describe as facts_of

    names = (user, item, time)
    with _talking(json):
        facts = facts_of(
            _read(log, names, time_unit, any_time, core=core, drop_duplicates=drop_duplicates)
        )
    if json:
        show.as_json(facts)
    else:
        show.facts(str(log), facts)


@app.command(epilog=_examples("talerec models", "talerec models slist"))
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model alone.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Every model: its parameters, their defaults, meaning and search ranges, and where it comes from."""
    from talerec import show
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
        show.as_json(kinds)
    else:
        show.models(kinds)


@app.command(
    epilog=_examples(
        "talerec fit events.csv -o shop.tale",
        "talerec fit events.parquet -o shop.tale --set reg=200 --set decay=1/2",
    )
)
def fit(
    log: LogFile,
    output: Annotated[
        Path,
        option("-o", "--output", metavar="NAME.tale", help="Where the model goes (a folder)."),
    ],
    model: ModelName = "tale",
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
    json: Json = False,
) -> None:
    """Learn from every row of a log and save the model."""
    from talerec import artifact, show

    made = _make_model(model, set)
    artifact.check_target(output)
    names = (user, item, time)
    cleaning: Cleaning = {"core": core, "drop_duplicates": drop_duplicates, "ties": ties}
    with _talking(json):
        made.fit(_read(log, names, time_unit, any_time, **cleaning, items=items))
        made.save(output, histories=not no_histories)
    manifest = artifact.read_manifest(output)
    if json:
        show.as_json({"path": str(output), **manifest})
    else:
        show.fitted(output, manifest)


@app.command(
    epilog=_examples(
        "talerec evaluate events.csv",
        "talerec evaluate events.csv --split at:2019-10-01 --set decay=1/512 --json",
    )
)
def evaluate(
    log: LogFile,
    model: ModelName = "tale",
    set: Settings = [],  # noqa: B006
    split: Annotated[
        str,
        option("--split", metavar="leave-one-out|at:TIME", help="What is held back; TIME is UTC."),
    ] = "leave-one-out",
    on: Annotated[
        str, option("--on", metavar="test|validation", help="Which rows are scored.")
    ] = "test",
    k: Annotated[str, option("--k", metavar="K,...", help="Cut-offs.")] = "1,5,10",
    hide_seen: HideSeen = False,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    ties: Ties = "file",
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Hold rows back, fit on the rest, and rank every item for every case."""
    from talerec import evaluation, show
    from talerec.clock import Clock

    made = _make_model(model, set)
    cutoffs, splitter = _cutoffs(k), _splitter(split)
    names = (user, item, time)
    cleaning: Cleaning = {"core": core, "drop_duplicates": drop_duplicates, "ties": ties}
    with _talking(json):
        clock = Clock()
        with clock("load"):
            parts = splitter(_read(log, names, time_unit, any_time, **cleaning))
        parts.cases(on)  # a wrong --on is said before the fit
        result = evaluation.evaluate(
            made.fit(parts.train), parts, on=on, k=cutoffs, hide_seen=hide_seen
        )
        result.seconds.update(clock.seconds)
    if json:
        show.as_json(result.to_dict())
    else:
        show.evaluation(result)


def _cutoffs(text: str) -> list[int]:
    from talerec import metrics

    try:
        cutoffs = [int(part) for part in text.split(",")]
    except ValueError:
        raise TalerecError(f"--k is {text!r}; it takes whole numbers such as 1,5,10") from None
    metrics.per_case(cutoffs)  # refuses what is below 1
    return cutoffs


def _splitter(text: str) -> Callable[[Log], Split]:
    from talerec import prepare, times

    if text == "leave-one-out":
        return prepare.leave_one_out
    kind, _, moment = text.partition(":")
    if kind != "at":
        raise TalerecError(f"--split is {text!r}; it takes leave-one-out or at:TIME")
    times.parse_moment(moment)  # a mistake is found before the log is read
    return lambda log: prepare.split_at(log, moment)


@app.command(
    epilog=_examples(
        "talerec recommend shop.tale --users 17,42 --hide-seen",
        "talerec recommend shop.tale --users all -k 20 --json",
        "talerec recommend shop.tale --history tent,stove",
    )
)
def recommend(
    model: Artifact,
    users: Annotated[
        str | None,
        option(
            "--users",
            metavar="IDS|FILE|all",
            help="Users of the training log: ids with commas between, @FILE with one id per line, or all.",
        ),
    ] = None,
    history: Annotated[
        list[str],
        option(
            "--history",
            metavar="IDS",
            help="Item ids, oldest first, commas between; repeat for more histories.",
        ),
    ] = [],  # noqa: B006
    k: K = 10,
    hide_seen: HideSeen = False,
    allow: Annotated[str | None, option("--allow", metavar="IDS", help="Only these items.")] = None,
    deny: Annotated[str | None, option("--deny", metavar="IDS", help="Never these items.")] = None,
    unknown: Unknown = "error",
    json: Json = False,
) -> None:
    """What next, for users of the training log or for histories of your own."""
    from talerec import show
    from talerec.models import load

    if (users is None) == (not history):
        raise TalerecError("give --users or --history, one of the two")
    masks: dict[str, Any] = {
        "hide_seen": hide_seen, "allow": _ids(allow), "deny": _ids(deny), "unknown": unknown,
    }  # fmt: skip
    with _talking(json):
        made = load(model)
        if users is not None:
            chosen = _users(made, model, users, unknown)
            askers = {user: f"User {user}" for user in chosen}
            frame = made.recommend(chosen, k, **masks)
        else:
            names, given = show.titles(made), [_ids(text) or [] for text in history]
            askers = {number: show.after(items, names) for number, items in enumerate(given)}
            frame = made.recommend_histories(given, k, **masks)
    show.recommendations(made, frame, askers, json=json)


def _users(model: Model, path: Path, text: str, unknown: str) -> list[Any]:
    """The ids that `--users` stands for, as the log has them, each once."""
    from talerec import show

    log = model.fitted.log
    if log is None:
        raise TalerecError(f"{path} was saved without histories: use --history, not --users")
    if text == "all":
        return log.users.ids.to_list()
    given = _lines(Path(text[1:])) if text.startswith("@") else _ids(text) or []
    if not given:
        raise TalerecError(f"--users {text!r} names no user")
    found = log.users.positions(given, "user", unknown)
    skipped = [user for user, position in zip(given, found, strict=True) if position < 0]
    if skipped:
        logger.info("skipped, not known to the model: %s", show.listed(skipped))
    return list(dict.fromkeys(log.users.ids.gather(found[found >= 0]).to_list()))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is no text file of one id per line") from None
    return [line.strip() for line in lines if line.strip()]


def _own_id(model: Model, item: str) -> Any:
    """An item id as the model has it: 5, where the command line says "5"."""
    items = model.fitted.items
    return items.ids[int(items.positions([item], "item", "error")[0])]


@app.command(epilog=_examples("talerec similar shop.tale tent -k 5"))
def similar(
    model: Artifact,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item id.")],
    k: K = 10,
    json: Json = False,
) -> None:
    """What the model expects right after one item."""
    from talerec import show
    from talerec.models import load

    made = load(model)
    frame, names = made.similar_items(item, k), show.titles(made)
    if json:
        items = show.items_json(frame, names)
        show.as_json({"item_id": _own_id(made, item), "items": items})
    else:
        show.ranking(show.after([item], names), frame, names)


@app.command(epilog=_examples("talerec explain shop.tale --history tent,stove --item lantern"))
def explain(
    model: Artifact,
    history: Annotated[
        str,
        option("--history", metavar="IDS", help="Item ids, oldest first, commas between."),
    ],
    item: Annotated[str, option("--item", metavar="ID", help="The item whose score is explained.")],
    unknown: Unknown = "error",
    json: Json = False,
) -> None:
    """What each row of a history gives to an item's score."""
    from talerec import show
    from talerec.models import load

    made, rows = load(model), _ids(history) or []
    given = made.explain(rows, item, unknown=unknown)
    show.explanation(made, rows, _own_id(made, item), given, json=json)


@app.command()
def verify(model: Artifact, json: Json = False) -> None:
    """Read every byte of a saved model and check it against its manifest."""
    from talerec import artifact, show

    version = artifact.read(model, verify=True).facts["version"]
    if json:
        show.as_json({"path": str(model), "ok": True, "version": version})
    else:
        show.line(f"{model} is whole (version {version})")


@app.command(epilog=_examples("talerec synth log.parquet --rows 1000000 --seed 1"))
def synth(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A .parquet or .csv file.")],
    rows: Annotated[int, option("--rows", metavar="N", help="Rows, up to 100 million.")] = 100_000,
    items: Annotated[
        int | None, option("--items", metavar="N", help="Items; a twentieth of the rows.")
    ] = None,
    users: Annotated[
        int | None, option("--users", metavar="N", help="Users; a tenth of the rows.")
    ] = None,
    seed: Annotated[int, option("--seed", metavar="N", help="The same seed, the same log.")] = 0,
) -> None:
    """Write a synthetic log with what real ones have: bursts, drift, fashion, ties, repeats."""
    from talerec import show
    from talerec.synthetic import synthetic_log

    if output.suffix not in (".parquet", ".csv"):
        raise TalerecError(f"{output} must end in .parquet or .csv")
    if output.is_dir() or not output.parent.is_dir():
        problem = "is a folder" if output.is_dir() else "cannot be written: its folder is not there"
        raise TalerecError(f"{output} {problem}")
    with _talking(json=False):
        log = synthetic_log(rows, items=items, users=users, seed=seed, titles=False)
        _write_frame(log, output)
    show.line(
        f"{output}: {log.rows:,} rows of {len(log.users):,} users and {len(log.items):,} items"
    )


def _write_frame(log: Log, output: Path) -> None:
    """Whole or not at all: under another name first."""
    frame, unfinished = log.to_frame(), output.with_name(f"{output.name}.new")
    try:
        if output.suffix == ".csv":
            frame.write_csv(unfinished)
        else:
            frame.write_parquet(unfinished)
        os.replace(unfinished, output)
    except OSError as error:
        raise TalerecError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


# -- the command itself ----------------------------------------------------------------------------


def _version(asked: bool) -> None:
    if asked:
        from talerec import __version__

        print(f"talerec {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=_examples(
        "talerec demo",
        "talerec evaluate events.csv",
        "talerec fit events.csv -o shop.tale",
        "talerec recommend shop.tale --users 17",
    ),
)
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """From a log of user, item, time to what comes next."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Click's, wherever Typer keeps it


def main() -> None:
    """Run the command; a mistake is one line and exit code 2."""
    try:
        code = app(prog_name="talerec", standalone_mode=False)
        sys.stdout.flush()
    except TalerecError as error:
        _fail(str(error))
    except _UsageError as error:
        _fail(_usage(error))
    except MemoryError:
        _fail("there is not enough memory for this; use a k-core, or a smaller log")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """Click's complaint in our manner, with the page that says more."""
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "talerec"
    return f"{message[:1].lower()}{message[1:]} ({command} --help says more)"


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)
