"""The engine seam: an engine's memory arithmetic, a module beside this one that the engine's row names.

An engine is a file of the catalog (`llm_serving.catalog.engines`); `memory` in it may name another engine's module.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Protocol, cast

from llm_serving.catalog import engines
from llm_serving.catalog.architecture import Architecture
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines.memory import Batch, CpuLoad, Fit, ReplicaSetup, Split
from llm_serving.settings.errors import InputError


class MemoryModel(Protocol):
    """How an engine divides the memory of accelerators."""

    UTILIZATION: float
    """Share of an accelerator's memory that the engine uses."""

    def select_batch(self, device: Accelerators | None) -> Batch:
        """Return the largest step that the engine chooses by itself; None is a CPU."""

    def compute_cpu_cache_bytes(self, model: Architecture, load: CpuLoad) -> int:
        """Return memory of one rank on CPU that depends on requests: their KV cache, and what it needs besides."""

    def compute_fit(self, model: Model, instance: Instance, setup: ReplicaSetup) -> Fit:
        """Return whether one replica serves requests of its context, and what remains for its KV cache."""

    def count_running(self, model: Architecture, cache_bytes: int, setup: ReplicaSetup, tokens: int) -> int | None:
        """Return requests of so many tokens that run at once beside their states; None where tokens alone limit them.

        Args:
            cache_bytes: of each accelerator, `Fit.cache_bytes`.
            tokens: of a request, prompt and answer, but for what it shares with others.
        """

    def describe_indivisible(self, model: Architecture, split: Split) -> str:
        """Return why the model cannot be split this way, as a sentence; empty where it can."""


def get_memory_model(engine: str) -> MemoryModel:
    """Return the memory arithmetic of an engine.

    Raises:
        InputError: its row names a module that does not exist.
    """
    return _import_memory_model(engine, engines.load_engines()[engine].memory)


@functools.cache
def _import_memory_model(engine: str, module: str) -> MemoryModel:
    if not Path(__file__).with_name(f"{module}.py").is_file():
        raise InputError(
            f'engine: "{engine}" has no memory arithmetic: memory is "{module}" in catalog/engines/{engine}.yaml. '
            f"Fix: write engines/{module}.py, or name a module of engines/ that computes as this engine does."
        )
    return cast(MemoryModel, importlib.import_module(f"{__package__}.{module}"))
