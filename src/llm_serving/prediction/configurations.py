"""The configurations that a search tries: what fits on each type, with the least that it can cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from llm_serving.catalog import step_times
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.catalog.step_times import Interval
from llm_serving.engines import vllm
from llm_serving.engines.memory import Fit, ReplicaSetup, Split, count_ranks, list_tensor_sizes
from llm_serving.prediction import disaggregation
from llm_serving.prediction.problem import Configuration, Problem
from llm_serving.prediction.simulation import Limits
from llm_serving.prediction.step_time import StepTime, apply_precision, has_facts
from llm_serving.prediction.workload import Workload

ALONE = "one request alone"
"""Begin of the reason why a type is out where no number of replicas helps."""

_BOUND_MARGIN = 0.9
"""Of the optimistic bound: a batch may be better than the one it was taken at."""

_BOUND_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_WITHOUT_ENGINE = ("Trainium", "Inferentia2")
"""Accelerators that AWS leaves to NxD Inference, which is in maintenance (AWS Neuron documentation 2.32, 2026-08)."""

_PIPELINES = (2, 4)
"""Stages, each on a node of its own. As many batches are under way at once, each with its share of the requests."""

_COPIES = (2, 4, 8)
"""Of the attention layers of a mixture of experts, in a node."""


class Prepared(NamedTuple):
    """A configuration that fits, with its bound."""

    configuration: Configuration
    step: StepTime
    interval: Interval
    limits: Limits
    least_replicas: int
    prefill: int = 0
    """Replicas that read prompts: the least, then those that are tried."""
    token_s: float = 0.0
    """Of the transfer of a prompt's token from these."""

    def compute_usd_h(self, replicas: int) -> float:
        """Return what so many replicas cost, with those of prefill."""
        return self.configuration.count_nodes(self.prefill + replicas) * self.configuration.usd_h

    @property
    def least_usd_h(self) -> float:
        """What cannot be stayed below."""
        return self.compute_usd_h(self.least_replicas)


def compute_busy_s(step: StepTime, limits: Limits, workload: Workload, read_tokens: float) -> float:
    """Return seconds of a step that a request takes, at the batch that takes least.

    Args:
        read_tokens: of each prompt that are not found in the cache.
    """
    context = workload.mean_input + workload.mean_output / 2
    own_context = context - workload.mean_shared
    busy_s = math.inf
    for sequences in _BOUND_SEQUENCES:
        if sequences > limits.sequences or (sequences > 1 and sequences * own_context > limits.cache_tokens):
            break
        prompts = sequences * read_tokens / workload.mean_output
        step_s = step.compute_base_s(round(sequences + prompts), sequences)
        step_s += step.compute_cache_s(sequences, sequences * context)
        busy_s = min(busy_s, workload.mean_output * step_s / sequences)
    return busy_s


