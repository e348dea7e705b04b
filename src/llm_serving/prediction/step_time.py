"""Seconds of one step of an engine: a roofline of weights and operations, with what was measured beside it.

Source of the form: S. Williams et al., "Roofline: an insightful visual performance model", 2009; for transformers R.
Pope et al., "Efficiently Scaling Transformer Inference", 2022. The numbers are those of catalog/step_times.yaml.
"""

from __future__ import annotations

import copy
import math

from llm_serving.catalog import models, step_times
from llm_serving.catalog.architecture import EXPERTS, Architecture
from llm_serving.catalog.instances import Accelerators
from llm_serving.catalog.models import Model
from llm_serving.catalog.quantizations import FP8_TENSOR, NVFP4, Scheme
from llm_serving.catalog.step_times import StepTimes
from llm_serving.engines.memory import Split, compute_kv_layer_bytes, compute_state_bytes
from llm_serving.settings.errors import InputError, quote_value

PRECISIONS = {"bf16": None, "fp8": FP8_TENSOR, "fp4": NVFP4}
"""What weights of 16 bits can be served in."""

_ACTIVATION_BYTES = 2

_OPERATIONS = 2
"""Of a parameter and a token: a multiplication and an addition."""

_SHARPNESS = 4
"""Power with which memory and operations add up: 1 is one after the other, infinity the longer of both alone."""

_MULTIPLIED_IN = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "int8": "int8"}
"""In what the matrices of a scheme are multiplied, on hardware that can; int4 is widened to 16 bits everywhere."""

_EFFICIENCIES = {"bf16": "bf16_efficiency", "fp8": "fp8_efficiency", "int8": "fp8_efficiency", "fp4": "fp4_efficiency"}


def apply_precision(model: Model, precision: str) -> Model:
    """Return the model with its weights in a precision; a quantized checkpoint stays as it is stored."""
    scheme = PRECISIONS[precision]
    return model.model_copy(update={"scheme": scheme}) if scheme and not model.scheme else model


def select_precision(scheme: Scheme | None, device: Accelerators) -> str:
    """Return in what the matrices are multiplied: what the hardware does not have is widened to 16 bits first."""
    precision = _MULTIPLIED_IN.get(scheme.label, "bf16") if scheme else "bf16"
    return precision if precision in device.dense_tflops else "bf16"


def require_predicted(argument: str, name: str, model: Model) -> None:
    """Accept a model whose steps are predicted: it generates text, and the engine that is simulated reads it.

    Args:
        argument: that names the model.
        name: as it was written.

    Raises:
        InputError: they are not.
    """
    if model.task != "generate":
        raise InputError(f"{argument}: {quote_value(name)}: it generates no text. Fix: use a model that does.")
    if "safetensors" not in model.formats:
        copy = next(iter(models.list_copies(model, "safetensors")), "a model in safetensors")
        reason = "it is in GGUF, and the engine whose steps are predicted reads safetensors"
        raise InputError(f"{argument}: {quote_value(name)}: {reason}. Fix: use {copy}.")


def has_facts(device: Accelerators) -> bool:
    """Return whether the catalog knows what a prediction follows from."""
    return bool(device.bandwidth_gb_s and device.dense_tflops.get("bf16"))


