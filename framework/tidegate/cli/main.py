"""The command `tidegate`: collects the commands from their modules and runs one of them.

This module owns what is the same for all commands. An error of the user or of the environment is
one paragraph on stderr, never a traceback of tidegate, and the exit code says which of both it was.
Only typer, the error classes and other light modules are imported here, so that help appears in
about a tenth of a second.
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from tidegate.cli.backfill.command import backfill
from tidegate.cli.cluster import commands as cluster
from tidegate.cli.cluster.checkpoints import checkpoints
from tidegate.cli.completion import PROGRAM, completion, enable_completion
from tidegate.cli.inspect.commands import check, config, diff, graph
from tidegate.cli.kafka import commands as kafka
from tidegate.cli.project.dev import dev
from tidegate.cli.project.new import new
from tidegate.cli.run.command import run
from tidegate.cli.run.create_topics import RunCommand
from tidegate.drivers.process.user_forks import watch_forks
from tidegate.drivers.process.user_signals import guard_handlers
from tidegate.errors import Domain, TidegateError
from tidegate.masking import masked_text
from tidegate.terminal.interrupt import exit_at_once
from tidegate.txn import command as txn
from tidegate.user_exceptions import text_of

FAILED = 1  # the job failed, or something outside of tidegate did
REFUSED = 2  # an error of the user; nothing was started
INTERRUPTED = 130  # by Ctrl-C: 128 plus the number of the signal, as in shells

NOT_WRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})
"""Errors of a disk or of rights that a command may meet with any of its files."""

# Without markup typer does not import rich, whose import takes longer than all other imports.
app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(kafka.app, name="kafka")
app.add_typer(txn.app, name="txn")
app.command(cls=RunCommand)(run)
app.command()(backfill)
app.command()(cluster.submit)
app.command("list")(cluster.list_)
app.command()(cluster.status)
app.command()(cluster.stop)
app.command()(cluster.cancel)
app.command()(cluster.jobmanager)
app.command()(cluster.taskmanager)
app.command()(new)
app.command()(dev)
app.command()(check)
app.command()(diff)
app.command()(checkpoints)
app.command()(config)
app.command()(graph)
app.command()(completion)


def _print_version(asked: bool) -> None:
    if asked:
        from tidegate.protocol.versions import TIDEGATE

        print(f"tidegate {TIDEGATE}")
        raise typer.Exit


@app.callback()
def tidegate(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Kafka-native, exactly-once stream pipelines in Python.

    Example: tidegate kafka up
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command and turn its outcome into an exit code.

    This is the entry point of the console script. `arguments` defaults to those of this process.
    """
    if arguments is None:  # else the process belongs to who has called this
        watch_forks(everywhere=True)
        guard_handlers(_print_handler_error)
    try:
        enable_completion()
        app(arguments, standalone_mode=True, prog_name=PROGRAM)
    except TidegateError as error:
        if error.domain is Domain.INTERNAL:
            _print_traceback(error)
        print(f"tidegate: {masked_text(str(error))}", file=sys.stderr)
        sys.exit(REFUSED if error.domain is Domain.USER else FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as ends:
        if arguments is None and ends.code == INTERRUPTED:
            # An interrupt at the start of a thread can leave a thread that would never end.
            exit_at_once(INTERRUPTED)
        raise
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            _print_traceback(error)
        print(f"tidegate: {masked_text(_not_writable(error))}", file=sys.stderr)
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001  # a bug of tidegate, as below
        _print_traceback(error)


def _print_handler_error(error: BaseException, number: signal.Signals) -> None:
    """Print the exception of a signal handler that the user's module has set at its import. The
    command continues, because it runs no step.
    """
    text = masked_text(f"{type(error).__name__}: {text_of(error)}")
    print(f"tidegate: A handler of user code for {number.name} raised {text}.", file=sys.stderr)


def _not_writable(error: OSError) -> str:
    """Return the error of a disk or of rights, with its file if the system names it."""
    return (
        f"{error.filename or 'A file'} cannot be used: {error.strerror}. Check the rights and the "
        "free space of its folder, or run the command in a folder of your own."
    )


def _print_traceback(error: Exception) -> NoReturn:
    """Print the traceback of a bug in tidegate with its secrets masked, and exit with code 1."""
    print(masked_text("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
