"""Options that come together: a command takes them as one dataclass, the command line as options."""

from __future__ import annotations

import dataclasses
import inspect
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from talerec.cli.completion import among
from talerec.cli.options import (
    AnyTime,
    Core,
    Event,
    EventWeights,
    Item,
    LogFiles,
    ModelName,
    Params,
    Query,
    Sep,
    Settings,
    Time,
    Unique,
    Unit,
    User,
    Weight,
    option,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    import polars as pl

    from talerec.data.log import Log
    from talerec.models.core.base import Model

Command = Callable[..., None]
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def ungrouped(command: Command) -> Command:
    """The command with one parameter for each field of a dataclass that it takes, as Typer needs it."""
    taken = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in taken if dataclasses.is_dataclass(p.annotation)
    }

    def call(**values: Any) -> None:
        for name, kind in groups.items():
            own = {part.name: values.pop(part.name) for part in dataclasses.fields(kind)}
            values[name] = kind(**own)
        command(**values)

    parameters = [
        part
        for p in taken
        for part in (_parts(groups[p.name]) if p.name in groups else [p.replace(kind=_BY_NAME)])
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__name__, call.__doc__, call.__annotations__ = command.__name__, command.__doc__, {}
    return call


def _parts(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for part in dataclasses.fields(kind):
        default = part.default
        if part.default_factory is not dataclasses.MISSING:
            default = part.default_factory()
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        yield inspect.Parameter(part.name, _BY_NAME, default=default, annotation=hints[part.name])


@dataclass(frozen=True)
class Source:
    """A log and how to read it."""

    log: LogFiles
    user: User = "user_id"
    item: Item = "item_id"
    time: Time = "timestamp"
    time_unit: Unit = None
    any_time: AnyTime = False
    core: Core = None
    drop_duplicates: Unique = False
    sep: Sep = None
    query: Query = None
    weight: Weight = None
    event: Event = None
    event_weights: EventWeights = None

    @property
    def name(self) -> str:
        """What people call the log; it holds no password."""
        from talerec.data.read import sources

        return sources.named(self.log)

    def spelled(self, ties: str = "file") -> str:
        """The log and how to read it, as a shell takes it."""
        from talerec.data.read.databases import shown

        parts = [shlex.quote(shown(one)) for one in self.log]
        for part in dataclasses.fields(self)[1:]:
            value = getattr(self, part.name)
            if value != part.default:
                parts.append(as_option(part.name, value))
        return " ".join(parts + ([f"--ties {ties}"] if ties != "file" and ".." not in ties else []))

    @property
    def worth(self) -> dict[str, float] | None:
        """The numbers of --event-weights by event."""
        return _event_weights(self.event_weights)

    @property
    def names(self) -> tuple[str, str, str]:
        return self.user, self.item, self.time

    def read(self, ties: str = "file", any_order: bool = False, needs_time: bool = True) -> Log:
        """The log: read, cleaned, and rows with equal times in the order `ties`."""
        from talerec.data import preprocessing
        from talerec.data.read import readers

        log = readers.read_log(
            self.log, user=self.user, item=self.item, time=self.time,
            time_unit=self.time_unit, any_time=self.any_time,
            sep=_sign(self.sep), query=self.query, any_order=any_order or ties != "file",
            weight=self.weight, event=self.event, event_weights=self.worth,
            lacks_time=not needs_time,
        )  # fmt: skip
        if self.drop_duplicates:
            log = preprocessing.drop_duplicates(log)
        if self.core is not None:
            log = preprocessing.k_core(log, self.core)
        return preprocessing.order_ties(log, ties)


def as_option(name: str, value: Any) -> str:
    """An option and its value, as a shell takes them."""
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")


#: The fact of a training that says how its log was read.
READ_WITH = "read_with"
_NOT_AGAIN = ("log", "core", "query", "items")  # which an update is told anew, or not at all


def unusual(group: Any) -> dict[str, Any]:
    """What is not as usual in a group of options, and is to be so again when rows come later."""
    values = {
        part.name: (getattr(group, part.name), part.default) for part in dataclasses.fields(group)
    }
    return {
        name: value
        for name, (value, usual) in values.items()
        if name not in _NOT_AGAIN and value != usual
    }


T = TypeVar("T")


def again(group: T, kept: dict[str, Any]) -> T:
    """A group of options with those that `unusual` kept; what it cannot have kept is left out."""
    kinds = {
        part.name: bool if isinstance(part.default, bool) else str
        for part in dataclasses.fields(group)  # type: ignore[arg-type]
        if part.name not in _NOT_AGAIN
    }
    mine = {n: value for n, value in kept.items() if n in kinds and isinstance(value, kinds[n])}
    return dataclasses.replace(group, **mine)  # type: ignore[type-var]


def _event_weights(text: str | None) -> dict[str, float] | None:
    """The numbers of --event-weights by event."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not name or not value >= 0 or name in found:
            raise TalerecError(
                f"--event-weights takes view=1,cart=3,buy=10, each once, not {part!r}"
            )
        found[name] = value
    return found


def _sign(sep: str | None) -> str | None:
    """A separator as people type it: a tab is \\t, or the word."""
    return {"\\t": "\t", "tab": "\t"}.get(sep or "", sep)


_TABLE = "Item table"


@dataclass(frozen=True)
class ItemTable:
    """What describes the items, and how to read it."""

    items: Annotated[
        Path | None,
        option(
            "--items",
            metavar="FILE",
            help="A table with a column of item ids and, say, a title.",
            panel=_TABLE,
        ),
    ] = None
    item_key: Annotated[
        str | None,
        option(
            "--item-key",
            metavar="COLUMN",
            help="Its column of ids; that of the log, or item_id, unless given.",
            panel=_TABLE,
        ),
    ] = None
    item_title: Annotated[
        str | None,
        option(
            "--item-title",
            metavar="COLUMN",
            help="Its column of titles; title, name and the like unless given.",
            panel=_TABLE,
        ),
    ] = None
    items_sep: Annotated[
        str | None,
        option(
            "--items-sep",
            metavar="SIGN",
            help="What stands between the fields of a text file.",
            panel=_TABLE,
        ),
    ] = None

    def check(self) -> None:
        """Refuse options of a table without a table."""
        for name, value in unusual(self).items():
            if self.items is None:
                raise TalerecError(f"{as_option(name, value)} goes with --items")

    def read(self, item: str) -> pl.DataFrame | None:
        """The table, if one is given; `item` is the log's column of ids."""
        from talerec.data.read import readers

        if self.items is None:
            return None
        return readers.items_of_log(
            self.items, self.item_key, item, self.item_title, _sign(self.items_sep)
        )


@dataclass(frozen=True)
class Choice:
    """A model and its parameters."""

    model: ModelName = None
    params: Params = None
    set: Settings = field(default_factory=list)

    def make(self) -> Model:
        """The model with the parameters of the file, and over them those of --set."""
        from talerec.evaluation.tuning import read_params
        from talerec.models import DEFAULT, model_class
        from talerec.models.core import params

        name, known = self.model, dict[str, Any]()
        if self.params is not None:
            name, known = read_params(self.params, name)
        kind = model_class(name or DEFAULT)
        made: Model = params.build(kind, {**known, **params.parse(kind, self.set)})
        return made


_SPARK = "Spark"


@dataclass(frozen=True)
class Engine:
    """Where the work is done: on this machine, or on a Spark cluster."""

    engine: Annotated[
        str,
        option(
            "--engine",
            metavar="local|spark",
            help="Where the work is done.",
            panel=_SPARK,
            complete=among("local", "spark"),
        ),
    ] = "local"
    master: Annotated[
        str | None,
        option("--master", metavar="URL", help="The cluster: spark://host:7077.", panel=_SPARK),
    ] = None
    spark_conf: Annotated[
        list[str],
        option(
            "--spark-conf",
            metavar="KEY=VALUE",
            help="A setting of Spark; repeat for more.",
            panel=_SPARK,
        ),
    ] = field(default_factory=list)
    work: Annotated[
        Path | None,
        option(
            "--work",
            metavar="DIR",
            help="Folder that all executors see; by default the model's parent, or this one.",
            panel=_SPARK,
        ),
    ] = None

    @property
    def is_spark(self) -> bool:
        return self.engine == "spark"

    def check(self) -> None:
        """Refuse an unknown engine, and options of Spark without it."""
        if self.engine not in ("local", "spark"):
            raise TalerecError(f"--engine is {self.engine!r}; it takes local or spark")
        given = {"--master": self.master, "--spark-conf": self.spark_conf, "--work": self.work}
        for name, value in given.items():
            if value and not self.is_spark:
                raise TalerecError(f"{name} goes with --engine spark")

    @property
    def conf(self) -> dict[str, str]:
        """The settings of Spark by name."""
        for setting in self.spark_conf:
            if "=" not in setting:
                raise TalerecError(f"--spark-conf takes key=value, not {setting!r}")
        return dict(setting.split("=", 1) for setting in self.spark_conf)


_LIMITS = "Limits"


def _limit(name: str, metavar: str, help: str) -> Any:
    return option(name, metavar=metavar, help=help, panel=_LIMITS)


@dataclass(frozen=True)
class Limits:
    """What a service refuses, and how long it waits."""

    max_body: Annotated[int, _limit("--max-body", "BYTES", "Largest request.")] = 1_000_000
    max_history: Annotated[int, _limit("--max-history", "ROWS", "Longest history.")] = 2500
    max_k: Annotated[int, _limit("--max-k", "K", "Most items in one answer.")] = 1000
    max_items: Annotated[int, _limit("--max-items", "N", "Most items in one batch.")] = 50_000
    concurrency: Annotated[int, _limit("--concurrency", "N", "Requests at a time, per worker.")] = (
        128
    )
    timeout: Annotated[
        float, _limit("--timeout", "SECONDS", "For headers, for body and for the answer.")
    ] = 10.0
    drain: Annotated[
        float,
        _limit("--drain", "SECONDS", "After SIGTERM, how long requests are still taken."),
    ] = 1.0
    watch: Annotated[float, _limit("--watch", "SECONDS", "Between two looks for a new model.")] = (
        1.0
    )
    copies: Annotated[
        Path | None,
        _limit("--copies", "DIR", "Folder for the service's own copies of models."),
    ] = None