@dataclass(frozen=True)
class Preparation:
    """Finds what fits on each type, and rejects the others."""

    problem: Problem
    reject: Callable[[Instance, str, str, float], None]
    """Takes a type, why it is out, the metric that decides, and how far it is from being in: the least is shown."""

    def prepare_all(self) -> Iterator[Prepared]:
        """Yield every configuration that may meet the SLO; of types alike in accelerators, those of the cheapest."""
        seen: dict[tuple[str, int, int], tuple[str, float]] = {}
        for instance, usd_h in sorted(self.problem.prices, key=lambda entry: entry[1]):
            device = instance.accelerators
            if device is None:
                continue
            key = (device.name, device.memory_mib, device.count)
            if key in seen:
                other, _ = seen[key]
                reason = f"the same accelerators as {other}, which costs less"
                self.reject(instance, reason, "price", math.inf)
                continue
            seen[key] = instance.name, usd_h
            if device.kind == "neuron":
                # Where the plugin runs, `blueprint check` takes neither part of a node nor any model or step.
                reason = (
                    f"AWS's plugin of vLLM runs on Trainium2 and later, not on {device.name}"
                    if device.name in _WITHOUT_ENGINE
                    else "AWS's plugin of vLLM takes whole nodes and compiles for few requests, which is not tried"
                )
                self.reject(instance, reason, "engine", math.inf)
                continue
            if not has_facts(device):
                self.reject(instance, f"the catalog lacks operations of 16 bits of {device.name}", "catalog", math.inf)
                continue
            yield from self._prepare_type(instance, usd_h, device)

    def _prepare_type(self, instance: Instance, usd_h: float, device: Accelerators) -> Iterator[Prepared]:
        problem, is_any, lacking = self.problem, False, list[tuple[str, float]]()
        context = problem.context or problem.workload.longest
        for precision, kv_type in _list_number_types(problem.model, device):
            model = apply_precision(problem.model, precision)
            for split in _list_splits(model, instance):
                fit = compute_fit(model, instance, split, context, kv_type)
                if not fit.fits:
                    lacking.append((fit.why.removesuffix("."), 1e9 / split.tensor))
                    continue
                is_any = True
                configuration = Configuration(instance, usd_h, split, precision, kv_type, None)
                yield from self.prepare(configuration, model, device, fit)
                if split.data == 1 and disaggregation.can_transfer(instance, split):
                    configuration = replace(configuration, is_disaggregated=True)
                    yield from self.prepare(configuration, model, device, fit)
        if not is_any and instance.efa_interfaces:
            is_any = yield from self._prepare_pipelines(instance, usd_h, device, context)
        for reason, rank in [] if is_any else lacking:
            self.reject(instance, reason, "memory", rank)

    def _prepare_pipelines(
        self, instance: Instance, usd_h: float, device: Accelerators, context: int
    ) -> Generator[Prepared, None, bool]:
        """Yield replicas of several nodes, for a model that none of them holds; returns whether there are any."""
        tensor = list_tensor_sizes(self.problem.model, instance)[-1]
        for pipeline in _PIPELINES:
            split = Split(tensor, pipeline)
            fit = compute_fit(self.problem.model, instance, split, context, "auto")
            if fit.fits:
                configuration = Configuration(instance, usd_h, split, "bf16", "auto", None)
                yield from self.prepare(configuration, self.problem.model, device, fit)
                return True
        return False

    def prepare(self, configuration: Configuration, model: Model, device: Accelerators, fit: Fit) -> Iterator[Prepared]:
        """Yield a configuration unless one request alone misses a limit."""
        split, kv_type, workload = configuration.split, configuration.kv_type, self.problem.workload
        key = (step_times.build_key(device), split, configuration.precision)
        times = self.problem.calibrations.get(key, step_times.load())
        step, batch = StepTime(model, device, split, kv_type, times), vllm.select_batch(device)
        interval = times.intervals[step.basis]
        if missed := self._find_impossible(step, interval):
            self.reject(configuration.instance, *missed)
            return
        batch_tokens, stages = configuration.batch_tokens or batch.tokens, split.pipeline
        setup = ReplicaSetup(**dataclasses.asdict(split), dtype=kv_type)
        running = vllm.count_running(model, fit.cache_bytes, setup, workload.mean_own)
        sequences = min(batch.sequences, running or batch.sequences)
        limits = Limits(max(1, sequences // stages), batch_tokens, fit.cache_tokens // stages)
        tokens, prefill, token_s = max(1.0, workload.mean_input - workload.mean_shared), 0, 0.0
        if configuration.is_disaggregated:
            prefill = self._bound_lanes(step.compute_base_s(batch_tokens, 1) * tokens / batch_tokens, interval)
            token_s = disaggregation.compute_transfer_s(model, configuration.instance, split, kv_type)
            tokens = 1.0  # that decode computes again
        busy_s = compute_busy_s(step, Limits(sequences, batch_tokens, fit.cache_tokens), workload, tokens)
        least = math.ceil(self._bound_lanes(busy_s, interval) / split.lanes)
        yield Prepared(configuration, step, interval, limits, least, prefill, token_s)

    def _bound_lanes(self, busy_s: float, interval: Interval) -> int:
        return max(1, math.ceil(self.problem.workload.rate * busy_s * interval.high * _BOUND_MARGIN))

    def _find_impossible(self, step: StepTime, interval: Interval) -> tuple[str, str, float] | None:
        """Return why a limit is missed even by one request alone, the metric, and by how much; None where none is."""
        workload = self.problem.workload
        tokens = max(1, round(workload.mean_input - workload.mean_shared))
        step_s = interval.high * (step.compute_base_s(1, 1) + step.compute_cache_s(1, workload.mean_input))
        first_s = interval.high * step.compute_base_s(tokens, 1) + step.first_token_s
        alone = {"ttft_ms": first_s, "itl_ms": step_s, "e2e_ms": first_s + step_s * (workload.mean_output - 1)}
        for limit in self.problem.limits:
            ms = 1000 * alone[limit.metric]
            if ms > limit.ms and limit.statistic in ("p95", "p99"):
                name = limit.metric.removesuffix("_ms")
                return f"{ALONE} takes {ms:,.3g} ms, more than {limit}", name, 1e6 * ms / limit.ms
        return None


def _list_splits(model: Model, instance: Instance) -> Iterator[Split]:
    """Yield the splits of a node; whole experts are spread where parts of each are not possible, and over copies of the
    attention layers, which keep a cache each."""
    assert instance.accelerators
    whole_blocks = vllm.lacks_fp8(instance.accelerators)
    for tensor in list_tensor_sizes(model, instance):
        misfit = vllm.describe_indivisible(model, Split(tensor), whole_blocks=whole_blocks)
        yield Split(tensor, whole_experts=model.experts > 0 and misfit != "")
        for data in _COPIES if model.experts else ():
            if tensor * data <= count_ranks(instance.accelerators):
                yield Split(tensor, whole_experts=True, data=data)


def compute_fit(model: Model, instance: Instance, split: Split, context: int, kv_type: str) -> Fit:
    setup = ReplicaSetup(**dataclasses.asdict(split), context=context, dtype=kv_type)
    return vllm.compute_fit(model, instance, setup)


def _list_number_types(model: Model, device: Accelerators) -> Iterable[tuple[str, str]]:
    """Yield types of weights and of the KV cache that the hardware multiplies."""
    has_fp8 = "fp8" in device.dense_tflops
    for precision in ("bf16", "fp8") if has_fp8 and not model.scheme else ("bf16",):
        yield precision, "auto"
        if has_fp8:
            yield precision, "fp8"
