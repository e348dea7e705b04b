"""The `blueprint` command line: names the commands, and turns every refusal into its text and exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from llm_serving import console
from llm_serving.cli.commands import (
    adapter,
    check,
    deploy,
    fleet_show,
    install,
    matrix,
    model,
    patterns,
    platform,
    rehearse,
    render,
    schema,
    shift,
    status,
    validate,
)
from llm_serving.cli.commands import catalog as catalogue
from llm_serving.cli.commands import fleet as fleets
from llm_serving.cli.commands import preflight as preflights
from llm_serving.cli.commands import state as states
from llm_serving.settings.errors import BlueprintError, InputError, Unavailable

DEBUG = "BLUEPRINT_DEBUG"
"""Environment variable that stands for --debug."""

INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""What shells say of a program that Ctrl-C or a closed pipe ended."""

INTERNAL_ERROR = 70
"""A fault of this program itself (sysexits' EX_SOFTWARE); 1 would read as an answer."""


class _OutputClosedError(Exception):
    """Whoever read our output has enough."""


class _CommandGroup(TyperGroup):
    """All commands; Typer itself would end with 1, the answer no, when a pipe is closed."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _OutputClosedError from None


app = typer.Typer(
    cls=_CommandGroup,
    name="blueprint",
    help="Serve LLMs on AWS: rent a fleet, copy a pattern, deploy it, prove it against its SLO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
fleet_app = typer.Typer(help="The fleet: show it, plan it, apply it, destroy it.", no_args_is_help=True)
catalog_app = typer.Typer(help="The catalogues' data.", no_args_is_help=True)
app.add_typer(model.app, name="model")
app.add_typer(adapter.app, name="adapter")
app.add_typer(platform.app, name="platform")
app.add_typer(fleet_app, name="fleet")
app.add_typer(catalog_app, name="catalog")
app.add_typer(states.app, name="state")


fleet_app.command("show")(fleet_show.show)
fleet_app.command("synth")(fleets.synth)
fleet_app.command("plan")(fleets.plan)
fleet_app.command("apply")(fleets.apply)
fleet_app.command("destroy")(fleets.destroy)
catalog_app.command("refresh")(catalogue.refresh)
app.command("list")(patterns.list_)
app.command()(patterns.new)
app.command()(patterns.twin)
app.command()(check.check)
app.command()(preflights.preflight)
app.command()(render.render)
app.command()(render.diff)
app.command()(deploy.deploy)
app.command()(status.status)
app.command()(status.logs)
app.command()(rehearse.rehearse)
app.command()(schema.schema)
app.command()(matrix.matrix)
app.command()(shift.shift)
app.command()(validate.validate)
app.command()(deploy.destroy)
app.command()(install.install)


@app.callback()
def set_options(
    debug: bool = typer.Option(
        False, "--debug", envvar=DEBUG, help="Show tracebacks; stands before or after a command."
    ),
) -> None:
    """Options of every command."""
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Runs the command line; exit codes are those of llm_serving.settings.errors, and the three above."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; shows what went wrong."""
    own_arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in own_arguments:
        os.environ[DEBUG] = "1"
        arguments = [word for word in own_arguments if word != "--debug"] + arguments[len(own_arguments) :]
    try:
        code = app(arguments, prog_name="blueprint", standalone_mode=False)
        sys.stdout.flush()
        # Typer itself turns a Ctrl-C in a command into this code, without a word.
        if code == INTERRUPTED:
            return _print_error("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _print_error("interrupted", INTERRUPTED)
    except typer.Abort as error:
        if isinstance(error.__cause__ or error.__context__, EOFError):
            return _print_error(
                "the question has no answer: standard input is at its end; --yes answers it", InputError.exit_code
            )
        return _print_error("interrupted", INTERRUPTED)
    except (BrokenPipeError, _OutputClosedError):
        # Nothing is to be flushed into the closed pipe at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except typer.TyperException as error:
        return _report_usage_error(error)
    except Exception as error:
        if os.environ.get(DEBUG, "").lower() in ("1", "true", "yes", "on"):
            raise
        return _report_failure(error)


def _print_error(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def _report_usage_error(error: typer.TyperException) -> int:
    """A command line that cannot be understood, in one line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "blueprint"
    text = " ".join(error.format_message().split()).replace("Value error, ", "")
    if not text:  # no argument at all: the help is printed already
        return InputError.exit_code
    return _print_error(f"{command}: {text[0].lower()}{text[1:]} ({command} --help shows more)", InputError.exit_code)


def _report_failure(error: Exception) -> int:
    """What went wrong, without a traceback."""
    if isinstance(error, BlueprintError):
        return console.print_error(error)
    if isinstance(error, OSError | MemoryError):
        text = (error.strerror if isinstance(error, OSError) else None) or str(error) or "memory is used up"
        prefix = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        return _print_error(f"{prefix}{text.lower()} (blueprint --debug shows where)", Unavailable.exit_code)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _print_error(
        f"a fault of this program, not of yours: {text[:500]} (blueprint --debug shows where)", INTERNAL_ERROR
    )
