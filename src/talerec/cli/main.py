"""The command `talerec`: where it starts, and where its errors become one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from talerec.cli import evaluate as judging
from talerec.cli import events, logs
from talerec.cli import fit as fitting
from talerec.cli import recommend as asking
from talerec.cli import serve as serving
from talerec.cli import warm as warming
from talerec.cli.app import app, examples, sort_commands
from talerec.errors import TalerecError
from talerec.runtime.process import collect_less

__all__ = ["app", "asking", "events", "fitting", "judging", "logs", "main", "serving", "warming"]

sort_commands()


def _version(asked: bool) -> None:
    if asked:
        from talerec import __version__

        print(f"talerec {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=examples(
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
    collect_less()
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
    """Click's message as one line, with the help page to read."""
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx else "talerec"
    return f"{message[:1].lower()}{message[1:]} ({command} --help says more)"


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)
