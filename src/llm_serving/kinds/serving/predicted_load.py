"""Requests a second that a deployment is predicted to carry: within its SLO where that limits a latency."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from llm_serving.catalog import engines, instances, models, step_times
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.models import Model
from llm_serving.engines import base
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.kinds.serving.checks import pictures
from llm_serving.kinds.serving.deployment import DECODE, PREFILL, Role, ServingDeployment
from llm_serving.kinds.serving.placement import apply_quantization
from llm_serving.kinds.serving.roles import MAX_WEIGHT
from llm_serving.prediction import configurations, problem, search, step_time
from llm_serving.prediction.problem import Limit
from llm_serving.prediction.simulation import Limits, Simulation
from llm_serving.prediction.step_time import StepTime
from llm_serving.prediction.workload import Length, Workload
from llm_serving.services import tasks
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.errors import InputError
from llm_serving.validation.load import load_plan

LENGTHS = 250
"""Requests that are simulated at each rate."""

_NEAR_FULL = 0.9
"""Of the highest rate: at all of it a queue may grow, and the requests under way with it."""


def list_limits(slo: Slo) -> list[Limit]:
    """Return the limits of an SLO on latencies."""
    return [
        Limit(metric, name, ms) for metric in problem.METRICS for name, ms in getattr(slo, metric) if ms is not None
    ]


def draw_lengths(traffic: Traffic, count: int, more_tokens: int = 0) -> list[Length]:
    """Return the lengths of a traffic's requests, as `validate` draws them.

    Args:
        more_tokens: of each prompt, such as those of its pictures.
    """
    rows = itertools.islice(load_plan.draw_lengths(traffic, "load"), count)
    return [Length(row.input_tokens + more_tokens, row.output_tokens, row.group, row.shared_tokens) for row in rows]


def predict_requests_per_s(deployment: ServingDeployment) -> float | None:
    """Return the prediction for the deployment's own traffic; None without accelerators or where a fact lacks."""
    if deployment.mixed_roles:
        loads = predict_workers(deployment)
        return sum(load.carried_per_s for load in loads) if loads else None
    return _predict(deployment, _draw_own_lengths(deployment), list_limits(deployment.slo))


class WorkerLoad(NamedTuple):
    """What the replicas of one role carry, beside those of other roles with the same model."""

    role: Role
    replica_per_s: float
    """Requests a second of a replica by itself, within the SLO."""

    under_way: float
    carried_per_s: float
    """Of all its replicas, when by the weights of all roles the first replica is full."""


def predict_workers(deployment: ServingDeployment) -> list[WorkerLoad]:
    """Return what each role of one model on unlike accelerators carries; nothing where one cannot be predicted."""
    if deployment.environment.conventions.is_local or deployment.task == tasks.DRAW:
        return []
    lengths, limits = _draw_own_lengths(deployment), list_limits(deployment.slo)
    replica_loads = [_predict_replica(deployment, role, lengths, limits) for role in deployment.mixed_roles]
    loads = [entry for entry in replica_loads if entry]
    if len(loads) < len(replica_loads):
        return []
    share = min(load.under_way / load.role.weight for load in loads)
    return [
        load._replace(carried_per_s=load.carried_per_s * share * load.role.weight / load.under_way) for load in loads
    ]


def choose_weights(loads: Sequence[WorkerLoad]) -> dict[str, int]:
    """Return the weights with which the replicas of all roles are full at the same load."""
    least = min(load.under_way for load in loads)
    return {load.role.name: min(MAX_WEIGHT, round(load.under_way / least)) for load in loads}


def _predict_replica(
    deployment: ServingDeployment, role: Role, lengths: list[Length], limits: list[Limit]
) -> WorkerLoad | None:
    role_step, rate = _find_step(deployment, role, lengths), _predict_role(deployment, role, lengths, limits)
    if not (role_step and rate):
        return None
    requests = Workload(_NEAR_FULL * rate / role_step.lanes, lengths).draw(len(lengths), 1, 0)
    e2e_s = fmean(Simulation(role_step.step, role_step.limits).run(requests).e2e_s)
    replica_per_s = rate / max(1, role.replicas.max)
    return WorkerLoad(role, replica_per_s, replica_per_s * e2e_s, rate)


def _draw_own_lengths(deployment: ServingDeployment) -> list[Length]:
    traffic, model = deployment.traffic, _find_first_model(deployment)
    if deployment.is_pooled:  # one prefill of all texts of a request
        lengths = [length._replace(output_tokens=0) for length in draw_lengths(traffic, LENGTHS)]
        texts = (traffic.inputs.min + traffic.inputs.max) / 2
        lengths = [length._replace(input_tokens=round(length.input_tokens * texts)) for length in lengths]
    else:
        images = traffic.images
        picture_tokens = fmean(images.count) * pictures.count_tokens(model, images) if images and model else 0.0
        lengths = draw_lengths(traffic, LENGTHS, round(picture_tokens))
    if not deployment.tuning.prefix_cache or (model and not deployment.engine_row.caches_prompts(model)):
        lengths = [length._replace(shared_tokens=0) for length in lengths]
    return lengths


