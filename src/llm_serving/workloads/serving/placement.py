"""Which machines of the fleet hold a role: the pool's types that fit, machines of a replica, and its share of each.

Every refusal stands at its line of blueprint.yaml and names what would hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_serving.catalog import engines, instances
from llm_serving.catalog.engines import Platform
from llm_serving.catalog.instances import Accelerators, Instance
from llm_serving.catalog.models import Model
from llm_serving.engines import memory
from llm_serving.fleet import groups
from llm_serving.fleet.model import Fleet, Pool
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Mistake
from llm_serving.settings.units import Bounds
from llm_serving.workloads.serving.blueprint import Blueprint, Tuning
from llm_serving.workloads.serving.deployment import Resources, Split, Toleration
from llm_serving.workloads.serving.roles import Engine

DEVICES = {"gpu": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
"""What the device plugins call accelerators on Kubernetes."""

HEADROOM = 0.85
"""Share of a machine's CPUs and memory that replicas may ask for; the rest is the system's and its agents'."""

SHARED_MEMORY_BYTES = 4 * 2**30
"""Of /dev/shm for each accelerator: NCCL's and the engine's message queues stay below it."""


@dataclass(frozen=True)
class Placement:
    """Where the replicas of one role stand."""

    role: str
    model: Model
    pool: Pool
    types: tuple[Instance, ...]
    """The pool's types that hold a replica, in its order of preference."""

    zones: tuple[str, ...]
    machines: int
    """Of one replica."""

    split: Split
    resources: Resources
    platform: Platform
    """The engine on its accelerators."""

    batch: memory.Batch
    """The largest step."""

    labels: dict[str, str]
    tolerations: tuple[Toleration, ...]
    fit: memory.Fit | None
    """On the first type; None where it has no accelerators."""

    @property
    def instance(self) -> Instance:
        """The preferred type."""
        return self.types[0]

    @property
    def rdma(self) -> bool:
        """Whether EFA reaches the accelerators' memory."""
        return self.resources.efa > 0 and all(row.gpudirect_rdma for row in self.types)


Placed = tuple[tuple[str, ...], Engine, Placement]
"""A role's place in the file, the role, and where it stands."""


