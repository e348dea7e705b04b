"""The one confirmation that a command asks for before it changes anything."""

from __future__ import annotations

import sys

import typer

from llm_serving.settings.errors import CheckFailed, InputError


def ask(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set.

    Raises:
        CheckFailed: the user declined.
        InputError: there is no terminal to ask on.
    """
    if yes:
        return
    require_terminal(yes, question)
    if not typer.confirm(question, err=True):
        raise CheckFailed("Cancelled. Nothing was changed")


def require_terminal(yes: bool, question: str = "") -> None:
    """Check that a confirmation can be asked for, before minutes are spent on the steps before it.

    Raises:
        InputError: there is no terminal to ask on.
    """
    if not yes and not sys.stdin.isatty():
        raise InputError(f"{question} No terminal to confirm on; pass --yes".lstrip())