def predict_most_per_s(deployment: ServingDeployment, input_tokens: float, output_tokens: float) -> float | None:
    """Return the optimistic end of the prediction for requests of these lengths, whatever their latency."""
    lengths = [Length(max(1, round(input_tokens)), round(output_tokens))]
    per_s, role_step = _predict(deployment, lengths, []), _find_step(deployment, deployment.engine_roles[0], lengths)
    return per_s / step_times.load().intervals[role_step.step.basis].low if per_s and role_step else None


def _predict(deployment: ServingDeployment, lengths: list[Length], limits: list[Limit]) -> float | None:
    roles = deployment.engine_roles
    takes_turns = any(role.sleepers for role in roles)
    if deployment.environment.conventions.is_local or deployment.task == tasks.DRAW or takes_turns:
        return None
    rates = [rate for role in roles if (rate := _predict_role(deployment, role, lengths, limits))]
    if not rates or len(rates) < len(roles):
        return None
    # Of prefill and decode the slower one decides; each of several models has its share of the requests.
    return min(rates) * (len(rates) if len(deployment.served_models) > 1 else 1)


class _RoleStep(NamedTuple):
    step: StepTime
    limits: Limits
    lanes: float
    """Replicas, and in each the stages, and the copies, that have requests of their own."""


def _find_step(deployment: ServingDeployment, role: Role, lengths: list[Length]) -> _RoleStep | None:
    try:
        instance = instances.find(role.instance_types[0])
        served = role.served_model
        model = models.find(served.model) if served else None
    except (ModelError, InputError, IndexError):
        return None
    device, tuning, own = instance.accelerators, deployment.tuning, role.parallelism
    if served is None or model is None or device is None or role.batch is None or not step_time.has_facts(device):
        return None
    spreads_experts = model.experts and "expert-data" in engines.load_engines()[deployment.engine].options
    split = Split(own.tensor, own.pipeline, own.expert, own.data if spreads_experts and role.nodes == 1 else 1)
    # The batches of all stages share the engine's requests and its cache.
    running = min(role.batch.sequences, _count_running(deployment, role, model, lengths) or role.batch.sequences)
    cache_tokens = role.cache_tokens if not model.encoder else role.batch.sequences * served.context  # it keeps none
    limits = Limits(max(1, running // own.pipeline), role.batch.tokens, cache_tokens // own.pipeline)
    lanes = max(1, role.replicas.max) * role.accelerators / own.tensor
    return _RoleStep(StepTime(apply_quantization(model, tuning), device, split, tuning.kv_cache), limits, lanes)


def _count_running(deployment: ServingDeployment, role: Role, model: Model, lengths: list[Length]) -> int | None:
    """Return requests of the mean length that have room at once; None where the tokens of the cache say it."""
    if role.served_model is None or not role.cache_bytes:
        return None
    own, tuning = role.parallelism, deployment.tuning
    setup = ReplicaSetup(
        own.tensor,
        own.pipeline,
        context=role.served_model.context,
        dtype=tuning.kv_cache,
        batch=role.batch,
        prefix_cache=tuning.prefix_cache,
    )
    count = base.get_memory_model(deployment.engine).count_running
    return count(model, role.cache_bytes, setup, Workload(1.0, lengths).mean_own)


def _predict_role(
    deployment: ServingDeployment, role: Role, lengths: list[Length], limits: list[Limit]
) -> float | None:
    role_step = _find_step(deployment, role, lengths)
    if role_step is None:
        return None
    workload = Workload(1.0, lengths)
    if role.name == PREFILL or not workload.mean_output:
        tokens = role_step.limits.batch_tokens
        return role_step.lanes / (role_step.step.compute_base_s(tokens, 1) * workload.mean_input / tokens)
    read_tokens = 1.0 if role.name == DECODE else max(1.0, workload.mean_input - workload.mean_shared)
    most = 1 / configurations.compute_busy_s(role_step.step, role_step.limits, workload, read_tokens)
    if role.name != DECODE and limits:
        most = search.find_highest_rate(role_step.step, role_step.limits, workload, limits, most)
    return role_step.lanes * most


def _find_first_model(deployment: ServingDeployment) -> Model | None:
    try:
        return models.find(deployment.served_models[0].model)
    except ModelError:
        return None