class StepTime:
    """Seconds of the steps of one replica.

    Raises:
        InputError: the catalog lacks a fact of the accelerator.
    """

    steps_ahead = 1
    """vLLM 0.32.0, config/vllm.py: `async_scheduling` is on unless an option speaks against it; v1/engine/core.py,
    `step_with_batch_queue` schedules a step while the one before it runs."""

    def __init__(
        self,
        model: Architecture,
        device: Accelerators,
        split: Split,
        kv_type: str = "auto",
        times: StepTimes | None = None,
    ) -> None:
        times = times or step_times.load()
        if not has_facts(device) or device.bandwidth_gb_s is None:
            raise InputError(f"{device.name}: its bandwidth or operations are not known. Fix: use another type.")
        self._model, self._device, self.split, self._share = model, device, split, 1.0
        self.basis = times.get_basis(device)
        self._precision = select_precision(model.scheme, device)
        self._bandwidth = device.bandwidth_gb_s * 1e9 / device.ranks
        self._operations = device.dense_tflops[self._precision] * 1e12 / device.ranks
        self._link = times.get_link(device).gb_s * 1e9 if split.expert_ranks > 1 else 1.0
        self._measure_weights(split.tensor)
        self._measure_cache(split.tensor, kv_type)
        self.use(times)

    def stretch(self, share: float) -> StepTime:
        """Return the same steps, of which each takes so many times as long; the first token's delay stays."""
        stretched = copy.copy(self)
        stretched._share = share
        return stretched

    def _measure_weights(self, ways: int) -> None:
        model = self._model
        groups = [group for group in model.list_tensors() if group.loaded and group.active_share > 0]
        self._dense_bytes = sum(group.bytes for group in groups if group.name != EXPERTS) / ways
        self._expert_bytes = sum(group.bytes for group in groups if group.name == EXPERTS)
        self._expert_bytes /= self.split.expert_ranks
        self._missed_share = 1 - model.active_experts / model.experts if model.experts else 0.0
        self._own_experts = model.experts / self.split.expert_ranks if self.split.whole_experts else 0.0
        self._token_operations = _OPERATIONS * sum(group.parameters * group.active_share for group in groups) / ways
        experts = [group.parameters * group.active_share for group in groups if group.name == EXPERTS]
        self._expert_share = _OPERATIONS * sum(experts) / ways / self._token_operations

    def _measure_cache(self, ways: int, kv_type: str) -> None:
        model = self._model
        self._token_bytes = model.full_layers * compute_kv_layer_bytes(model, ways, kv_type)
        self._window_bytes = model.sliding_layers * compute_kv_layer_bytes(model, ways, kv_type, has_window=True)
        self._state_bytes = 2 * model.linear_layers * compute_state_bytes(model, ways)  # read and written
        width = model.latent.kv_rank if model.latent else model.full_heads[1]
        operations = _OPERATIONS * model.heads / ways  # for each number of a key, and of a value
        self._pair_operations = model.full_layers * operations * (width + (model.value_dim or width))
        window_width = model.head_dim + (model.value_dim or model.head_dim)
        self._window_pair_operations = model.sliding_layers * operations * window_width

    def use(self, times: StepTimes) -> None:
        """Take other coefficients."""
        c, model, ways = times.coefficients, self._model, self.split.tensor
        scale = times.get_scale(self._device)
        memory = self._bandwidth * c.memory_efficiency / scale
        self._dense_s, self._expert_s = self._dense_bytes / memory, self._expert_bytes / (memory * c.expert_efficiency)
        efficiency = getattr(c, _EFFICIENCIES[self._precision])
        self._token_s = scale * self._token_operations / (self._operations * efficiency)
        cache = self._bandwidth * c.cache_efficiency / scale
        self._token_cache_s, self._window_cache_s = self._token_bytes / cache, self._window_bytes / cache
        attention = self._device.dense_tflops["bf16"] * 1e12 / self._device.ranks * c.attention_efficiency / scale
        self._pair_s = self._pair_operations / attention
        self._window_pair_s = self._window_pair_operations / attention
        self._sequence_s = scale * c.sequence_s + self._state_bytes / cache
        layer_s = c.layer_s + (c.expert_layer_s if model.experts else 0.0)
        self._fixed_s = scale * (c.step_s + model.layers * layer_s)
        self._token_link_s = 0.0
        if ways > 1:  # two all-reduces a layer, each a scatter and a gather
            self._fixed_s += scale * 2 * model.layers * c.reduce_s
            token_bytes = 2 * model.layers * 2 * (ways - 1) / ways * model.hidden * _ACTIVATION_BYTES
            self._token_link_s = token_bytes / (self._link * c.link_efficiency)
        if self.split.data > 1:
            self._add_exchange(times, scale)
        self.first_token_s = c.first_token_s

    def _add_exchange(self, times: StepTimes, scale: float) -> None:
        """Add what the experts' layers exchange: the tokens of all copies are gathered, and the sums scattered.

        Source: vLLM 0.32.0, distributed/device_communicators/all2all.py, `AgRsAll2AllManager`, the default backend
        (`all2all_backend` in config/parallel.py). One of each takes what an all-reduce does, besides the bytes.
        """
        layers = self._model.sparse_layers
        token_bytes = 2 * layers * (self.split.data - 1) * self._model.hidden * _ACTIVATION_BYTES
        self._fixed_s += scale * layers * times.coefficients.reduce_s
        self._token_link_s += token_bytes / (self._link * times.coefficients.link_efficiency)

    def compute_base_s(self, tokens: int, sequences: int) -> float:
        """Return seconds of a step without what grows with the length of its requests."""
        weights_s = self._dense_s + self._expert_s * self._compute_touched_share(tokens)
        operations_s = tokens * self._token_s * self._compute_unevenness(tokens)
        overlapped_s: float = (weights_s**_SHARPNESS + operations_s**_SHARPNESS) ** (1 / _SHARPNESS)
        seconds = overlapped_s + self._fixed_s + sequences * self._sequence_s + tokens * self._token_link_s
        return self._share * seconds

    def compute_cache_s(self, sequences: int, context: float) -> float:
        """Return seconds to read the caches of requests that have `context` tokens together."""
        window = min(context, sequences * (self._model.window or 0))
        return self._share * (context * self._token_cache_s + window * self._window_cache_s)

    def compute_attention_s(self, tokens: int, before: int) -> float:
        """Return seconds of the attention of a part of a prompt, to itself and to the tokens before it."""
        mean = before + tokens / 2
        pairs_s = mean * self._pair_s + min(mean, self._model.window or 0) * self._window_pair_s
        return self._share * (tokens * pairs_s)

    def _compute_touched_share(self, tokens: int) -> float:
        """Return the share of the experts that so many tokens of each copy visit, each by its own choice.

        Of whole experts, it is that of the accelerator with the most: all others wait for it.
        """
        share = 1 - self._missed_share ** (tokens * self.split.data) if self._missed_share else 1.0
        if not self._own_experts:
            return share
        return min(1.0, share + self._count_deviations() * math.sqrt(share * (1 - share) / self._own_experts))

    def _compute_unevenness(self, tokens: int) -> float:
        """Return the operations of the accelerator that has the most, as a multiple of the mean."""
        if not self._own_experts:
            return 1.0
        visits = tokens * self.split.data * (1 - self._missed_share) * self._own_experts
        most = min(self.split.expert_ranks, 1 + self._count_deviations() / math.sqrt(visits))
        return 1 + self._expert_share * (most - 1)

    def _count_deviations(self) -> float:
        """Return how far above the mean the largest of so many normal values is expected at most, in deviations."""
        return math.sqrt(2 * math.log(self.split.expert_ranks))
