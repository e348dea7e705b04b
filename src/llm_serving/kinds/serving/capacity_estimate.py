"""Requests a second that a deployment might carry, by arithmetic alone: which configuration to try first.

A roofline of prefill, bound by operations, and of decode, bound by memory bandwidth: a step reads the weights once and
the cache of every request in it. Nothing reaches it; but what is twice as high here is rarely the slower one.
Source: S. Williams et al., "Roofline: an insightful visual performance model", 2009; for transformers R. Pope et al.,
"Efficiently Scaling Transformer Inference", 2022.
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from llm_serving.catalog import instances, models
from llm_serving.catalog.architecture import ModelError
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import base, memory
from llm_serving.kinds.serving.checks import pictures
from llm_serving.kinds.serving.deployment import DECODE, PREFILL, Role, ServingDeployment
from llm_serving.kinds.serving.placement import apply_quantization
from llm_serving.settings.errors import InputError

OPERATIONS_PER_PARAMETER = 2
"""Of one token's pass: a multiplication and an addition."""


class _Lengths(NamedTuple):
    input_tokens: float
    output_tokens: float


def estimate_requests_per_s(deployment: ServingDeployment) -> float | None:
    """Return the estimate for the traffic's mean lengths; None where the target has no accelerators or a fact lacks."""
    return estimate_for_lengths(deployment, *_compute_lengths(deployment))


def estimate_for_lengths(deployment: ServingDeployment, input_tokens: float, output_tokens: float) -> float | None:
    """Return the estimate for requests of these lengths; see `estimate_requests_per_s`."""
    lengths = _Lengths(input_tokens, output_tokens)
    if deployment.environment.conventions.is_local:
        return None
    estimates = [_estimate_role(deployment, role, lengths) for role in deployment.engine_roles]
    rates = [estimate for estimate in estimates if estimate is not None]
    if not rates or len(rates) < len(estimates):
        return None
    # Of prefill and decode the slower one decides; each of several models has its share of the requests.
    return min(rates) * (len(rates) if _are_models(deployment) else 1)


def _are_models(deployment: ServingDeployment) -> bool:
    return len(deployment.served_models) > 1


def _estimate_role(deployment: ServingDeployment, role: Role, lengths: _Lengths) -> float | None:
    try:
        instance = instances.find(role.instance_types[0])
        model = models.find(role.served_model.model) if role.served_model else None
    except (ModelError, InputError, IndexError):
        return None
    device = instance.accelerators
    if model is None or device is None or not device.bandwidth_gb_s or not device.dense_tflops.get("bf16"):
        return None
    prefill_s = 0.0 if role.name == DECODE else _compute_prefill_s(model, device, role, lengths)
    is_prefill = role.name == PREFILL or deployment.is_pooled
    decode_s = 0.0 if is_prefill else _compute_decode_s(deployment, role, model, instance, device, lengths)
    if decode_s is None or prefill_s + decode_s <= 0:
        return None
    return max(1, role.replicas.max) / (prefill_s + decode_s)


def _compute_lengths(deployment: ServingDeployment) -> _Lengths:
    """Return mean tokens of a request; of a task without tokens in its answers, those of all its texts."""
    traffic = deployment.traffic

    def compute_mean(lengths: object) -> float:
        mean = getattr(lengths, "mean", None)
        return float(mean if mean is not None else (lengths.min + lengths.max) / 2)  # type: ignore[attr-defined]

    if deployment.is_pooled:
        return _Lengths(compute_mean(traffic.input_tokens) * compute_mean(traffic.inputs), 0.0)
    input_tokens = compute_mean(traffic.input_tokens) + _count_picture_tokens(deployment)
    return _Lengths(input_tokens, compute_mean(traffic.output_tokens))


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


def _compute_prefill_s(model: Model, device: Accelerators, role: Role, lengths: _Lengths) -> float:
    """Return seconds of a replica's operations for one prompt."""
    operations = OPERATIONS_PER_PARAMETER * model.active_parameters * lengths.input_tokens
    return operations / (device.dense_tflops["bf16"] * 1e12 * role.accelerators / device.ranks)


def _compute_decode_s(
    deployment: ServingDeployment, role: Role, model: Model, instance: Instance, device: Accelerators, lengths: _Lengths
) -> float | None:
    """Return seconds of a replica's steps for one answer, at the largest batch that memory and limits allow."""
    arithmetic, parallelism = base.get_memory_model(deployment.engine), role.parallelism
    fit = arithmetic.compute_fit(
        apply_quantization(model, deployment.tuning),
        instance,
        parallelism.tensor,
        pipeline=parallelism.pipeline,
        context=min(role.served_model.context, model.max_context) if role.served_model else None,
        dtype=deployment.tuning.kv_cache,
    )
    sequences = deployment.tuning.sequences or arithmetic.select_batch(device).sequences
    batch = min(float(sequences), fit.cache_tokens / (lengths.input_tokens + lengths.output_tokens))
    if batch < 1:
        return None
    cache_bytes = memory.compute_kv_bytes_per_token(model, 1, deployment.tuning.kv_cache) * (
        lengths.input_tokens + lengths.output_tokens / 2
    )
    bandwidth = (device.bandwidth_gb_s or 0) * 1e9 * role.accelerators / device.ranks
    step_s = (fit.weight_bytes * role.accelerators + batch * cache_bytes) / bandwidth
    return step_s * lengths.output_tokens / batch
