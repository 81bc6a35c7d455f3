"""The `wisp` command. One file for each sub-command; this one collects them and turns errors into exit codes.

Nothing here imports torch or an engine: a command does so once it knows that its arguments make sense.
"""

import errno
import os
import signal
import sys
from typing import Annotated, Any

import typer

import wisp
from wisp.cli import calibrate, curve, import_trace, plan, record, serve, simulate, stats, verify
from wisp.cli.forwarding import FORWARDING, ForwardingCommand
from wisp.errors import WispError

INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE
"""How a shell tells that a tool wrote to a reader who had gone."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

app = typer.Typer(
    name="wisp",
    help="Serve mixture-of-experts models that do not fit in fast memory, on unmodified vLLM, with unchanged output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
forwarding: Any = {"cls": ForwardingCommand, "context_settings": FORWARDING}
app.command(short_help="Serve a model with some of its experts in fast memory.", **forwarding)(serve.serve)
app.command(short_help="Divide a GPU's memory between experts and KV.")(plan.plan)
app.command(short_help="Measure this machine's rates with a model, for plans.", **forwarding)(calibrate.calibrate)
app.command(short_help="Show what paging does on a running server.")(stats.stats)
app.command(short_help="Compare paged output with unpaged, bit by bit.", **forwarding)(verify.verify)
app.command(short_help="Record the routing and KV references of a model.", **forwarding)(record.record)
app.command(short_help="Show miss ratio curves and working sets of a trace.")(curve.curve)
app.command(short_help="Replay a trace against policies and numbers of slots.")(simulate.simulate)
app.command("import-trace", short_help="Read a trace that another program has written.")(import_trace.import_trace)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Serve mixture-of-experts models that do not fit in fast memory, on unmodified vLLM, with unchanged output."""
    if version:
        typer.echo(f"wisp {wisp.__version__}")


def main() -> None:
    """Run the command line; an error of wisp's own is one paragraph and exit code 2.

    Where the reader of the output goes, as `head` does, the command ends without a word and with the code of a tool
    that SIGPIPE ends. The signal itself stays ignored: a server has to survive clients that hang up.
    """
    try:
        _run()
    except (BrokenPipeError, SystemExit) as end:
        if not _is_unread(end):
            raise
        _discard_output()
        sys.exit(UNREAD)


def _run() -> None:
    try:
        app()
    except WispError as error:
        typer.echo(f"wisp: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"wisp: {where}{error.strerror}; make room there, or write elsewhere", err=True)
        sys.exit(2)
    finally:
        if sys.stdout is not None:  # it was closed before the start
            sys.stdout.flush()


def _is_unread(end: BaseException) -> bool:
    """Typer and rich make exit code 1 of a broken pipe, which `wisp verify` means otherwise."""
    return isinstance(end, BrokenPipeError) or isinstance(end.__context__, BrokenPipeError)


def _discard_output() -> None:
    """Let the interpreter flush what is left into nothing: it would complain, and exit with a code of its own."""
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)


if __name__ == "__main__":
    main()
