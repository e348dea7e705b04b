"""The `blueprint` command line: lists the commands, and turns every error into one line and an exit code."""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import pkgutil
import sys
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from llm_serving import console, kinds, program, startup
from llm_serving.options.command import AWS, BLUEPRINTS, FLEET, MODELS, PANELS, TOOLS, CommandEntry
from llm_serving.program import DEBUG
from llm_serving.settings.errors import InputError, Unavailable, quote_value

EXIT_CODES = "Exit codes: 0 success; 1 check failed; 2 invalid input; 3 environment problem; 70 internal error."

_BASELINE = "Create the aggregated baseline of a disaggregated blueprint."

_GENERAL = (
    CommandEntry(BLUEPRINTS, "list", "patterns:list_", "List the patterns that `new` copies."),
    CommandEntry(BLUEPRINTS, "new", "patterns:new", "Copy a pattern to a folder of your own."),
    CommandEntry(BLUEPRINTS, "recommend", "recommend:recommend", "Find the cheapest deployment that meets an SLO."),
    CommandEntry(BLUEPRINTS, "check", "check:check", "Check a blueprint against its fleet, without side effects."),
    CommandEntry(BLUEPRINTS, "render", "render:render", "Render a blueprint for a target to rendered/NAME/TARGET/."),
    CommandEntry(BLUEPRINTS, "diff", "render:diff", "Show what a deploy would change, as a unified diff."),
    CommandEntry(BLUEPRINTS, "deploy", "deploy:deploy", "Deploy a blueprint and wait until it is ready."),
    CommandEntry(BLUEPRINTS, "status", "status:status", "Show whether a deployment is ready."),
    CommandEntry(BLUEPRINTS, "logs", "status:logs", "Print the logs of a deployment."),
    CommandEntry(BLUEPRINTS, "validate", "validate:validate", "Load-test a deployment against its SLO."),
    CommandEntry(BLUEPRINTS, "switch", "switch:switch", "Change a blueprint's engine or framework."),
    CommandEntry(BLUEPRINTS, "sweep", "sweep:sweep", "Find the highest load that meets the SLO."),
    CommandEntry(BLUEPRINTS, "tune", "tune:tune", "Try configurations and show the best one."),
    CommandEntry(BLUEPRINTS, "compare", "compare:compare", "Compare validations with a baseline."),
    CommandEntry(BLUEPRINTS, "destroy", "deploy:destroy", "Remove a deployment."),
    CommandEntry(BLUEPRINTS, "baseline", "patterns:baseline", _BASELINE),
    CommandEntry(BLUEPRINTS, "twin", "patterns:baseline", _BASELINE, True),
    CommandEntry(MODELS, "model", "model:app", "List, size, predict, create and upload models."),
    CommandEntry(FLEET, "fleet", "fleet:app", "Show, plan, apply, upgrade and destroy the fleet."),
    CommandEntry(FLEET, "shift-plan", "shift_plan:show_plan", "Plan a week of pools that real time and batch share."),
    CommandEntry(FLEET, "rehearse", "rehearse:rehearse", "Apply and destroy the stacks against an embedded AWS."),
    CommandEntry(FLEET, "images", "images:app", "Pin container images by digest."),
    CommandEntry(FLEET, "platform", "platform:app", "Install, check and remove the platform charts of an EKS cluster."),
    CommandEntry(AWS, "preflight", "preflight:preflight", "Check whether the AWS account can hold the fleet."),
    CommandEntry(AWS, "state", "state:app", "Create and delete the bucket of Terraform's state."),
    CommandEntry(AWS, "install", "install:install", "Run the whole workflow: fleet, weights, deploy, validate."),
    CommandEntry(TOOLS, "matrix", "matrix:matrix", "Show which pattern renders for which target and fleet."),
    CommandEntry(TOOLS, "schema", "schema:schema", "Print the JSON Schema of a file."),
    CommandEntry(TOOLS, "signals", "signals:list_signals", "List the metrics that scaling and alerts read."),
    CommandEntry(TOOLS, "catalog", "catalog:app", "Update the catalog of instance types."),
)  # fmt: skip


