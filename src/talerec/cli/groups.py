"""Options that come together: a command takes each group as one dataclass.

Every field is an option of the command line; `flatten_groups` in `app` hands them to Typer.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.completion import complete_values
from talerec.cli.options import (
    LOG,
    MODEL,
    Across,
    Basket,
    ContextColumns,
    ModelNames,
    SessionColumn,
    SessionGap,
    Settings,
    UserTable,
    argument,
    flag,
    flag_of,
    option,
    parse_event_weights,
    parse_separator,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data import Log
    from talerec.models.core import Model

_FORMATS = "CSV, TSV, Parquet, JSON lines, RecBole .inter, MovieLens .dat; plain, .gz or .zst."
_SPARK = "Spark"  # heading of help pages


# -- logs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogSource:
    """Options of commands that read a log: its files or address, columns, and cleaning.

    Each field is an option of the command line; its help text says what it means.
    """

    log: Annotated[
        list[str],
        argument("LOG...", f"{_FORMATS} A folder, a pattern, - for standard input, or an address."),
    ]
    user: Annotated[str, option("--user", "COLUMN", "Column of user ids.", LOG)] = "user_id"
    item: Annotated[str, option("--item", "COLUMN", "Column of item ids.", LOG)] = "item_id"
    time: Annotated[str, option("--time", "COLUMN", "Column of times.", LOG)] = "timestamp"
    time_unit: Annotated[
        str | None,
        option(
            "--time-unit",
            "s|ms|us|ns|%m/%d/%Y",
            "Unit of numeric times (default: guessed from their size), or the date format:"
            " '%m/%d/%Y %H:%M'.",
            LOG,
            complete=complete_values("s", "ms", "us", "ns"),
        ),
    ] = None
    any_time: Annotated[
        bool, flag("--any-time", "Accept times before 1970 and after 2100.", LOG)
    ] = False
    core: Annotated[
        int | None,
        option(
            "--core", "K", "Drop users and items with fewer than K rows until none is left.", LOG
        ),
    ] = None
    drop_duplicates: Annotated[
        bool, flag("--drop-duplicates", "Keep one of the rows with equal user, item and time.", LOG)
    ] = False
    sep: Annotated[str | None, option("--sep", "SIGN", "Field separator.", LOG)] = None
    query: Annotated[
        str | None,
        option(
            "--query",
            "SQL",
            "SQL query, if LOG is a database:"
            " sqlite:///FILE, duckdb:///FILE, postgresql://HOST/NAME.",
            LOG,
        ),
    ] = None
    weight: Annotated[
        str | None,
        option("--weight", "COLUMN", "Column of row weights; only their ratios matter.", LOG),
    ] = None
    event: Annotated[str | None, option("--event", "COLUMN", "Column of event types.", LOG)] = None
    event_weights: Annotated[
        str | None,
        option(
            "--event-weights",
            "view=1,buy=10",
            "Weight of the rows of each event type; 0 drops them.",
            LOG,
        ),
    ] = None
    session: SessionColumn = None
    session_gap: SessionGap = None
    across: Across = False
    basket: Basket = None
    context: ContextColumns = field(default_factory=list)
    user_table: UserTable = None

    @property
    def name(self) -> str:
        """The log's paths as a short name for titles, without passwords: "a.csv and 2 more"."""
        from talerec.data.read import source_name

        return source_name(self.log)

    @property
    def weights_by_event(self) -> dict[str, float] | None:
        """The row weights of --event-weights ("view=1,buy=10") by event type; None without it."""
        return parse_event_weights(self.event_weights)

    @property
    def has_sessions(self) -> bool:
        """Whether the log has sessions, by a column (--session) or by pauses (--session-gap)."""
        return self.session is not None or self.session_gap is not None

    def check(self) -> None:
        """Raise TalerecError if options of sessions and baskets contradict each other."""
        if self.session is not None and self.session_gap is not None:
            raise TalerecError("--session and --session-gap exclude each other")
        if self.across and not self.has_sessions:
            raise TalerecError("--across needs --session or --session-gap")
        if self.basket is not None and self.has_sessions:
            raise TalerecError("--basket and sessions exclude each other")

    def check_context(self, model: Model) -> None:
        """Raise TalerecError if --context or --user-table is set, and the model does not use it."""
        for name, value in (("--context", self.context), ("--user-table", self.user_table)):
            if value and not model.takes_context:
                raise TalerecError(f"{name}: {model.name} does not use context; the ranker does")

    def format_arguments(self, ties: str = "file") -> str:
        """Return the log and its changed options as words of a shell command, without passwords.

        `self.log` are the paths, and the other fields options. `ties`, the order of a user's rows
        with equal times, becomes --ties; it is left out if it is the default or a range of random
        orders (random:0..4), which only evaluations take.
        """
        from talerec.data.read import hide_secrets

        words = [shlex.quote(hide_secrets(path)) for path in self.log]
        for part in fields(self)[1:]:
            value = getattr(self, part.name)
            if value not in (part.default, []):
                words.append(format_option(part.name, value))
        return " ".join(words + ([f"--ties {ties}"] if ties != "file" and ".." not in ties else []))

    def read(self, ties: str = "file", any_order: bool = False, needs_time: bool = True) -> Log:
        """Return the log, read and cleaned, with a user's rows of equal times in the order `ties`.

        The fields of `self` are the command's options: paths, columns, units and cleaning. `ties`
        is file, item (by item id) or random:SEED. `any_order` allows a database query without ORDER
        BY; unless `needs_time`, the log need not have a column of times.
        """
        from talerec.data import drop_duplicates, join_baskets, k_core, order_ties, split_sessions
        from talerec.data.read import read_log

        self.check()
        needs_time = needs_time or (self.session_gap or self.basket) is not None
        log = read_log(
            self.log, user=self.user, item=self.item, time=self.time,
            time_unit=self.time_unit, any_time=self.any_time,
            sep=parse_separator(self.sep), query=self.query,
            any_order=any_order or ties != "file",
            weight=self.weight, event=self.event, event_weights=self.weights_by_event,
            group=self.session or (None if self.basket == "time" else self.basket),
            lacks_time=not needs_time, context=self.context, user_table=self.user_table,
        )  # fmt: skip
        if self.basket is not None:
            log = join_baskets(log)
        elif self.has_sessions:
            log = split_sessions(log, self.session_gap, across=self.across)
        if self.drop_duplicates:
            log = drop_duplicates(log)
        if self.core is not None:
            log = k_core(log, self.core)
        return order_ties(log, ties)


