"""What a framework's module does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from pydantic import JsonValue

from llm_serving.catalog import engine_options
from llm_serving.catalog.frameworks import Refusal
from llm_serving.kinds.serving import answer_parsers
from llm_serving.kinds.serving.context import ENGINE_PORT, METRICS_PORT, ROUTER_ADMIN_PORT, Context
from llm_serving.services.service import Service
from llm_serving.settings import own_yaml
from llm_serving.settings.document import Conflict

SERVER_OPTIONS = frozenset(
    {"host", "port", "served_model_name", "disable_access_log_for_endpoints", "shutdown_timeout"}
)
"""Options of vLLM's own server, in whose place a framework listens, names the model and ends."""


class Adapted(NamedTuple):
    """What a target runs under a framework."""

    services: Sequence[Service]
    config: Mapping[str, JsonValue]
    """Of the framework itself: `frameworkConfig` of the chart's values."""


class FrameworkModule(Protocol):
    def check(self, context: Context) -> Iterator[Conflict]:
        """Yield what the framework cannot run, beyond what its row says."""

    def adapt(self, context: Context, services: Sequence[Service]) -> Adapted:
        """Turn services, the router's last, into those that the framework runs, and its own configuration."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield what the blueprint's framework cannot run, beyond its row's options."""
    for refusal in context.blueprint.framework_row.refused:
        if not refusal.targets or context.environment.target in refusal.targets:
            yield from _refuse(context, refusal)
    module = _load_module(context)
    if module:
        yield from module.check(context)


def _refuse(context: Context, refusal: Refusal) -> Iterator[Conflict]:
    blueprint, why = context.blueprint, refusal.why
    only_engine = blueprint.framework_row.only_engine
    if refusal.what == "engines" and blueprint.engine != only_engine:
        reason = why.format(engine=blueprint.engine)
        yield context.refuse_framework(reason, f"set engine: {only_engine}, or another framework")
    if refusal.what == "models" and blueprint.roles.models:
        yield context.refuse_framework(why, "use another framework, or a blueprint for each model")
    for placed in context.placed_roles:
        if refusal.what == "empty-roles" and placed.role.replicas.min == 0:
            fix = f"set replicas: 1..{placed.role.replicas.max}, or use framework: plain"
            yield placed.refuse("replicas", why, fix)
        if refusal.what == "warm-prompts" and (prompt := placed.model_settings.warm_prompt):
            path = placed.find_model_key_path("warm_prompt")
            yield Conflict(path, why, "remove it, or use framework: plain", prompt)


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    """Return what the target runs under the blueprint's framework."""
    module, framework = _load_module(context), context.blueprint.framework_row
    if module:
        return module.adapt(context, services)
    if not framework.config:
        return Adapted(services, {})
    values = {
        "policy": context.router.policies[context.policy],
        "proxy_image": context.pin_image(framework.proxy_image),
        "proxy_port": ROUTER_ADMIN_PORT,
        "metrics_port": METRICS_PORT,
        "engine_port": ENGINE_PORT,
    }
    return Adapted(services, own_yaml.fill_values(framework.config, values))


def _load_module(context: Context) -> FrameworkModule | None:
    name = context.blueprint.framework_row.module
    return cast(FrameworkModule, importlib.import_module(f"{__package__}.{name}")) if name else None


def split_command(service: Service) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what comes before an engine's own command, such as a copy of its weights, and that command."""
    start = len(service.command) - service.command[::-1].index("--") if "--" in service.command else 0
    return service.command[:start], service.command[start:]


def check_engine(context: Context, *, asked_parsers_only: bool = False) -> Iterator[Conflict]:
    """Yield options of the engine and parsers of answers that a framework with its own version of it does not have.

    Args:
        asked_parsers_only: whether only a parser that the blueprint names is refused: the framework goes without the
            catalog's, and itself refuses requests for what it would read.
    """
    name, engine = context.blueprint.framework, context.blueprint.engine
    framework, pair = context.blueprint.framework_row, context.pair
    assert pair, "a framework with a version of the engine has a row of it"
    arguments = engine_options.load_arguments(pair.arguments).arguments
    # A program of the framework's own may take fewer options than the engine's.
    lack = f"{'where there is' if pair.command else 'which has'} no such option"
    reason = f"{name} {framework.version} runs {engine} {pair.version}, {lack}"
    for placed in context.placed_roles:
        for path, value in placed.list_arguments():
            if path[-1] not in arguments:
                shown_value = value if isinstance(value, bool) else str(value)
                yield Conflict(path, reason, f"remove {path[-1]}, or use another framework", shown_value)
        selected = answer_parsers.select(placed)
        for key in pair.parsers:
            parser, is_asked = getattr(selected, key), getattr(placed.model_settings, key) != answer_parsers.AUTO
            if parser and not pair.find_parser(key, parser) and (is_asked or not asked_parsers_only):
                lack_reason = f"{name} reads answers itself, and has no parser {parser}"
                fix = f"set {key}: off, or use another framework"
                yield Conflict(placed.find_model_key_path(key), lack_reason, fix, parser)
