"""A command of the command line, as its list knows it before the command's module is imported."""

from __future__ import annotations

from dataclasses import dataclass

PANELS = BLUEPRINTS, MODELS, FLEET, AWS, TOOLS = "Blueprints", "Models", "Fleet", "AWS", "Tools"
"""The groups of `blueprint --help`, in order."""


@dataclass(frozen=True)
class CommandEntry:
    panel: str
    name: str
    location: str
    """MODULE:OBJECT; a function, or the Typer object of a group of commands."""

    summary: str
    """First sentence of its help."""

    hidden: bool = False
