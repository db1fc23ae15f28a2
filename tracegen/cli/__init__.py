"""The command line: parse, call, print. Heavy imports happen inside commands, so that `--help` answers at once."""

from __future__ import annotations

import os
import sys

import click

import tracegen
from tracegen.cli.catalog import catalog
from tracegen.cli.check import check
from tracegen.cli.emit import emit
from tracegen.cli.inspect import inspect
from tracegen.cli.replay import replay
from tracegen.proto.errors import InputError, RunError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tracegen.__version__, prog_name="tracegen")
def cli() -> None:
    """From the description of an LLM job to Chakra execution traces, one per rank, and how long they take."""


for command in (emit, replay, inspect, check, catalog):
    cli.add_command(command)


def main() -> None:
    """Run the command line: 0 done, 1 the run failed, 2 the input is refused; one line on stderr, no traceback."""
    code = 0
    try:
        # As click's own main, which would exit with 1 and no word where the reader of our output has gone.
        with cli.make_context("tracegen", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as refused:
        click.echo(f"tracegen: {_usage(refused)}", err=True)
        code = refused.exit_code
    except InputError as refused:
        click.echo(f"tracegen: {refused}", err=True)
        code = 2
    except RunError as failed:
        click.echo(f"tracegen: {failed}", err=True)
        code = 1
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as failed:
        click.echo(f"tracegen: {failed.filename or 'i/o'}: {failed.strerror or failed}", err=True)
        code = 1
    except MemoryError:
        click.echo("tracegen: out of memory; fewer ranks (--ranks), or granularity: block, need less", err=True)
        code = 1
    sys.exit(code)


def _usage(refused: click.ClickException) -> str:
    """A wrong call in one line, and where the right one is described."""
    context = getattr(refused, "ctx", None)
    where = f"; see `{context.command_path} --help`" if context is not None else ""
    return " ".join(refused.format_message().split()).rstrip(".") + where
