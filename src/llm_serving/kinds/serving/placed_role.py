"""A role on the fleet: where its replicas run, and how KV caches go from one role to another there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from llm_serving.catalog.engines import Platform, WideExperts
from llm_serving.catalog.instances import Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.fleet.model import Pool
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import Parallelism
from llm_serving.kinds.serving.roles import EngineRole
from llm_serving.services.service import Resources, Toleration
from llm_serving.settings.document import Conflict


@dataclass(frozen=True)
class PlacedRole:
    """A role that runs the engine, and where its replicas run."""

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

    parallelism: Parallelism
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
    def host_cache_bytes(self) -> int:
        """Bytes of an accelerator's KV cache of which the node's memory has room for a copy.

        Half of the replica's share, its shared memory among it: the engine itself and the system's cache need the rest.
        """
        parallelism = self.parallelism
        ranks = max(1, parallelism.tensor * parallelism.pipeline * parallelism.data // self.nodes)
        return (self.resources.memory_bytes // 2 - self.resources.shared_memory_bytes) // ranks

    def refuse(self, key: str, reason: str, fix: str, value: object) -> Conflict:
        """Return the conflict of a setting of the role."""
        return Conflict((*self.key_path, key), reason, fix, value)

    def limit_cache(self) -> PlacedRole:
        """Return the placement with no more KV cache than the node's memory has room for a copy of."""
        fit, limit = self.fit, self.host_cache_bytes
        if fit is None or not fit.computed or fit.cache_bytes <= limit:
            return self
        tokens = fit.cache_tokens * limit // fit.cache_bytes
        limited_fit = fit.model_copy(update={"cache_bytes": limit, "cache_tokens": tokens})
        return dataclasses.replace(self, cache_limit=limit, fit=limited_fit)


def goes_through_host(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> bool:
    """Return whether KV caches go from prefill to decode through the nodes' memory, where no machine is shared."""
    has_rdma = all(placed.rdma for placed in placed_roles) and transfers_by_rdma(settings)
    return settings.is_disaggregated and not (has_rdma and settings.tuning.kv_transfer != "host")


def transfers_by_rdma(settings: Blueprint) -> bool:
    """Return whether the engine has a transfer of KV caches by EFA."""
    return "rdma" in settings.engine_row.transfers


def copies_cache(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> bool:
    """Return whether the transfer of KV caches keeps a copy of them in the nodes' memory."""
    transfer = settings.engine_row.transfers.get("host")
    # On CPU the cache lies there itself: vLLM 0.32.0, kv_connector/v1/nixl/base_worker.py, use_host_buffer.
    has_accelerators = any(placed.instance.accelerators for placed in placed_roles)
    return (
        has_accelerators
        and transfer is not None
        and transfer.copies_cache
        and goes_through_host(settings, placed_roles)
    )
