"""`engine_arguments` and `environment`: what the engine's parser takes, and what the deployment writes by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from llm_serving.catalog import command_parts, engine_options, engines
from llm_serving.catalog.engine_options import EngineOptions
from llm_serving.catalog.engines import Engine
from llm_serving.kinds.serving import engine_process
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.tuning import Tuning
from llm_serving.settings.document import Conflict

ARGUMENTS, ENVIRONMENT = "engine_arguments", "environment"

HIDDEN = "(hidden)"
"""In place of a secret: a message goes into logs."""

_SECRET = re.compile(r"(?:^|_)(?:TOKEN$|SECRET|PASSWORD|CREDENTIALS?|API_KEY|ACCESS_KEY(?:_ID)?)(?:$|_)", re.IGNORECASE)

KeyPath = tuple[str, ...]


def check(settings: Blueprint) -> Iterator[Conflict]:
    """Yield options and variables that no deployment of this engine can have."""
    for key_path, arguments in _list_mappings(settings, ARGUMENTS):
        yield from _check_arguments(settings, key_path, arguments)
    for key_path, variables in _list_mappings(settings, ENVIRONMENT):
        yield from _check_variables(settings, key_path, variables)


def _list_mappings(settings: Blueprint, key: str) -> Iterator[tuple[KeyPath, Mapping[str, JsonValue]]]:
    yield (key,), getattr(settings, key)
    for name, role in settings.roles.engine_roles.items():
        yield (*settings.find_key_path(name), key), getattr(role, key)


def _check_arguments(settings: Blueprint, key_path: KeyPath, arguments: Mapping[str, JsonValue]) -> Iterator[Conflict]:
    name = settings.engine
    recorded_options = engine_options.load(name)
    if arguments and recorded_options is None:
        reason = f"the catalog has no list of what the parser of {name} takes"
        yield Conflict(key_path, reason, "remove engine_arguments, or choose another engine", dict(arguments))
        return
    for option, value in arguments.items():
        assert recorded_options, "there are arguments"
        engine = engines.load_engines()[name]
        refusal = _find_refusal(settings, engine, recorded_options, option, value)
        if refusal:
            shown_value = HIDDEN if _SECRET.search(option.replace("-", "_")) else _format_value(value)
            yield Conflict((*key_path, option), *refusal, shown_value)


def _find_refusal(
    settings: Blueprint, engine: Engine, recorded_options: EngineOptions, option: str, value: JsonValue
) -> tuple[str, str] | None:
    if option not in recorded_options.options:
        reason = f"{recorded_options.source.partition(',')[0]} has no such option"
        if other_key := _find_key_elsewhere(option):
            return reason, f"set {other_key}, and remove {option} here"
        nearest = engine_options.find_nearest(option.lstrip("-").replace("-", "_"), recorded_options.options)
        nearest = engine.argument_keys.get(nearest, nearest)
        if nearest:
            return reason, f"write {nearest}, or remove {option}"
        return reason, f"remove {option}; the help of {settings.engine} names all"
    key = engine.argument_keys.get(option)
    if key:
        return f"the deployment writes it from {key}", f"set {key}, and remove {option} here"
    refused = next((row.reason for row in engine.refused_arguments if option in row.names), None)
    if refused:
        return refused, f"remove {option}"
    if option in engine.written_arguments:
        return "the deployment writes it by itself", f"remove {option}"
    setting = engine.reckoned_arguments.get(option)
    if setting and getattr(settings.tuning, setting, None) is not None:
        return f"tuning.{setting} says it too", f"keep one of {option} and tuning.{setting}"
    mismatch = recorded_options.options[option].describe_mismatch(value)
    return (f"the engine takes {mismatch}", f"write {mismatch}") if mismatch else None


def _find_key_elsewhere(option: str) -> str:
    """Return our key for what another engine's option of this name says; empty where there is none."""
    for engine in engines.load_engines().values():
        setting = engine.reckoned_arguments.get(option)
        if key := f"tuning.{setting}" if setting in Tuning.model_fields else engine.argument_keys.get(option):
            return key
    return ""


def _format_value(value: JsonValue) -> str:
    return {True: "true", False: "false", None: "nothing"}[value] if isinstance(value, bool | None) else str(value)


def _check_variables(settings: Blueprint, key_path: KeyPath, variables: Mapping[str, JsonValue]) -> Iterator[Conflict]:
    recorded_options = engine_options.load(settings.engine)
    refusals = {name: row.reason for row in settings.engine_row.refused_variables for name in row.names}
    for name in variables:
        if _SECRET.search(name):
            reason = "a secret here could be read by whoever reads this file, the state or the command line"
            yield Conflict((*key_path, name), reason, f"remove {name}", HIDDEN)
        elif name in refusals:
            yield Conflict((*key_path, name), refusals[name], f"remove {name}", variables[name])
        elif recorded_options and _has_prefix(recorded_options, name) and name not in recorded_options.variables:
            nearest = engine_options.find_nearest(name, recorded_options.variables)
            reason = f"{recorded_options.source.partition(',')[0]} reads no such variable"
            fix = f"write {nearest or 'a variable that it reads'}, or remove {name}"
            yield Conflict((*key_path, name), reason, fix, variables[name])


def _has_prefix(recorded_options: EngineOptions, name: str) -> bool:
    """Return whether a variable is the engine's by its name: half of them begin in one way."""
    prefixes = [variable.partition("_")[0] for variable in recorded_options.variables]
    return name.partition("_")[0] == max(set(prefixes), key=prefixes.count, default=None)


def check_written(context: Context) -> Iterator[Conflict]:
    """Yield options and variables that this deployment writes by itself where a role runs."""
    reason = f"the deployment writes it by itself on {context.conventions.title}"
    for placed in context.placed_roles:
        role = placed.role
        parts = engine_process.list_command_parts(context, context.describe_node(placed))
        words = [word for part in parts for word in part.arguments]
        for path, value in placed.list_arguments():
            option = path[-1]
            if not _is_rewritten(context, option, value, words):
                continue
            setting, fix = context.engine.reckoned_arguments.get(option), f"remove {option}"
            if setting in Tuning.model_fields:
                fix = f"set tuning.{setting}, and {fix} here"
            yield Conflict(path, reason, fix, _format_value(value))
        written_options = command_parts.list_option_names(words)
        refusals = [row for row in context.engine.refused_beside if not {*row.options}.isdisjoint(written_options)]
        written_variables = {*context.engine.environment, *context.environment.env}
        for part in parts:
            written_variables |= {*part.environment, *part.address_variables}
        for name, text in context.blueprint.merge_environment(role).items():
            path = (*placed.key_path, ENVIRONMENT) if name in role.environment else (ENVIRONMENT,)
            if name in written_variables:
                yield Conflict((*path, name), reason, f"remove {name}", text)
            for row in refusals:
                if name in row.variables and row.text in text:
                    yield Conflict((*path, name), row.reason, f"remove {row.text}", text)


def _is_rewritten(context: Context, option: str, value: JsonValue, words: Sequence[str]) -> bool:
    """Return whether the deployment writes an option too, and not in the same way."""
    if option not in command_parts.list_option_names(words):
        return False
    # A switch may be written twice in the same way: what runs on accelerators then runs in a trial on CPU.
    row = engine_options.get_options(context.blueprint.engine)[option]
    return not (isinstance(value, bool) and set(row.format_words(option, value)) <= set(words))
