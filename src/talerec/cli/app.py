"""The command's root, and the steps that its commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.log import Log
    from talerec.models.base import Model

app = typer.Typer(
    name="talerec",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def examples(*commands: str) -> str:
    return "\n".join(["Examples:", *commands])


def ids(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


class Cleaning(TypedDict):
    """Options that say what becomes of the rows that were read."""

    core: int | None
    drop_duplicates: bool
    ties: str


def read(
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
    from talerec.data import preprocessing, readers

    user, item, time = names
    log = readers.read_log(
        path, user=user, item=item, time=time, time_unit=time_unit, any_time=any_time, items=items
    )
    if drop_duplicates:
        log = preprocessing.drop_duplicates(log)
    if core is not None:
        log = preprocessing.k_core(log, core)
    return preprocessing.order_ties(log, ties)


def make_model(name: str | None, file: Path | None, settings: list[str]) -> Model:
    """A model with what a file says of its parameters, and over it what --set says."""
    from talerec.evaluation.tuning import read_params
    from talerec.models import model_class, params

    known: dict[str, Any] = {}
    if file is not None:
        name, known = read_params(file, name)
    kind = model_class(name or "tale")
    made: Model = params.build(kind, {**known, **params.parse(kind, settings)})
    return made


def check_engine(engine: str, **of_spark: object) -> None:
    """An engine that there is, and no option of Spark for another."""
    if engine not in ("local", "spark"):
        raise TalerecError(f"--engine is {engine!r}; it takes local or spark")
    for name, value in of_spark.items():
        if engine == "local" and value:
            raise TalerecError(f"--{name.replace('_', '-')} goes with --engine spark")


def fit_on_spark(
    model: Model,
    log: Path,
    output: Path,
    names: tuple[str, str, str],
    time_unit: str | None,
    any_time: bool,
    cleaning: Cleaning,
    master: str | None,
    settings: list[str],
    work: Path | None,
) -> None:
    """Fit and save on a cluster; the histories stay where they are."""
    try:
        from talerec import spark
    except ModuleNotFoundError:
        raise TalerecError("--engine spark needs pyspark: pip install 'talerec[spark]'") from None
    for setting in settings:
        if "=" not in setting:
            raise TalerecError(f"--spark-conf takes key=value, not {setting!r}")
    conf = dict(setting.split("=", 1) for setting in settings)
    read_as = spark.Columns(*names, time_unit, any_time)
    with spark.connected(master, conf) as session:
        spark.fit(model, log, output, session=session, names=read_as, work=work, **cleaning)


@contextmanager
def talking(json: bool) -> Iterator[None]:
    from talerec.cli import terminal
    from talerec.runtime.threads import thread_count

    thread_count()  # a bad TALEREC_THREADS is said before the work, not in it
    with terminal.setup_logging(quiet=json), terminal.bars():
        yield


def cutoffs(text: str) -> list[int]:
    from talerec.evaluation import metrics

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise TalerecError(f"--k is {text!r}; it takes whole numbers such as 1,5,10") from None
    return metrics.cutoffs(found)


def run_service(model: Path, token_file: Path | None, **settings: Any) -> None:
    """Serve until told to stop; without the extra, say which one it is."""
    os.environ.setdefault("TALEREC_THREADS", "1")  # workers are the way to more cores
    try:
        from talerec.serve import server
        from talerec.serve.settings import Settings, read_token
    except ImportError as error:
        raise TalerecError(
            f"serving needs the extra `serve` ({error.name} is missing): pip install 'talerec[serve]'"
        ) from None
    from talerec.cli import terminal

    server.run(Settings(path=model, token=read_token(token_file), **settings), terminal.line)