@dataclass(frozen=True)
class LaterLogSource(LogSource):
    """Options of a later log, which may be left out."""

    log: Annotated[
        list[str], argument("LOG...", f"{_FORMATS} A folder, a pattern, -, or an address.")
    ] = field(default_factory=list)


def format_option(name: str, value: Any) -> str:
    """Return an option and its value as words of a shell command: --time-unit ms.

    `name` is the library's name of the parameter; an option with the value True is its flag
    alone, and a list repeats it.
    """
    if isinstance(value, list):
        return " ".join(format_option(name, each) for each in value)
    return flag_of(name) + ("" if value is True else f" {shlex.quote(str(value))}")


# -- models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelChoice:
    """Options that choose a model and its parameters, of commands that fit one."""

    model: ModelNames = field(default_factory=list)
    params: Annotated[
        Path | None,
        option(
            "--params",
            "FILE.json",
            "Model and parameters from talerec tune; --set overrides them.",
            MODEL,
        ),
    ] = None
    set: Settings = field(default_factory=list)

    def build(self, source: LogSource) -> Model:
        """Return the unfitted model, with the parameters of --params and, over them, of --set.

        `source` has the options of the log, whose context columns the model must use.
        `self.params`: JSON that `talerec tune` wrote, or None; `self.set`: texts NAME=VALUE.
        TalerecError for unknown names and values, for a library that is not installed, and if
        --model is there twice.
        """
        from talerec.models import DEFAULT, model_class, registered_class
        from talerec.models.core import build_model, parse_settings, use_current_names

        if len(self.model) > 1:
            raise TalerecError(f"--model names {' and '.join(self.model)}; this command takes one")
        kind, params = model_class((self.model or [DEFAULT])[0]), dict[str, Any]()
        if self.params is not None:
            from talerec.evaluation import read_params

            name, params = read_params(self.params, kind.name if self.model else None)
            kind = kind if self.model else registered_class(name)
        model: Model = build_model(
            kind, {**use_current_names(kind, params), **parse_settings(kind, self.set)}
        )
        source.check_context(model)
        model.check_ready()
        return model


