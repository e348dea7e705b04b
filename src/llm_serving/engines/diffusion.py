"""Memory of a pipeline of diffusers on one GPU: all of its parts, and what drawing one picture takes.

The weights are exact. What a picture takes is not computed by part: it is the most that published peaks have beyond the
weights, among pipelines that are served as they are. Source, of 1024 x 1024 pixels: peak and weights in GiB by
docs.vllm.ai/projects/vllm-omni, examples/offline_inference/text_to_image, 2026-11-26: FLUX.1-schnell 33.9 and 31.4,
stable-diffusion-3.5-medium 20.1 and 15.6, OmniGen2 20.1 and 14.7, Z-Image-Turbo 24.8 and 19.2, Qwen-Image 60.0 and
53.7.
Four models of that table take far more, up to 58 GiB: they have no row in the catalog, and this arithmetic is too low.
"""

from __future__ import annotations

from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.engines.memory import Batch, CpuLoad, Division, Fit, ReplicaSetup, Split
from llm_serving.settings.units import format_bytes

UTILIZATION = 1.0
"""Share of an accelerator's memory that a pipeline may take: PyTorch's allocator asks for what it needs."""

BATCH = Batch(tokens=1, sequences=1)
"""One picture is computed at a time."""

PICTURE_BYTES = round(6.3 * 2**30)
"""Beyond the weights, with the libraries' own: the most of those above, Qwen-Image's, for --max-pixels of its row."""


def select_batch(device: Accelerators | None) -> Batch:  # noqa: ARG001 - the same on every processor
    """Return one picture."""
    return BATCH


def compute_cpu_cache_bytes(model: Architecture, load: CpuLoad) -> int:  # noqa: ARG001
    """Return 0: what a picture takes is in `base_bytes` of the platform."""
    return 0


def compute_fit(model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
    """Compute whether a pipeline, and one picture, have room in one accelerator."""
    device = instance.accelerators
    bytes_ = memory.compute_rank_bytes(device) * memory.VISIBLE_SHARE if device else instance.memory_mib * 2**20
    budget = int(bytes_ * (setup.utilization or UTILIZATION))
    free = budget - model.weight_bytes - PICTURE_BYTES
    reason = (
        f"weights {format_bytes(model.weight_bytes)} and a picture's {format_bytes(PICTURE_BYTES)} are "
        f"{format_bytes(-free)} more than the {format_bytes(budget)} of one accelerator"
    )
    division = Division(budget, model.weight_bytes, PICTURE_BYTES, free)
    return memory.build_fit(instance, setup, 1, division, reason if free < 0 else "")


def count_running(model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> None:
    """Return None: a pipeline has no cache."""


def describe_indivisible(model: Architecture, split: Split) -> str:  # noqa: ARG001
    """Return an empty sentence: `unsupported_options` of the engine's row refuses every split."""
    return ""
