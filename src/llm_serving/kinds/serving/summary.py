"""What `check` shows of a serving deployment: a row for each part, or the same as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_serving.catalog import frameworks, models
from llm_serving.kinds.serving import measurements, predicted_load, router_policy
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.kinds.serving.price import price_deployment, price_replica
from llm_serving.services import tasks
from llm_serving.services.deployment import FoundDeployment, Traits
from llm_serving.services.models import ServedModel
from llm_serving.services.traffic import Draw, Traffic
from llm_serving.settings.document import Document

_USED_WELL = 0.9
"""Share of the capacity of unlike replicas below which other weights are advised."""


def build_payload(deployment: ServingDeployment) -> dict[str, Any]:
    """Return the deployment's pattern, models and roles as data."""
    return {
        "pattern": deployment.pattern,
        "models": [
            {
                "model": served_model.model,
                "context": served_model.context,
                "weight_bytes": served_model.weights.bytes,
                "memory": "computed" if served_model.weights.memory_computed else "not computed",
            }
            for served_model in deployment.served_models
        ],
        "roles": [
            {
                "name": role.name,
                "pool": role.pool,
                "instance_types": list(role.instance_types),
                "accelerators": role.accelerators,
                "machines": role.nodes,
                "replicas": {"least": role.replicas.min, "most": role.replicas.max},
            }
            for role in deployment.engine_roles
        ],
        **({"workers": _build_workers(deployment)} if deployment.mixed_roles else {}),
        "capacity": measurements.build_payload(deployment),
    }


def describe(blueprint: Document[Blueprint], deployment: ServingDeployment) -> list[tuple[str, str]]:
    """Return a label and a line for the blueprint, its models, its roles, its traffic and its SLO."""
    settings, traffic = blueprint.value, deployment.traffic
    sessions = f" in sessions of {traffic.turns} turns" if traffic.turns.max > 1 else ""
    load = f"{_describe_load(traffic)}{sessions}"
    return [
        ("blueprint", f"{deployment.name} ({blueprint.path}): {settings.pattern} for the target {deployment.target}"),
        *(("model", _describe_model(settings, served_model)) for served_model in deployment.served_models),
        *((role.name, _describe_role(role)) for role in deployment.engine_roles),
        ("router", _describe_router(settings, deployment)),
        ("traffic", f"{load}, {_describe_lengths(deployment)}, {traffic.requests} requests"),
        ("slo", _describe_slo(deployment)),
        *(("kv tiers", text) for text in deployment.cached_prompts),
        *(("weights", text) for text in _describe_weights(deployment)),
        *(("capacity", text) for text in measurements.describe(deployment)),
        *(("cost", text) for text in _describe_cost(deployment)),
    ]


def _describe_cost(deployment: ServingDeployment) -> Iterator[str]:
    priced = price_deployment(deployment)
    if priced is None:
        return
    least, reckoning = priced
    most = sum(
        role.replicas.max * (price_replica(role, deployment.environment.region) or 0)
        for role in deployment.engine_roles
    )
    span = f"{least:.2f} to {most:.2f}" if most > least else f"{least:.2f}"
    yield f"{span} USD/h: {reckoning}"


def _build_workers(deployment: ServingDeployment) -> list[dict[str, Any]]:
    loads = predicted_load.predict_workers(deployment)
    weights = predicted_load.choose_weights(loads) if loads else {}
    return [
        {
            "name": load.role.name,
            "weight": load.role.weight,
            "suggested_weight": weights[load.role.name],
            "replica_requests_per_s": round(load.replica_per_s, 3),
            "replica_under_way": round(load.under_way, 1),
            "requests_per_s": round(load.carried_per_s, 3),
        }
        for load in loads
    ]


def _describe_weights(deployment: ServingDeployment) -> Iterator[str]:
    """Yield each role's share and capacity by the prediction, and the weights that would use all of it."""
    if not deployment.mixed_roles or deployment.environment.conventions.is_local:
        return
    loads = predicted_load.predict_workers(deployment)
    if not loads:
        yield "not predicted for these accelerators: sweep the deployment, and set the weights by its report"
        return
    total, full = sum(load.carried_per_s for load in loads), 0.0
    for load in loads:
        replicas = max(1, load.role.replicas.max)
        full += replicas * load.replica_per_s
        yield (
            f"{load.role.name}: weight {load.role.weight}, {load.carried_per_s / total:.0%} of the requests; each of "
            f"{replicas} carries {load.replica_per_s:.3g}/s within the SLO, with {load.under_way:.0f} under way"
        )
    summary, weights = f"together {total:.3g}/s, by the prediction", predicted_load.choose_weights(loads)
    if total < _USED_WELL * full:
        fixes = ", ".join(f"{name} {weight}" for name, weight in weights.items())
        summary += f", of {full:.3g}/s that they could carry. Fix: set the weights {fixes}"
    yield summary


