"""How the engine reads a model's answers: calls of tools, reasoning, and the template that formats chats."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from llm_serving.catalog import engine_options, engines, models
from llm_serving.catalog.engines import AnswerParsers
from llm_serving.catalog.models import Model
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.settings.document import Conflict

AUTO, OFF = "auto", "off"


class SelectedParsers(NamedTuple):
    """In the engine's names; empty for none."""

    tools: str
    reasoning: str
    chat_template: str
    """A file in the engine's image."""

    model_config_json: str = ""
    """What the model's config.json is to say instead, JSON."""


def select(placed: PlacedRole) -> SelectedParsers:
    row, model_settings = find_row(placed.settings.engine, placed.model), placed.model_settings
    if placed.settings.is_pooled:
        return SelectedParsers("", "", row.chat_template if row.model_config_json else "", row.model_config_json)
    # Random weights end no thought, and all that they write would be reasoning.
    reasoning = row.reasoning if not placed.model.random else ()
    tools = _choose(model_settings.tools, row.tools)
    return SelectedParsers(tools, _choose(model_settings.reasoning, reasoning), row.chat_template if tools else "")


def find_row(engine: str, model: Model) -> AnswerParsers:
    """Return the engine's row of a model: by its name, else by its architecture; an empty one where there is none."""
    rows, name = engines.load_engines()[engine].answer_parsers, model.name.rstrip("/").rpartition("/")[2].lower()
    by_name = (row for row in rows if any(fnmatchcase(name, pattern) for pattern in row.models))
    by_architecture = (row for row in rows if model.kind in row.architectures)
    return next(by_name, None) or next(by_architecture, None) or AnswerParsers()


def _choose(parser_name: str, defaults: tuple[str, ...]) -> str:
    if parser_name == OFF:
        return ""
    return next(iter(defaults), "") if parser_name == AUTO else parser_name


def check(placed: PlacedRole) -> Iterator[Conflict]:
    """Yield parsers that the engine does not have, or that read the answers of other models."""
    engine = placed.settings.engine
    recorded_options, row = engine_options.load(engine), find_row(engine, placed.model)
    for key in ("tools", "reasoning"):
        parser_name, defaults = getattr(placed.model_settings, key), getattr(row, key)
        path = placed.find_model_key_path(key)
        names = recorded_options.parsers.get(key, ()) if recorded_options else ()
        if parser_name in (AUTO, OFF):
            continue
        if parser_name not in names:
            nearest = engine_options.find_nearest(parser_name, names)
            reason = f"{engine} has no such parser"
            yield Conflict(path, reason, f"set {key}: {nearest or AUTO}, or {OFF}", parser_name)
        elif (row.models or placed.model.name in models.load()) and parser_name not in defaults:
            reason = f"it does not read the answers of {placed.model.name}"
            yield Conflict(path, reason, f"set {key}: {' or '.join(defaults) or AUTO}, or {OFF}", parser_name)
