"""The one question that a command asks before it changes something."""

from __future__ import annotations

import sys

import typer

from llm_serving.settings.errors import CheckFailed, InputError


def ask(question: str, yes: bool) -> None:
    """Asks, unless `yes` answers already.

    Raises:
        AnswerIsNo: the user does not want it.
        InputError: there is nobody to ask.
    """
    if yes:
        return
    require_terminal(yes, question)
    if not typer.confirm(question, err=True):
        raise CheckFailed("nothing was changed")


def require_terminal(yes: bool, question: str = "") -> None:
    """Sees that a question can be answered, before minutes are spent on what leads to it.

    Raises:
        InputError: there is nobody to ask.
    """
    if not yes and not sys.stdin.isatty():
        raise InputError(f"{question} There is no terminal to ask in. Fix: --yes.".lstrip())
