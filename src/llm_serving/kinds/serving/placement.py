"""Places roles on the fleet: the pool's types that fit, the nodes of a replica, and its share of each.

Every refusal names its line of blueprint.yaml and what would fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llm_serving.catalog import engines, instances, quantizations
from llm_serving.catalog.engines import Platform, WideExperts
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import base, memory
from llm_serving.engines.base import MemoryModel
from llm_serving.engines.memory import ReplicaSetup, Split
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet, Pool
from llm_serving.kinds.serving import node_shares, patterns
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.node_shares import count_accelerators, count_nodes, count_units
from llm_serving.kinds.serving.placed_role import PlacedRole, PlacementError
from llm_serving.kinds.serving.roles import EngineRole, refuse_setting
from llm_serving.kinds.serving.tuning import Tuning
from llm_serving.services.service import Toleration
from llm_serving.settings.document import Conflict
from llm_serving.settings.errors import InputError


def splits_prompts(settings: Blueprint, model: Model) -> bool:
    """Return whether a prompt may be computed in several steps; never where each token looks at all others."""
    return settings.tuning.chunked_prefill and not model.encoder


def apply_quantization(model: Model, tuning: Tuning) -> Model:
    """Return the model as the engine holds it in memory."""
    if tuning.quantization == "fp8":
        return model.model_copy(update={"scheme": quantizations.FP8_TENSOR})
    return model


def require_pool(fleet: Fleet, key_path: tuple[str, ...], role: EngineRole) -> tuple[Pool, list[Instance]]:
    """Return the role's pool and its types as the catalog knows them.

    Raises:
        PlacementError: there is no such pool, or the catalog has none of its types.
    """
    pool = fleet.pools.get(role.pool)
    if pool is None:
        reason = f"the fleet {fleet.name} has no such pool"
        fix = f"use one of its pools, {', '.join(fleet.pools)}, or add {role.pool} to them"
        raise PlacementError(refuse_setting(key_path, role, "pool", reason, fix))
    known_types = instances.select_known(pool.types)
    if not known_types:
        reason = f"the catalog has none of the pool's types, {', '.join(pool.types)}"
        raise PlacementError(refuse_setting(key_path, role, "pool", reason, "use a pool of types that it has"))
    return pool, known_types


class _Candidate(NamedTuple):
    """Accelerators of one node that hold a model; the least memory comes first."""

    bytes: int
    degree: int
    type: str


@dataclass(frozen=True)
class PlacementSearch:
    """Finds the nodes of one role; each step narrows the instance types or refuses."""

    settings: Blueprint
    fleet: Fleet
    key_path: tuple[str, ...]
    """Of the role in the blueprint."""

    role: EngineRole
    model: Model
    context: int

    sequences: int | None = None
    """Most requests of a step, where the blueprint says none and the cache has no room for the engine's own choice."""

    def find_placement(self) -> PlacedRole:
        """Return the placement of the role.

        Raises:
            PlacementError: no instance type of its pool fits it.
        """
        role = self.role
        pool, known_types = require_pool(self.fleet, self.key_path, role)
        accelerated_types = self._select_by_accelerators(known_types)
        self._check_divisible(accelerated_types[0])
        fitting_types = self._select_by_memory(accelerated_types)
        available_types = self._select_by_pool_size(fitting_types)
        nodes = count_nodes(available_types[0], role.accelerators, 1)
        device = available_types[0].accelerators
        batch, fit = self._select_batch(device), self._compute_common_fit(available_types)
        if (sequences := self._limit_sequences(batch, fit)) != batch.sequences:
            return dataclasses.replace(self, sequences=sequences).find_placement()
        return PlacedRole(
            settings=self.settings,
            key_path=self.key_path,
            role=role,
            model=self.model,
            pool=pool,
            instances=tuple(available_types),
            zones=self._select_zones(available_types),
            nodes=nodes,
            resources=node_shares.compute_resources(
                self.fleet, role, self.settings.tuning, available_types, nodes, 1 + len(self._others)
            ),
            platform=self._select_platform(device),
            batch=batch,
            wide_experts=self._wide_experts,
            spare_experts=self._spare_experts,
            tolerations=self._list_tolerations(),
            fit=fit,
            awake_share=self._utilization if self._others else None,
        )

    def _build_error(self, key: str, reason: str, fix: str) -> PlacementError:
        return PlacementError(refuse_setting(self.key_path, self.role, key, reason, fix))

    @property
    def _pool(self) -> Pool:
        return self.fleet.pools[self.role.pool]

    @property
    def _memory_model(self) -> MemoryModel:
        return base.get_memory_model(self.settings.engine)

    @property
    def _wide_experts(self) -> WideExperts | None:
        types = instances.select_known(self._pool.types)
        spans_nodes = self.role.accelerators > max(map(count_accelerators, types), default=0)
        is_wide = self.role.expert and self.role.data > 1 and spans_nodes
        return engines.load_engines()[self.settings.engine].wide_experts if is_wide else None

    @property
    def _spare_experts(self) -> int:
        """One or less for each accelerator, so that all hold as many."""
        wide_experts, ranks = self._wide_experts, self.role.split.expert_ranks
        is_balanced = wide_experts and self.model.kind in wide_experts.balanced_architectures
        return ranks - self.model.experts % ranks if is_balanced else 0

    def _select_platform(self, device: Accelerators | None) -> Platform:
        platforms = self.settings.engine_row.platforms
        return (platforms.get(device.kind) if device else None) or platforms["cpu"]

    @property
    def _takes_cpus(self) -> bool:
        """Whether a replica has all CPUs of a node in place of an accelerator: no type of its pool has one."""
        platform = self.settings.engine_row.platforms.get("cpu")
        has_accelerators = any(instance.accelerators for instance in instances.select_known(self._pool.types))
        return platform is not None and platform.on_pools and not has_accelerators

    def _count_units(self, instance: Instance) -> int:
        """Return ways that a node's replicas divide it: its accelerators, or one if a replica has all of its CPUs."""
        return count_units(instance) if self._takes_cpus else count_accelerators(instance)

    def _select_batch(self, device: Accelerators | None) -> memory.Batch:
        """Return the largest step: of the blueprint, else the engine's choice."""
        limits = self._select_platform(device).limits
        engine_batch = self._memory_model.select_batch(device)
        if limits:
            engine_batch = memory.Batch(
                tokens=limits.select_segment(engine_batch.tokens, self.context), sequences=limits.sequences
            )
        elif self.settings.engine_row.holds_whole_prompts and not splits_prompts(self.settings, self.model):
            engine_batch = memory.Batch(tokens=max(engine_batch.tokens, self.context), sequences=engine_batch.sequences)
        drafted_sequences = self.settings.engine_row.drafted_sequences
        if drafted_sequences and self.settings.tuning.speculative:
            engine_batch = engine_batch.model_copy(update={"sequences": drafted_sequences})
        find_number = functools.partial(self.settings.find_step_number, self.role)
        return memory.Batch(
            tokens=find_number("batch_tokens") or engine_batch.tokens,
            sequences=self.sequences or find_number("sequences") or engine_batch.sequences,
        )

    def _limit_sequences(self, batch: memory.Batch, fit: memory.Fit | None) -> int:
        """Return requests of a step, each of which has room for its state in the cache, unless the blueprint says more.

        A power of 2 that leaves a fifth of the room, by which the prediction may be wrong.
        """
        states = fit.most_sequences if fit else None
        is_chosen = self.sequences or self.settings.find_step_number(self.role, "sequences")
        if is_chosen or states is None or min(batch.sequences, batch.tokens) <= states:
            return batch.sequences
        return 1 << max(0, int(states * 0.8).bit_length() - 1)

    @property
    def _others(self) -> list[str]:
        """The roles whose models sleep on its accelerators while its own is awake."""
        return self.settings.roles.list_others(self.key_path[-1])

    @property
    def _utilization(self) -> float:
        """Share of an accelerator's memory that the engine uses."""
        if self._wide_experts:
            return self._wide_experts.memory_share
        share = self.settings.find_reckoned_argument(self.role, "utilization")
        share = self._memory_model.UTILIZATION if share is None else share
        return round(share - self._kept_share, 3) if self._others else share

    @property
    def _kept_share(self) -> float:
        """Share of an accelerator's memory that other models keep while they sleep: of the pool's smallest."""
        rows = require_pool(self.fleet, self.key_path, self.role)[1]
        devices = [row.accelerators for row in rows if row.accelerators]
        shares = [self._compute_kept_share(device, self.role.accelerators) for device in devices]
        return max(shares, default=0.0)

    def _compute_kept_share(self, device: Accelerators, accelerators: int) -> float:
        sleeping = self._select_platform(device).sleeping
        if sleeping is None:
            return 0.0
        visible_bytes = memory.compute_rank_bytes(device) * memory.VISIBLE_SHARE
        share = len(self._others) * sleeping.get_kept_bytes(accelerators) / visible_bytes
        return math.ceil(1000 * share) / 1000  # as it is written

    def _select_by_accelerators(self, known_types: Sequence[Instance]) -> list[Instance]:
        accelerators = self.role.accelerators
        large_types = [instance for instance in known_types if self._count_units(instance) >= accelerators]
        if large_types:
            return large_types
        if self._takes_cpus:
            reason = f"the pool {self.role.pool} has no accelerators, and on CPU a replica has one node"
            raise self._build_error("accelerators", reason, "set accelerators: 1")
        max_accelerators = max(map(self._count_units, known_types))
        counts = ", ".join(f"{instance.name} has {self._count_units(instance) or 'none'}" for instance in known_types)
        if not max_accelerators:
            reason = f"the pool {self.role.pool} has no accelerators: {counts}"
            raise self._build_error("accelerators", reason, "use a pool of types with accelerators")
        if not self.settings.pattern_row.spans_nodes:
            reason = f"a replica runs on one node, and in the pool {self.role.pool} {counts}"
            fix = f"set accelerators: {max_accelerators} or less, or use a pool of larger types"
            fix += self._describe_several_nodes()
            raise self._build_error("accelerators", reason, fix)
        largest = [instance for instance in known_types if self._count_units(instance) == max_accelerators]
        return self._select_multi_node(largest, max_accelerators)

    def _select_multi_node(self, types: list[Instance], per_node: int) -> list[Instance]:
        """Return a replica over several nodes: whole ones, of one type, in one zone, connected by EFA."""
        accelerators = self.role.accelerators
        if accelerators % per_node:
            reason = f"a replica over several nodes takes whole ones, and {types[0].name} has {per_node}"
            raise self._build_error("accelerators", reason, f"use a multiple of {per_node}")
        if self.role.tensor > per_node:
            reason = f"each layer would be split {self.role.tensor} ways, over more than the {per_node} of one node"
            fix = f"set pipeline: {accelerators // per_node}, so that a layer stays on one node"
            raise self._build_error("pipeline", reason, fix)
        if not self._pool.efa:
            reason = f"the nodes of a replica would communicate over TCP: the pool {self.role.pool} has no EFA"
            raise self._build_error("pool", reason, f"set efa: on in the pool, or accelerators: {per_node}")
        return types[:1]  # one type: the slowest node sets the pace of all

    def _check_divisible(self, instance: Instance) -> None:
        if not self.model.is_known:
            return
        role = self.role
        if role.expert and not self.model.experts:
            reason = f"{self.model.name} has no experts to spread"
            raise self._build_error("expert", reason, "set expert: off")
        if role.pipeline > self.model.layers:
            reason = f"the model has {self.model.layers} layers"
            raise self._build_error("pipeline", reason, f"set pipeline: {self.model.layers} or less")
        if role.pipeline > 1 and self.model.encoder:
            raise self._build_error("pipeline", "no engine runs an encoder in stages", "set pipeline: 1")
        misfit = self._describe_indivisible(role.split)
        if misfit and not self._describe_indivisible(dataclasses.replace(role.split, pipeline=1)):
            raise self._build_error("pipeline", misfit, "set pipeline: 1")
        if misfit:
            raise self._build_error("accelerators", misfit, self._suggest_split(instance))

    def _describe_indivisible(self, split: Split) -> str:
        return self._memory_model.describe_indivisible(self.model, split)

    def _suggest_split(self, instance: Instance) -> str:
        """Return what to set in place of a split that the model does not allow."""
        role, split = self.role, self.role.split
        degrees = [
            degree
            for degree in range(1, split.tensor)
            if not self._describe_indivisible(dataclasses.replace(split, tensor=degree))
        ]
        fixes = []
        if degrees and instance.accelerators and self._select_platform(instance.accelerators).limits:
            # A replica needs its whole node here.
            largest = max(degree for degree in degrees if role.accelerators % degree == 0)
            fixes.append(f"data: {role.accelerators // largest}")
        elif degrees:
            options = [degree * role.pipeline * role.data for degree in degrees[-3:]]
            fixes.append(f"accelerators: {' or '.join(map(str, options))}")
        if not role.expert and not self._describe_indivisible(dataclasses.replace(split, whole_experts=True)):
            fixes.append("expert: on")
        return f"set {', or '.join(fixes or ['data: 1'])}"

    def _compute_fit(self, instance: Instance) -> memory.Fit | None:
        if instance.accelerators is None and not self._takes_cpus:
            return None
        if not self.model.is_known:
            setup = ReplicaSetup(
                self.role.tensor, pipeline=self.role.pipeline, utilization=self._utilization, context=self.context
            )
            return memory.compute_unknown_fit(self.model, instance, setup)
        setup = dataclasses.replace(
            self._build_setup(instance),
            **dataclasses.asdict(self.role.split),
            utilization=self._utilization,
            spare_experts=self._spare_experts,
        )
        return self._memory_model.compute_fit(apply_quantization(self.model, self.settings.tuning), instance, setup)

    def _build_setup(self, instance: Instance) -> ReplicaSetup:
        settings, tuning, row = self.settings, self.settings.tuning, self.settings.engine_row
        arguments = settings.merge_arguments(self.role)
        return ReplicaSetup(
            context=min(self.context, self.model.max_context),
            dtype=tuning.kv_cache,
            batch=self._select_batch(instance.accelerators),
            phase=self.key_path[-1] if settings.is_disaggregated else "",
            draft=tuning.find_draft(self.model),
            draft_tokens=tuning.speculative.tokens if tuning.speculative else 0,
            prefix_cache=tuning.prefix_cache,
            videos=settings.find_media_limit(self.role, "video") != 0,
            adapters=row.count_adapters(arguments, len(self.role.adapters)),
            adapter_modules=row.list_adapter_modules(arguments),
        )

    def _compute_common_fit(self, types: Sequence[Instance]) -> memory.Fit | None:
        fits = [fit for instance in types if (fit := self._compute_fit(instance))]
        if self._takes_cpus or not fits:
            return min(fits, key=lambda fit: fit.cache_bytes, default=None)
        limits = (fit.most_sequences for fit in fits if fit.most_sequences is not None)
        return fits[0].model_copy(update={"most_sequences": min(limits, default=None)})

    def _select_by_memory(self, types: Sequence[Instance]) -> list[Instance]:
        fits = {instance.name: fit for instance in types if (fit := self._compute_fit(instance))}
        fitting_types = [instance for instance in types if instance.name in fits and fits[instance.name].fits]
        if fitting_types:
            return fitting_types
        types_by_reason = {fit.why: [name for name in fits if fits[name].why == fit.why] for fit in fits.values()}
        misfits = "; ".join(f"on {' and '.join(names)} {misfit}" for misfit, names in types_by_reason.items())
        unit = "accelerator" if self.role.accelerators == 1 else "accelerators"
        capacity = "a node" if self._takes_cpus else f"{self.role.accelerators} {unit}"
        reason = f"it does not fit into {capacity} of the pool {self.role.pool}{self._describe_kept()}: {misfits}"
        key_path = self.settings.find_model_key_path(self.key_path, self.role, "model")
        row, fix = self.settings.engine_row, self._describe_alternatives()
        if any(fit.video_bytes for fit in fits.values()):
            fix = f"set {row.media_limits}: {{video: 0}} in engine_arguments where requests have no videos, or {fix}"
        if any(fit.adapter_bytes for fit in fits.values()):
            modules = f"name the modules that adapters change as {row.adapter_modules} in engine_arguments"
            fix = f"{modules}, or fewer adapters than there are as max_loras, or {fix}"
        raise PlacementError(Conflict(key_path, reason, fix, self.model.name))

    def _describe_kept(self) -> str:
        """Return what models that sleep leave of an accelerator; empty where there are none."""
        if not self._others:
            return ""
        models = "a model that sleeps" if len(self._others) == 1 else f"{len(self._others)} models that sleep"
        return f", of whose memory {models} there keep{'s' * (len(self._others) == 1)} {self._kept_share:.1%}"

    def _describe_alternatives(self) -> str:
        """Return the smallest way to hold the model: in its pool, else in another pool, else on types of the region."""
        if self._takes_cpus:
            return self._describe_larger_nodes()
        if not self.model.is_known:
            return "use more accelerators, types with more memory, or a smaller model"
        candidates = sorted(self._list_candidates())
        if not candidates:
            return (
                f"use a smaller or more strongly quantized model{self._describe_several_nodes()}: "
                f"no single instance type that {self.fleet.region} offers holds this one"
            )
        own_pool, count = self._pool, self.role.accelerators
        other_pools: dict[str, str] = {}
        for pool_name, pool in self.fleet.pools.items():
            if pool.orchestrator == own_pool.orchestrator:
                other_pools |= dict.fromkeys(set(pool.types).difference(own_pool.types), pool_name)
        own = [candidate for candidate in candidates if candidate.type in own_pool.types and candidate.degree > count]
        rented = [candidate for candidate in candidates if candidate.type in other_pools]
        same_count = [candidate for candidate in candidates if candidate.degree == count]
        suggested = own[:1] or rented[:1] or dict.fromkeys([*same_count[:1], candidates[0]])
        suggestions = [
            f"pool: {other_pools[candidate.type]} and accelerators: {candidate.degree}"
            if candidate.type in other_pools
            else f"accelerators: {candidate.degree} on {candidate.type}"
            for candidate in suggested
        ]
        own_place = "set pool in place of shares for one of them, or " if self._others else ""
        return f"{own_place}set {' or '.join(suggestions)}, or use a smaller model"

    def _list_candidates(self) -> Iterator[_Candidate]:
        """Yield the GPUs of one node, of types that the region offers, which hold the model."""
        model, memory_model = apply_quantization(self.model, self.settings.tuning), self._memory_model
        for instance in instances.load().values():
            device = instance.accelerators
            if device is None or device.kind != "gpu" or not self._is_offered(instance):
                continue
            setup = self._build_setup(instance)
            for degree in memory.list_tensor_sizes(model, instance):
                utilization = memory_model.UTILIZATION - self._compute_kept_share(device, degree)
                split = dataclasses.replace(setup, tensor=degree, utilization=utilization)
                if memory_model.compute_fit(model, instance, split).fits:
                    yield _Candidate(degree * memory.compute_rank_bytes(device), degree, instance.name)

    def _is_offered(self, instance: Instance) -> bool:
        """Return whether the fleet's region offers the type, or the catalog does not know what the region offers."""
        return self.fleet.region in instance.zones or not instances.has_region(self.fleet.region)

    def _describe_several_nodes(self) -> str:
        """Return how a replica gets several nodes, as part of a fix; empty where no pattern of its roles has them."""
        pattern = self.settings.pattern_row
        if pattern.spans_nodes:
            return ", or more accelerators, over several nodes"
        larger_pattern = patterns.find_multi_node(pattern.roles)
        return f", or pattern: {larger_pattern}" if larger_pattern else ""

    def _describe_larger_nodes(self) -> str:
        fits = [
            (instance.memory_mib, instance.vcpus, instance.name)
            for instance in instances.load().values()
            if instance.accelerators is None and (fit := self._compute_fit(instance)) and fit.fits
        ]
        smaller = "smaller" if self._select_platform(None).weights else "smaller or more strongly quantized"
        smaller = f"use a {smaller} model, a shorter context, or fewer tuning.sequences"
        return f"use a pool of {min(fits)[2]} or larger, {smaller.removeprefix('use ')}" if fits else smaller

    def _select_by_pool_size(self, fitting_types: Sequence[Instance]) -> list[Instance]:
        """Return types of which the pool, at its maximum, has nodes for all replicas."""
        size, replicas = self._pool.size, self.role.replicas.max
        available_types = [row for row in fitting_types if self._count_max_replicas(row) >= replicas]
        if available_types:
            return available_types
        largest = max(fitting_types, key=self._count_max_replicas)
        max_replicas = self._count_max_replicas(largest)
        nodes = count_nodes(largest, self.role.accelerators, replicas)
        reason = f"the pool {self.role.pool} grows to {size.max} nodes, which fit {max_replicas}"
        fix = f"set replicas: {max_replicas} or less, or size: {size.min}..{nodes} in the pool"
        raise self._build_error("replicas", reason, fix)

    def _count_max_replicas(self, instance: Instance) -> int:
        nodes = self._pool.size.max
        if count_units(instance) >= self.role.accelerators:
            return count_units(instance) // self.role.accelerators * nodes
        return nodes // count_nodes(instance, self.role.accelerators, 1)

    def _select_zones(self, types: Sequence[Instance]) -> tuple[str, ...]:
        """Return the pool's zones that offer one of the types, where the catalog has the region's answer."""
        zones, region = self.fleet.get_zones(self._pool), self.fleet.region
        offered = {zone for instance in types for zone in instance.zones.get(region, ())}
        return tuple(zone for zone in zones if not instances.has_region(region) or zone in offered) or zones

    def _list_tolerations(self) -> tuple[Toleration, ...]:
        try:
            pool_groups = groups.resolve_pool(self.fleet, self.role.pool)
        except InputError:  # a type that the catalog does not have, beside those that it has
            return ()
        taints = dict.fromkeys(taint for group in pool_groups for taint in group.taints)
        return tuple(Toleration(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints)
