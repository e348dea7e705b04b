"""How the router chooses a replica, and what decided that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from llm_serving.catalog.architecture import Architecture
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import Context, get_router
from llm_serving.kinds.serving.roles import RouterPolicy
from llm_serving.services import tasks
from llm_serving.services.environment import Environment


def resolve_policy(blueprint: Blueprint, environment: Environment, models: Iterable[Architecture]) -> RouterPolicy:
    """Return how the router chooses a replica: as written, else by cached prefixes where prompts share enough.

    Of requests whose answers have no tokens, the router reads no text: by prefixes it would send all of them to one
    replica until that has much more to do than the others. Source: vllm-router 0.1.17, called.
    """
    written_policy = blueprint.roles.router.policy
    if _reads_no_text(blueprint):
        return "load-aware"
    router = get_router(blueprint)
    if "load-aware" not in router.policies:
        return written_policy or "round-robin"
    shares_enough = resolve_shared_prefix(blueprint, environment) > router.cache_aware_share
    is_cache_aware = shares_enough and keeps_prompts(blueprint, models)
    return written_policy or ("cache-aware" if is_cache_aware else "load-aware")


def keeps_prompts(blueprint: Blueprint, models: Iterable[Architecture]) -> bool:
    """Return whether a replica of any of the models keeps prompts that a router could follow."""
    return blueprint.tuning.prefix_cache and any(map(blueprint.engine_row.caches_prompts, models))


def resolve_shared_prefix(blueprint: Blueprint, environment: Environment) -> float:
    """Return share of a prompt that others share: as the blueprint states it, else as it was measured."""
    if blueprint.traffic.has_shared_prefix or environment.measured is None:
        return blueprint.traffic.shared_prefix
    return environment.measured.shared_prefix


def describe(context: Context) -> Iterator[str]:
    """Yield the policy and its reason, where it is not the one that the blueprint names."""
    blueprint = context.blueprint
    if _reads_no_text(blueprint):
        path = tasks.POOLED[blueprint.task].path
        yield f"The router's policy is {context.policy}: of requests to {path} it reads no text to follow."
    elif blueprint.roles.router.policy is None and "load-aware" in context.router.policies:
        yield f"The router's policy is {context.policy}, {_describe_reason(context)}."


def _reads_no_text(blueprint: Blueprint) -> bool:
    """Return whether the policy would follow prompts of requests of which the router reads none."""
    return blueprint.is_pooled and blueprint.roles.router.policy in (None, "cache-aware")


def _describe_reason(context: Context) -> str:
    """Return what decided the policy: the share of the prompts and where it is from, or that none is kept."""
    traffic, prefix = context.blueprint.traffic, context.environment.measured
    if not context.blueprint.tuning.prefix_cache:
        return "since by tuning: {prefix_cache: off} no engine keeps a prompt"
    if not keeps_prompts(context.blueprint, context.models):
        return f"since {context.blueprint.engine} keeps no prompt of such a model"
    shared_prefix = resolve_shared_prefix(context.blueprint, context.environment)
    threshold = context.router.cache_aware_share
    comparison = f"{'more' if shared_prefix > threshold else 'not more'} than the {threshold:.0%} that it follows"
    if traffic.has_shared_prefix or (prefix is None and traffic.prompt_file is None):
        statement = (
            f"{shared_prefix:.0%} of each prompt is shared, {comparison}"
            if shared_prefix
            else "its prompts share nothing"
        )
        return f"since by the blueprint's traffic {statement}"
    if prefix is None:
        return f"until `blueprint validate` has measured what the prompts of {traffic.prompt_file} share"
    return (
        f"since by the validation of {prefix.measured_at} earlier prompts begin with {shared_prefix:.0%} of each, "
        f"{comparison}"
    )