def list_commands() -> list[CommandEntry]:
    """List all commands: the general ones, and those of each kind, by the groups of the help."""
    packages = [importlib.import_module(f"{kinds.__name__}.{row.name}") for row in pkgutil.iter_modules(kinds.__path__)]
    own = [dataclasses.replace(entry, location=f"{__package__}.commands.{entry.location}") for entry in _GENERAL]
    entries = [*own, *(entry for package in packages for entry in package.COMMANDS)]
    return sorted(entries, key=lambda entry: PANELS.index(entry.panel))


class _LazyCommand(TyperCommand):
    """A command whose module is imported when it is called; until then, its name and summary."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(entry.name, help=entry.summary, hidden=entry.hidden, rich_help_panel=entry.panel)
        self._entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return load_command(self._entry).make_context(info_name, args, parent, **extra)


class _LazyGroup(TyperGroup):
    """All commands, by the groups of the help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": {entry.name: _LazyCommand(entry) for entry in list_commands()}})


def load_command(entry: CommandEntry) -> Any:
    """Import a command's module and return the command."""
    module, _, name = entry.location.partition(":")
    target = getattr(importlib.import_module(module), name)
    if not isinstance(target, typer.Typer):
        command_app = typer.Typer(add_completion=False)
        command_app.command(entry.name)(target)
        target = command_app
    target._add_completion = False
    command = typer.main.get_command(target)
    command.name = entry.name
    return command


app = typer.Typer(
    cls=_LazyGroup,
    name="blueprint",
    help="Serve LLMs on AWS: plan a fleet, copy a pattern, deploy it, and validate it against its SLO.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def set_options(debug: bool = typer.Option(False, "--debug", envvar=DEBUG, help="Show tracebacks.")) -> None:
    """Set the options of all commands."""
    if debug:
        os.environ[DEBUG] = "1"


def main() -> None:
    """Run the command line and exit."""
    startup.defer_garbage_collection()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python's standard error, where it is not UTF-8
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line, print its error if there is one, and return the exit code."""
    own_arguments = _list_own(arguments)
    if "--debug" in own_arguments:
        os.environ[DEBUG] = "1"
        arguments = [word for word in own_arguments if word != "--debug"] + arguments[len(own_arguments) :]
    return program.run(lambda: _run_app(arguments))


def _list_own(arguments: list[str]) -> list[str]:
    """List the arguments before `--`: those behind it are for another program."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _run_app(arguments: list[str]) -> int:
    """Run one command line; return its exit code. With `--json`, what ended it is printed as JSON too."""
    try:
        return _call(arguments)
    except (InputError, Unavailable, console.CommandFailed, OSError) as error:
        user_error = program.convert_error(error)
        if user_error and "--json" in _list_own(arguments):
            mistakes = user_error.to_list() if isinstance(user_error, InputError) else [{"message": str(user_error)}]
            console.print_json({"ok": False, "mistakes": mistakes})
        raise


def _call(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="blueprint", standalone_mode=False)
    except typer.Abort as error:
        if isinstance(error.__cause__ or error.__context__, EOFError):
            raise InputError("No terminal to confirm on; pass --yes") from None
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        text = _describe_usage_error(error)
        if not text:  # no argument at all: the help is printed already
            return InputError.exit_code
        raise InputError(text) from None
    except SystemExit as error:
        # Typer, and Rich in a help, end with 1, a failed check, when a pipe is closed.
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    # Typer turns a Ctrl-C in a command into this code, without a message.
    if code == program.INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _describe_usage_error(error: typer.TyperException) -> str:
    """Describe in one line what is wrong with a command line; "" where it is empty."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "blueprint"
    text = " ".join(error.format_message().split()).replace("Value error, ", "")
    if list_errors := getattr(error.__cause__, "errors", None):  # pydantic's, whose message lacks the value
        text = text.replace(": Input ", f": {quote_value(list_errors()[0]['input'])} ", 1)
    return text and f"{command}: {text[0].lower()}{text[1:]} ({command} --help shows more)"