def _describe_router(blueprint: Blueprint, deployment: ServingDeployment) -> str:
    max_requests = blueprint.roles.router.max_requests
    limit = f", at most {max_requests} requests in flight, then 429" if max_requests else ""
    keys = ", asks for a key of a team" if blueprint.auth else ""
    served_models = [models.find(served_model.model, unchecked=True) for served_model in deployment.served_models]
    policy = router_policy.resolve_policy(blueprint, deployment.environment, served_models)
    return f"{policy}{limit}{keys}"


def _describe_lengths(deployment: ServingDeployment) -> str:
    traffic = deployment.traffic
    if not deployment.is_pooled:
        images = traffic.images
        pictures = f" and {images.count} pictures of {images.width} x {images.height}" if images else ""
        return f"{traffic.input_tokens} tokens{pictures} in, {traffic.output_tokens} out"
    if deployment.task == tasks.DRAW:
        draw = traffic.draw or Draw()
        steps = f" in {draw.steps} steps" if draw.steps else ""
        return f"{draw.count} x {draw.size or 'pictures'}{steps} by {tasks.POOLED[deployment.task].path}"
    return f"{traffic.inputs} x {traffic.input_tokens} tokens for {tasks.POOLED[deployment.task].path}"


def _describe_load(traffic: Traffic) -> str:
    if traffic.users is not None:
        return f"{traffic.users} users" + (f" that think for {traffic.think_time:g} s" if traffic.think_time else "")
    cap = f", at most {traffic.max_concurrency} at once" if traffic.max_concurrency else ""
    if traffic.replays_times:
        speed = f" at {traffic.trace_speed:g}x" if traffic.trace_speed != 1 else ""
        return f"the times of {traffic.trace}{speed}{cap}"
    burstiness = f", burstiness {traffic.burstiness:g}" if traffic.burstiness != 1 else ""
    return f"{traffic.arrivals:g} requests/s ({traffic.process}{burstiness}{cap})"


def _describe_slo(deployment: ServingDeployment) -> str:
    slo, pooled = deployment.slo, tasks.POOLED.get(deployment.task)
    limits = [
        f"{limit.metric.removesuffix('_ms')} {limit.statistic} < {limit.ms:g} ms"
        for limit in predicted_load.list_limits(slo)
    ]
    minimums = [
        f"at least {value:g} {unit}"
        for value, unit in (
            (slo.output_tokens_per_s, "output tokens/s"),
            (slo.requests_per_s, "requests/s"),
            (slo.inputs_per_s, f"{pooled.counted if pooled else 'texts'}/s"),
        )
        if value is not None
    ]
    if slo.score is not None:
        minimums.append(f"score at least {slo.score * 100:g}%")
    return ", ".join([*limits, *minimums, f"errors at most {slo.errors * 100:g}%"])


def _describe_model(blueprint: Blueprint, served_model: ServedModel) -> str:
    size = served_model.weights.bytes / 1e9
    gigabytes = f"{size:.{3 if size < 1 else 1}f} GB"
    weights = f"{gigabytes} of weights{'' if served_model.weights.memory_computed else ', memory not computed'}"
    context = "" if blueprint.task == tasks.DRAW else f"context {served_model.context}, "
    return f"{served_model.model} on {blueprint.engine}, {context}{weights}"


def _describe_role(role: Role) -> str:
    nodes = f" over {role.nodes} nodes" if role.nodes > 1 else ""
    types = " or ".join(role.instance_types)
    models = f", for {role.describe_models()} in turns" if role.sleepers else ""
    return f"{role.replicas} x {role.accelerators} accelerator(s) of {types}{nodes}, pool {role.pool}{models}"


def describe_for_others(deployment: ServingDeployment) -> FoundDeployment:
    """Return what other deployments need to call this one.

    With disaggregation no engine sees the whole time to a first token.
    """
    metrics = dict(deployment.engine_row.metrics)
    if deployment.answering_roles != deployment.engine_roles:
        metrics.pop("ttft", None)
    is_fixed = all(role.replicas.min == role.replicas.max for role in deployment.engine_roles)
    framework = frameworks.load_frameworks()[deployment.framework]
    usd_h, price = (price_deployment(deployment) if is_fixed else None) or (None, "")
    return FoundDeployment(
        name=deployment.name,
        kind=deployment.kind,
        url=deployment.url,
        models=deployment.model_names,
        task=deployment.task,
        usd_h=usd_h,
        price=price,
        slo=deployment.slo,
        metrics_urls=tuple(deployment.metrics_urls.values()),
        metrics=metrics,
        traits=Traits(
            has_priority=deployment.tuning.priority,
            classes=framework.build_class_headers(deployment.name) if deployment.tuning.priority else {},
            caller_header=framework.caller_header,
        ),
        door=deployment.door,
    )
