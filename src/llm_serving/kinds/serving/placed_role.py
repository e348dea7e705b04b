"""A role on the fleet: where its replicas run, and what they give it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from llm_serving.catalog.engines import Platform, WideExperts
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.fleet.model import Pool
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.roles import EngineRole, ModelRole, refuse_setting
from llm_serving.services.service import Resources, Toleration
from llm_serving.settings.document import Conflict


class PlacementError(Exception):
    """The role cannot be placed."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__()
        self.conflict = conflict


@dataclass(frozen=True)
class PlacedRole:
    """A role that runs the engine, and where its replicas run."""

    settings: Blueprint
    key_path: tuple[str, ...]
    """Of the role in the blueprint."""

    role: EngineRole
    model: Model
    pool: Pool
    instances: tuple[Instance, ...]
    """The pool's types that hold a replica, in its order of preference."""

    zones: tuple[str, ...]
    nodes: int
    """Of one replica."""

    resources: Resources
    platform: Platform
    """The engine on its accelerators."""

    batch: memory.Batch
    """The largest step."""

    wide_experts: WideExperts | None
    """What the engine sets for experts over several nodes; None where they are on one."""

    spare_experts: int
    """Copies of experts beside the model's own; 0 where the engine makes none."""

    tolerations: tuple[Toleration, ...]
    fit: memory.Fit | None
    """On the first type, or on CPU on that with the least cache, which engines on all of them have; None where the
    engine takes no CPUs."""

    cache_limit: int | None = None
    """Most bytes of the KV cache of an accelerator; None for all that is free."""

    awake_share: float | None = None
    """Share of an accelerator's memory that its engine may use while other models sleep there; None where none do."""

    @property
    def name(self) -> str:
        return self.key_path[-1]

    @property
    def instance(self) -> Instance:
        """The preferred type."""
        return self.instances[0]

    @property
    def rdma(self) -> bool:
        """Whether EFA reaches the accelerators' memory."""
        return self.resources.efa > 0 and all(instance.gpudirect_rdma for instance in self.instances)

    @property
    def model_settings(self) -> Blueprint | ModelRole:
        """What holds the role's model, weights and context."""
        return self.settings.select_model_settings(self.role)

    def find_model_key_path(self, key: str) -> tuple[str, ...]:
        """Return the key path of a setting of the role's model."""
        return self.settings.find_model_key_path(self.key_path, self.role, key)

    def list_arguments(self) -> Iterator[tuple[tuple[str, ...], JsonValue]]:
        """Yield the engine's own options of the role, each with its key path, which ends with its name."""
        for name, value in self.settings.merge_arguments(self.role).items():
            path = (*self.key_path, "engine_arguments") if name in self.role.engine_arguments else ("engine_arguments",)
            yield (*path, name), value

    def refuse(self, key: str, reason: str, fix: str) -> Conflict:
        """Return the conflict of a setting of the role."""
        return refuse_setting(self.key_path, self.role, key, reason, fix)

    def limit_cache(self) -> PlacedRole:
        """Return the placement with no more KV cache than the node's memory has room for a copy of.

        Half of the replica's share, its shared memory among it: the engine itself and the system's cache need the rest.
        """
        fit, ranks = self.fit, max(1, self.role.split.ranks // self.nodes)
        limit = (self.resources.memory_bytes // 2 - self.resources.shared_memory_bytes) // ranks
        if fit is None or not fit.computed or fit.cache_bytes <= limit:
            return self
        tokens = fit.cache_tokens * limit // fit.cache_bytes
        limited_fit = fit.model_copy(update={"cache_bytes": limit, "cache_tokens": tokens})
        return dataclasses.replace(self, cache_limit=limit, fit=limited_fit)
