"""The engine seam: an engine's memory arithmetic, found by the engine's name.

An engine is a file of the catalog (`llm_serving.catalog.engines`). It has a module NAME.py beside this one only where
its memory arithmetic is its own; the others share that of the default engine.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from llm_serving.catalog import engines
from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines.memory import Batch, Fit


class MemoryModel(Protocol):
    """How an engine divides the memory of accelerators."""

    UTILIZATION: float
    """Share of an accelerator's memory that the engine uses."""

    BLOCK_TOKENS: int
    """Tokens in a block of the KV cache on GPUs."""

    def select_batch(self, device: Accelerators | None) -> Batch:
        """The largest step that the engine chooses by itself; None is a CPU."""

    def compute_cpu_cache_bytes(
        self,
        model: Architecture,
        *,
        context: int,
        lengths: Sequence[int],
        block: int,
        tensor_parallel: int,
        sequences: int,
    ) -> int:
        """Memory of one rank on CPU that depends on requests: their KV cache, and what it needs besides.

        Args:
            context: most tokens of a request.
            lengths: of all requests under way at once.
        """

    def compute_fit(
        self,
        model: Model,
        instance: Instance,
        tensor_parallel: int,
        *,
        pipeline: int = 1,
        expert_ranks: int = 0,
        spare_experts: int = 0,
        context: int | None = None,
        utilization: float = ...,
        dtype: str = "auto",
        batch: Batch | None = None,
    ) -> Fit:
        """Whether one replica serves requests of `context` tokens, and what remains for its KV cache."""

    def describe_indivisible(self, model: Architecture, tensor_parallel: int, *, whole_experts: bool = False) -> str:
        """Why the model cannot be split this many ways, as a sentence; empty where it can."""


def get_memory_model(engine: str = "") -> MemoryModel:
    """The memory arithmetic of an engine; of the default one where left out."""
    default = engines.get_default(engines.load_engines())
    modules = [re.sub(r"\W", "_", name) for name in (engine or default, default)]
    module = next(name for name in modules if Path(__file__).with_name(f"{name}.py").exists())
    return cast(MemoryModel, importlib.import_module(f"{__package__}.{module}"))
