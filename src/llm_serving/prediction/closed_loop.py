"""What so many users would measure on one replica, who begin one after the other, as those of `validate` do."""

from __future__ import annotations

import random
from typing import NamedTuple

from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.catalog.step_times import Interval, StepTimes, load
from llm_serving.engines import vllm
from llm_serving.engines.memory import ReplicaSetup, Split, count_ranks, list_tensor_sizes
from llm_serving.prediction import simulation
from llm_serving.prediction.simulation import Limits, Request, Simulation
from llm_serving.prediction.step_time import StepTime
from llm_serving.settings.errors import CheckFailed, InputError

_ROUNDS = 20
"""Requests of each user: the more, the less the loop's ramp and its end weigh."""

_WARM_UP = 10
"""Requests that `validate` sends first by default."""

_SPREAD = 0.1
"""Lengths vary by so much around what was asked: users of equal lengths would send their prompts all at once."""


class ClosedLoop(NamedTuple):
    """Means, in milliseconds, with what limits them."""

    ttft_ms: float
    itl_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    basis: str
    interval: Interval
    """Around the times, as multiples."""
    preemptions: int


def predict(
    model: Model,
    instance: Instance,
    tensor: int,
    input_tokens: int,
    output_tokens: int,
    users: int,
    times: StepTimes | None = None,
) -> ClosedLoop:
    """Predict the means of a closed loop on one replica, on vLLM's own limits.

    Raises:
        InputError: the type has no accelerators or too few of them, or the model cannot be split so often.
        CheckFailed: the model or a request has no room.
    """
    device = _require_split(model, instance, tensor)
    context = round((input_tokens + output_tokens) * (1 + _SPREAD))
    fit = vllm.compute_fit(model, instance, ReplicaSetup(tensor, context=context))
    if not fit.fits:
        fix = "use another type, more accelerators or fewer bits"
        raise CheckFailed(f"{model.name} on {instance.name}: {fit.why}. Fix: {fix}.")
    step = StepTime(model, device, Split(tensor), times=times)
    batch = vllm.select_batch(device)
    drawing = random.Random(0)

    def draw(tokens: int) -> int:
        return max(1, round(tokens * drawing.uniform(1 - _SPREAD, 1 + _SPREAD)))

    requests = [Request(0.0, draw(input_tokens), max(2, draw(output_tokens))) for _ in range(_ROUNDS * users)]
    limits = Limits(batch.sequences, batch.tokens, fit.cache_tokens)
    outcome = simulation.run_users(lambda: Simulation(step, limits), requests, users, _WARM_UP)
    gaps = sum(count for _, count in outcome.gaps)
    return ClosedLoop(
        ttft_ms=1000 * sum(outcome.ttft_s) / len(outcome.ttft_s),
        itl_ms=1000 * sum(gap_s * count for gap_s, count in outcome.gaps) / gaps,
        e2e_ms=1000 * sum(outcome.e2e_s) / len(outcome.e2e_s),
        output_tokens_per_s=outcome.output_tokens / outcome.seconds,
        basis=step.basis,
        interval=(times or load()).intervals[step.basis],
        preemptions=outcome.preemptions,
    )


def _require_split(model: Model, instance: Instance, tensor: int) -> Accelerators:
    """Return the accelerators of a type over which the model can be split so often."""
    device = instance.accelerators
    if device is None:
        raise InputError(f"--type: {instance.name}: it has no accelerators. Fix: use a type that has.")
    if tensor > count_ranks(device):
        raise InputError(f"--tensor: {tensor}: {instance.name} has {count_ranks(device)}. Fix: use that or less.")
    if misfit := vllm.describe_indivisible(model, Split(tensor)):
        possible_sizes = [
            str(size)
            for size in list_tensor_sizes(model, instance)
            if not vllm.describe_indivisible(model, Split(size))
        ]
        raise InputError(f"--tensor: {tensor}: {misfit}. Fix: use {' or '.join(possible_sizes)}.")
    return device