class Refused(Exception):
    """The role cannot be placed."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__()
        self.mistakes = mistakes


def served(model: Model, tuning: Tuning) -> Model:
    """The model as the engine holds it in memory."""
    if tuning.quantization == "fp8":
        return model.model_copy(update={"quantization": "fp8", "fp8_block": 0})
    return model


def place(
    blueprint: Document[Blueprint],
    fleet: Document[Fleet],
    at: tuple[str, ...],
    role: Engine,
    model: Model,
    context: int,
) -> Placement:
    """Where the role at `at` of the blueprint stands.

    Raises:
        Refused: no machine of its pool holds it.
    """
    return _Search(blueprint, fleet, at, role, model, context).found()


def require_pool(
    blueprint: Document[Blueprint], fleet: Document[Fleet], at: tuple[str, ...], role: Engine
) -> tuple[Pool, list[Instance]]:
    """The role's pool and its types as the catalogue knows them.

    Raises:
        Refused: there is no such pool, or the catalogue has none of its types.
    """
    pool = fleet.value.pools.get(role.pool)
    if pool is None:
        write = f"one of its pools, {', '.join(fleet.value.pools)}"
        raise Refused(blueprint.mistake([*at, "pool"], role.pool, f"{fleet.path} has no such pool", write))
    known = [instances.load()[name] for name in pool.types if name in instances.load()]
    if not known:
        why = f"the catalogue has none of the pool's types, {', '.join(pool.types)}"
        raise Refused(blueprint.mistake([*at, "pool"], role.pool, why, "a pool of types that it has"))
    return pool, known


@dataclass(frozen=True)
class _Search:
    """One role's way to its machines; each step narrows the types or refuses."""

    blueprint: Document[Blueprint]
    fleet: Document[Fleet]
    at: tuple[str, ...]
    role: Engine
    model: Model
    context: int

    def found(self) -> Placement:
        pool, known = require_pool(self.blueprint, self.fleet, self.at, self.role)
        types = self._with_enough_accelerators(pool, known)
        self._can_be_split(types[0])
        holding = self._that_hold_the_model(types)
        enough = self._with_enough_machines(pool, holding)
        machines = self._machines(enough[0])
        device = enough[0].accelerators
        assert device, "each of them has enough"
        return Placement(
            role=self.at[-1],
            model=self.model,
            pool=pool,
            types=tuple(enough),
            zones=self._zones(pool, enough),
            machines=machines,
            split=self._split,
            resources=self._resources(pool, enough, machines),
            platform=self._platform(device),
            batch=self._batch(device),
            labels={"fleet/pool": self.role.pool},
            tolerations=self._tolerations(),
            fit=self._fit(enough[0]),
        )

    def _refuse(self, key: str | None, value: object, why: str, write: str) -> Refused:
        where = [*self.at, key] if key else list(self.at)
        return Refused(self.blueprint.mistake(where, value, why, write))

    @property
    def _split(self) -> Split:
        role = self.role
        return Split(tensor=role.tensor, pipeline=role.pipeline, data=role.data, expert=role.expert)

    @property
    def _expert_ranks(self) -> int:
        return self.role.tensor * self.role.data if self.role.expert else 0

    def _platform(self, device: Accelerators) -> Platform:
        return engines.engines()[self.blueprint.value.engine].platforms[device.kind]

    def _batch(self, device: Accelerators) -> memory.Batch:
        """The largest step: as the blueprint says, else as the engine chooses."""
        tuning, limits = self.blueprint.value.tuning, self._platform(device).limits
        own = memory.batch_of(device)
        if limits:
            own = memory.Batch(tokens=limits.segment(own.tokens, self.context), sequences=limits.sequences)
        return memory.Batch(tokens=tuning.batch_tokens or own.tokens, sequences=tuning.sequences or own.sequences)

    def _machines(self, row: Instance) -> int:
        return max(1, -(-self.role.accelerators // (accelerators(row) or 1)))

    def _with_enough_accelerators(self, pool: Pool, known: Sequence[Instance]) -> list[Instance]:
        wanted = self.role.accelerators
        roomy = [row for row in known if accelerators(row) >= wanted]
        if roomy:
            return roomy
        most = max(map(accelerators, known))
        seen = ", ".join(f"{row.name} has {accelerators(row) or 'none'}" for row in known)
        if self.blueprint.value.pattern != "distributed" or not most:
            why = f"a replica stands on one machine, and of the pool {self.role.pool} {seen}"
            write = f"accelerators: {most} or less, or a pool of larger types" if most else _SOME
            if most and self.blueprint.value.pattern == "aggregated":
                write += ", or pattern: distributed"
            raise self._refuse("accelerators", wanted, why, write)
        return self._over_machines(pool, [row for row in known if accelerators(row) == most], most)

    def _over_machines(self, pool: Pool, types: list[Instance], each: int) -> list[Instance]:
        """A replica over several machines: whole ones, of one type, in one zone, joined by EFA."""
        wanted = self.role.accelerators
        if wanted % each:
            why = f"a replica over several machines takes whole ones, and {types[0].name} has {each}"
            raise self._refuse("accelerators", wanted, why, f"a multiple of {each}")
        if self.role.tensor > each:
            why = f"each layer would be split {self.role.tensor} ways, over more than the {each} of one machine"
            write = f"pipeline: {wanted // each}, so that a layer stays on one machine"
            raise self._refuse("pipeline", self.role.pipeline, why, write)
        if not pool.efa:
            why = f"the machines of a replica would talk over TCP: the pool {self.role.pool} has no EFA"
            raise self._refuse("pool", self.role.pool, why, f"efa: on in the pool, or accelerators: {each}")
        return types[:1]  # one type: the slowest machine sets the pace of all

    def _can_be_split(self, row: Instance) -> None:
        role = self.role
        if role.expert and not self.model.experts:
            why = f"{self.model.name} has no experts to spread"
            raise self._refuse("expert", role.expert, why, "expert: off")
        if role.pipeline > self.model.layers:
            why = f"the model has {self.model.layers} layers"
            raise self._refuse("pipeline", role.pipeline, why, f"pipeline: {self.model.layers} or less")
        split = memory.indivisible(self.model, role.tensor, whole_experts=role.expert)
        if split:
            ways = [
                n for n in range(1, role.tensor) if not memory.indivisible(self.model, n, whole_experts=role.expert)
            ]
            several = [n * role.pipeline * role.data for n in ways[-3:]]
            write = f"accelerators: {' or '.join(map(str, several))}"
            if row.accelerators and self._platform(row.accelerators).limits:
                # There a replica takes its machine whole.
                write = f"data: {role.accelerators // max(n for n in ways if role.accelerators % n == 0)}"
            if not role.expert and not memory.indivisible(self.model, role.tensor, whole_experts=True):
                write += ", or expert: on"
            raise self._refuse("accelerators", role.accelerators, split, write)

    def _fit(self, row: Instance) -> memory.Fit | None:
        if row.accelerators is None:
            return None
        tuning = self.blueprint.value.tuning
        return memory.fit(
            served(self.model, tuning),
            row,
            self.role.tensor,
            pipeline=self.role.pipeline,
            expert_ranks=self._expert_ranks,
            context=min(self.context, self.model.max_context),
            dtype=tuning.kv_cache,
            batch=self._batch(row.accelerators),
        )

    def _that_hold_the_model(self, types: Sequence[Instance]) -> list[Instance]:
        fits = {row.name: fit for row in types if (fit := self._fit(row))}
        holding = [row for row in types if row.name in fits and fits[row.name].fits]
        if holding:
            return holding
        alike = {fit.why: [name for name in fits if fits[name].why == fit.why] for fit in fits.values()}
        seen = "; ".join(f"on {' and '.join(names)} {reason}" for reason, names in alike.items())
        one = "accelerator" if self.role.accelerators == 1 else "accelerators"
        why = f"it does not fit into {self.role.accelerators} {one} of the pool {self.role.pool}: {seen}"
        many = self.blueprint.value.pattern == "multi-model"
        where = [*self.at, "model"] if many else ["model"]
        raise Refused(self.blueprint.mistake(where, self.model.name, why, self._what_holds()))

    def _what_holds(self) -> str:
        """The smallest way to hold the model: more accelerators, or types with more memory."""
        model = served(self.model, self.blueprint.value.tuning)
        context = min(self.context, model.max_context)
        candidates = [
            (ways * memory.rank_bytes(row.accelerators), ways, row.name)
            for row in instances.load().values()
            if row.accelerators and row.accelerators.kind == "gpu"
            for ways in memory.sizes(model, row)
            if memory.fit(model, row, ways, context=context, dtype=self.blueprint.value.tuning.kv_cache).fits
        ]
        if not candidates:
            return (
                "a smaller or more strongly quantized model, or pattern: distributed: "
                "no single machine of the catalogue holds this one"
            )
        same = sorted(one for one in candidates if one[1] == self.role.accelerators)[:1]
        shown = [f"accelerators: {ways} on {name}" for _, ways, name in dict.fromkeys([*same, min(candidates)])]
        return f"{' or '.join(shown)}, or a smaller model"

    def _with_enough_machines(self, pool: Pool, holding: Sequence[Instance]) -> list[Instance]:
        """Types of which the pool, at its greatest, has machines for all replicas."""
        enough = [row for row in holding if self._most_replicas(pool, row) >= self.role.replicas.most]
        if enough:
            return enough
        best = max(holding, key=lambda row: self._most_replicas(pool, row))
        most, wanted = self._most_replicas(pool, best), self.role.replicas.most
        machines = machines_for(best, self.role.accelerators, wanted)
        why = f"the pool {self.role.pool} grows to {pool.size.most} machines, which hold {most}"
        write = f"replicas: {most} or less, or size: {pool.size.least}..{machines} in the pool"
        raise self._refuse("replicas", plain(self.role.replicas), why, write)

    def _most_replicas(self, pool: Pool, row: Instance) -> int:
        if accelerators(row) >= self.role.accelerators:
            return accelerators(row) // self.role.accelerators * pool.size.most
        return pool.size.most // self._machines(row)

    def _zones(self, pool: Pool, types: Sequence[Instance]) -> tuple[str, ...]:
        """The pool's zones that offer one of the types, where the catalogue has the region's answer."""
        zones, region = self.fleet.value.zones_of(pool), self.fleet.value.region
        offered = {zone for row in types for zone in row.zones.get(region, ())}
        return tuple(zone for zone in zones if not instances.answered(region) or zone in offered) or zones

    def _resources(self, pool: Pool, types: Sequence[Instance], machines: int) -> Resources:
        """The replica's share of each machine, by accelerators: what every one of the types can give."""
        each = self.role.accelerators // machines
        shares = [(row, each / accelerators(row)) for row in types]
        memory_bytes = int(min(row.memory_mib * share for row, share in shares) * 2**20 * HEADROOM)
        self._offload_fits(memory_bytes)
        kind, ranks = next((row.accelerators.kind, row.accelerators.ranks) for row in types if row.accelerators)
        devices = -(-each // ranks)
        return Resources(
            device=DEVICES[kind],
            accelerators=devices,
            efa=min(int(row.efa_interfaces * share) for row, share in shares) if pool.efa else 0,
            machine_efa=min(row.efa_interfaces for row in types) if pool.efa else 0,
            cpus=max(1, math.floor(min(row.vcpus * share for row, share in shares) * HEADROOM)),
            memory_bytes=memory_bytes,
            shared_memory_bytes=min(SHARED_MEMORY_BYTES * devices, memory_bytes // 2),
        )

    def _offload_fits(self, memory_bytes: int) -> None:
        offload = self.blueprint.value.tuning.kv_offload
        if offload and offload > memory_bytes // 2:
            gib = f"{memory_bytes / 2**30:.0f} GiB"
            why = f"a replica's share of its machine is {gib}, of which half may hold cache"
            value, write = f"{offload / 2**30:g}Gi", f"kv_offload: {memory_bytes // 2**31}Gi or less"
            raise Refused(self.blueprint.mistake(["tuning", "kv_offload"], value, why, write))

    def _tolerations(self) -> tuple[Toleration, ...]:
        try:
            of_pool = groups.of_pool(self.fleet.value, self.role.pool, instances.load())
        except InputError:  # a type that the catalogue does not have, beside those that it has
            return ()
        taints = dict.fromkeys(taint for group in of_pool for taint in group.taints)
        return tuple(Toleration(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints)


_SOME = "a pool of types that have some"


def plain(bounds: Bounds) -> int | str:
    """Bounds as a person writes them: one number where both are the same."""
    return bounds.least if bounds.least == bounds.most else str(bounds)


def accelerators(row: Instance) -> int:
    """Ways that one machine can split a model; 0 where it has no accelerator."""
    return memory.ranks(row.accelerators) if row.accelerators else 0


def machines_for(row: Instance, wanted: int, replicas: int) -> int:
    """Machines that `replicas` of `wanted` accelerators each take."""
    on_one = accelerators(row) // wanted
    return -(-replicas // on_one) if on_one else replicas * -(-wanted // accelerators(row))


def overfull(blueprint: Document[Blueprint], fleet: Document[Fleet], placed: Sequence[Placed]) -> list[Mistake]:
    """Pools that the roles, each of which fits alone, ask too much of together; said at the last of the roles."""
    wrong = []
    for name in dict.fromkeys(role.pool for _, role, _ in placed):
        here = [(at, role, placement) for at, role, placement in placed if role.pool == name]
        taken = {
            at[-1]: machines_for(placement.instance, role.accelerators, role.replicas.most)
            for at, role, placement in here
        }
        most = fleet.value.pools[name].size.most
        if len(here) > 1 and _shared_machines(here) > most:
            parts = " and ".join(f"{role} {count}" for role, count in taken.items())
            why = f"of the pool {name}, {parts} machines are asked for, and it grows to {most}"
            at, role, _ = here[-1]
            write = f"fewer replicas, or size: {fleet.value.pools[name].size.least}..{sum(taken.values())} in the pool"
            wrong.append(blueprint.mistake([*at, "replicas"], plain(role.replicas), why, write))
    return wrong


def _shared_machines(here: Sequence[Placed]) -> int:
    """Machines for all roles of a pool: replicas that leave accelerators free share their machine with others."""
    free: list[int] = []
    count = 0
    for _, role, placement in sorted(here, key=lambda one: -one[1].accelerators):
        on_one = accelerators(placement.instance)
        for _ in range(role.replicas.most):
            if role.accelerators > on_one:
                count += placement.machines
                continue
            room = next((index for index, left in enumerate(free) if left >= role.accelerators), None)
            if room is None:
                free.append(on_one)
                room = len(free) - 1
            free[room] -= role.accelerators
    return count + len(free)