# -- engines ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineOptions:
    """Options of where a command runs: on this machine, or on a Spark cluster."""

    engine: Annotated[
        str,
        option(
            "--engine",
            "local|spark",
            "Run on this machine or on Spark.",
            _SPARK,
            complete=complete_values("local", "spark"),
        ),
    ] = "local"
    master: Annotated[
        str | None, option("--master", "URL", "The cluster: spark://host:7077.", _SPARK)
    ] = None
    spark_conf: Annotated[
        list[str], option("--spark-conf", "KEY=VALUE", "Spark setting; repeatable.", _SPARK)
    ] = field(default_factory=list)
    work: Annotated[
        Path | None,
        option(
            "--work",
            "DIR",
            "Folder that all executors see (default: the model's parent, or the current folder).",
            _SPARK,
        ),
    ] = None

    @property
    def is_spark(self) -> bool:
        """Whether the command runs on a Spark cluster (--engine spark), not on this machine."""
        return self.engine == "spark"

    def check(self) -> None:
        """Raise TalerecError for an unknown engine, or one that lacks packages or Java."""
        if self.engine not in ("local", "spark"):
            raise TalerecError(f"--engine is {self.engine!r}; it takes local or spark")
        for part in fields(self)[1:]:
            if getattr(self, part.name) and not self.is_spark:
                raise TalerecError(f"{flag_of(part.name)} needs --engine spark")
        if self.is_spark:
            from talerec.spark import check_installed

            check_installed()

    @contextmanager
    def session(self, source: LogSource) -> Iterator[dict[str, Any]]:
        """Open a Spark session; yield it and how to read the log as arguments of a Spark job.

        The dict has the keyword arguments that `spark.fit`, `spark.evaluate` and `spark.recommend`
        share: path of the log, session, columns, cleaning (core, drop_duplicates) and the folder
        `work`. Options for reading a log that Spark does not support are an error. `self.master`
        and `self.spark_conf` say how to reach the cluster; `source` has the log's options.
        """
        from talerec import spark  # reports by itself that pyspark is missing

        if len(source.log) != 1 or source.sep or source.query:
            raise TalerecError(
                "--engine spark reads one path of Parquet files, without --sep and --query"
            )
        if source.has_sessions or source.basket:
            raise TalerecError("sessions and baskets need --engine local")
        if source.context or source.user_table:
            raise TalerecError("--context and --user-table need --engine local")
        if source.event and not source.event_weights:
            raise TalerecError("on Spark, --event needs --event-weights")
        for setting in self.spark_conf:
            if "=" not in setting:
                raise TalerecError(f"--spark-conf takes key=value, not {setting!r}")
        names = spark.Columns(
            source.user, source.item, source.time, source.time_unit, source.any_time,
            source.weight, source.event, source.weights_by_event,
        )  # fmt: skip
        conf = dict(setting.split("=", 1) for setting in self.spark_conf)
        with spark.connected(self.master, conf) as session:
            yield {
                "source": source.log[0], "session": session, "names": names, "core": source.core,
                "drop_duplicates": source.drop_duplicates, "work": self.work,
            }  # fmt: skip
