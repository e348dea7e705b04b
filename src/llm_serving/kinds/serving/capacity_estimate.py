"""Requests a second that a deployment might carry: which configuration to try first.

`estimate_requests_per_s` is what the step times of catalog/step_times.yaml predict, `estimate_for_lengths` the most
that the hardware's peaks allow, which nothing reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

from llm_serving.catalog import instances, models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import base
from llm_serving.kinds.serving.checks import pictures
from llm_serving.kinds.serving.deployment import DECODE, PREFILL, Role, ServingDeployment
from llm_serving.kinds.serving.placement import apply_quantization
from llm_serving.prediction import step_time
from llm_serving.prediction.step_time import Split, StepTime
from llm_serving.settings.errors import InputError


class _Lengths(NamedTuple):
    input_tokens: float
    output_tokens: float
    shared_tokens: float = 0.0
    """Of the prompt, which the prefix cache has."""


_ComputeStep = Callable[[StepTime, int, int, float], float]
"""Seconds of a step of so many tokens and sequences with so many tokens of context."""


def estimate_requests_per_s(deployment: ServingDeployment) -> float | None:
    """Return the prediction for the traffic's mean lengths; None without accelerators or where a fact lacks."""
    return _estimate(deployment, _compute_lengths(deployment), _predict_step_s)


def estimate_for_lengths(deployment: ServingDeployment, input_tokens: float, output_tokens: float) -> float | None:
    """Return the bound for requests of these lengths; see `estimate_requests_per_s`."""
    return _estimate(deployment, _Lengths(input_tokens, output_tokens), StepTime.compute_floor_s)


def _predict_step_s(step: StepTime, tokens: int, sequences: int, context: float) -> float:
    return step.compute_base_s(tokens, sequences) + step.compute_cache_s(sequences, context)


def _estimate(deployment: ServingDeployment, lengths: _Lengths, compute_step_s: _ComputeStep) -> float | None:
    if deployment.environment.conventions.is_local:
        return None
    estimates = [_estimate_role(deployment, role, lengths, compute_step_s) for role in deployment.engine_roles]
    rates = [estimate for estimate in estimates if estimate is not None]
    if not rates or len(rates) < len(estimates):
        return None
    # Of prefill and decode the slower one decides; each of several models has its share of the requests.
    return min(rates) * (len(rates) if _are_models(deployment) else 1)


def _are_models(deployment: ServingDeployment) -> bool:
    return len(deployment.served_models) > 1


def _estimate_role(
    deployment: ServingDeployment, role: Role, lengths: _Lengths, compute_step_s: _ComputeStep
) -> float | None:
    try:
        instance = instances.find(role.instance_types[0])
        model = models.find(role.served_model.model) if role.served_model else None
    except (ModelError, InputError, IndexError):
        return None
    device, tuning = instance.accelerators, deployment.tuning
    if model is None or device is None or not step_time.has_facts(device):
        return None
    parallelism = role.parallelism
    quantized = apply_quantization(model, tuning)
    step = StepTime(quantized, device, Split(parallelism.tensor, parallelism.pipeline), tuning.kv_cache)
    batch = base.get_memory_model(deployment.engine).select_batch(device)
    batch_tokens = tuning.batch_tokens or batch.tokens
    if role.name == PREFILL or not lengths.output_tokens:
        request_s = compute_step_s(step, batch_tokens, 1, 0.0) * lengths.input_tokens / batch_tokens
    else:
        most = tuning.sequences or batch.sequences
        sequences = _count_sequences(deployment, role, quantized, instance, most, lengths)
        if sequences < 1:
            return None
        new_tokens = 0.0 if role.name == DECODE else lengths.input_tokens - lengths.shared_tokens
        read = sequences * new_tokens / lengths.output_tokens
        tokens = min(sequences + round(read), max(batch_tokens, sequences))
        context = sequences * (lengths.input_tokens + lengths.output_tokens / 2)
        step_s = compute_step_s(step, tokens, sequences, context)
        # Prompts of more tokens than a step takes need further steps.
        request_s = step_s * max(1.0, (sequences + read) / tokens) * lengths.output_tokens / sequences
    lanes = role.accelerators / parallelism.tensor
    return max(1, role.replicas.max) * lanes / request_s


def _count_sequences(
    deployment: ServingDeployment, role: Role, model: Model, instance: Instance, most: int, lengths: _Lengths
) -> int:
    """Return the largest batch of a replica that memory and limits allow."""
    context = min(role.served_model.context, model.max_context) if role.served_model else None
    fit = base.get_memory_model(deployment.engine).compute_fit(
        model,
        instance,
        role.parallelism.tensor,
        pipeline=role.parallelism.pipeline,
        context=context,
        dtype=deployment.tuning.kv_cache,
    )
    return min(most, int(fit.cache_tokens / (lengths.input_tokens + lengths.output_tokens)))


def _compute_lengths(deployment: ServingDeployment) -> _Lengths:
    """Return mean tokens of a request; of a task without tokens in its answers, those of all its texts."""
    traffic = deployment.traffic

    def compute_mean(lengths: object) -> float:
        mean = getattr(lengths, "mean", None)
        return float(mean if mean is not None else (lengths.min + lengths.max) / 2)  # type: ignore[attr-defined]

    if deployment.is_pooled:
        return _Lengths(compute_mean(traffic.input_tokens) * compute_mean(traffic.inputs), 0.0)
    input_tokens = compute_mean(traffic.input_tokens) + _count_picture_tokens(deployment)
    shared_tokens = traffic.shared_prefix * input_tokens if deployment.tuning.prefix_cache else 0.0
    return _Lengths(input_tokens, compute_mean(traffic.output_tokens), shared_tokens)


def _count_picture_tokens(deployment: ServingDeployment) -> float:
    """Return mean tokens of a request's pictures, by the first model."""
    images = deployment.traffic.images
    if images is None:
        return 0.0
    try:
        model = models.find(deployment.served_models[0].model)
    except ModelError:
        return 0.0
    return fmean(images.count) * pictures.count_tokens(model, images)
