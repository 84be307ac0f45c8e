"""The entry point of the command `talerec`: errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from talerec.cli import (
    audience,
    catalogue,
    evaluate,
    fit,
    impressions,
    lists,
    logs,
    recommend,
    serve,
    tune,
    warm,
)
from talerec.cli.app import app, format_examples, sort_commands
from talerec.cli.options import flag_of
from talerec.errors import TalerecError, spell_parameters
from talerec.runtime import reduce_garbage_collection

__all__ = [
    "app",
    "audience",
    "catalogue",
    "evaluate",
    "fit",
    "impressions",
    "lists",
    "logs",
    "main",
    "recommend",
    "serve",
    "tune",
    "warm",
]

sort_commands()


def _print_version(is_requested: bool) -> None:
    """Print the version and exit if --version is set; Typer calls this when it reads the flag."""
    if is_requested:
        from talerec import __version__

        print(f"talerec {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=format_examples(
        "talerec demo",
        "talerec evaluate events.csv",
        "talerec fit events.csv -o shop.tale",
        "talerec recommend shop.tale --users 17",
    ),
)
def _show_help(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
) -> None:
    """Recommend what comes next, from a log of user, item and time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Click's; Typer may vendor it


def main() -> None:
    """Run the command that the arguments of the process name, and exit.

    Exit codes: 0; 2 after an error, which is one line on standard error; 130 after an interrupt; 1
    if the reader of standard output has closed it.
    """
    reduce_garbage_collection()
    try:
        code = app(prog_name="talerec", standalone_mode=False)
        sys.stdout.flush()
    except TalerecError as error:
        _fail(spell_parameters(str(error), error.parameters, flag_of))
    except _UsageError as error:
        _fail(_format_usage_error(error))
    except MemoryError:
        _fail("not enough memory; use --core or a smaller log")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(code if isinstance(code, int) else 0)


def _format_usage_error(error: Any) -> str:
    """Return the message of Click's usage error as one line that names the help page."""
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "talerec"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"


def _fail(message: str) -> NoReturn:
    """Print an error as one line on standard error and exit with code 2."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)
