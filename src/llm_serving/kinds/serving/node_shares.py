"""What a replica takes of a node: its share by accelerators, of all that the node has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_serving.catalog.instances import DEVICES, Instance
from llm_serving.engines import memory
from llm_serving.fleet import groups, interfaces
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving.placed_role import PlacementError
from llm_serving.kinds.serving.roles import EngineRole
from llm_serving.kinds.serving.tuning import Tuning
from llm_serving.services.service import Resources
from llm_serving.settings.document import Conflict

SHARED_MEMORY_BYTES = 4 * 2**30
"""Of /dev/shm for each accelerator: NCCL's and the engine's message queues stay below it."""

CPU_SHARED_MEMORY_BYTES = 512 * 2**20
"""Of /dev/shm where a replica has no accelerator: the queue to the engine's worker takes up to 160 MiB (vLLM 0.32.0,
distributed/device_communicators/shm_broadcast.py, ten chunks of VLLM_MQ_MAX_CHUNK_BYTES_MB)."""

OFFLOAD_ROOM = 1.2
"""Of /dev/shm for each byte of offloaded cache: the engine maps the whole of it there, and refuses to start where less
is free (vLLM 0.32.0, v1/kv_offload/cpu/shared_offload_region.py)."""

DISK_SHARE = 0.7
"""Of a node's NVMe that may hold cached prompts; `cache_keeper` looks every ten seconds how much it is."""


def compute_resources(
    fleet: Fleet, role: EngineRole, tuning: Tuning, types: Sequence[Instance], nodes: int, engines: int
) -> Resources:
    """Return a replica's share of each of its nodes: what all of the types can give.

    Args:
        engines: that take turns in the replica.

    Raises:
        PlacementError: caches of prompts have no room in its memory or on its disk.
    """
    per_node, pool = role.accelerators // nodes, fleet.pools[role.pool]
    shares = [(instance, per_node / count_units(instance)) for instance in types]
    memory_bytes = int(min(instance.memory_mib * share for instance, share in shares) * 2**20 * memory.NODE_SHARE)
    device = types[0].accelerators
    devices = -(-per_node // device.ranks) if device else 0
    queue_bytes = min(engines * (SHARED_MEMORY_BYTES * devices or CPU_SHARED_MEMORY_BYTES), memory_bytes // 2)
    _check_offload(tuning, memory_bytes, memory_bytes // 2 - queue_bytes)
    _check_disk(fleet, role, tuning, types)
    efa = min(int(instance.efa_interfaces * share) for instance, share in shares) if pool.efa else 0
    node_efa = min(instance.efa_interfaces for instance in types) if pool.efa else 0
    neuron_devices = devices if device and device.device == DEVICES["neuron"] else 0
    return Resources(
        device=device.device if device else "",
        accelerators=devices,
        efa=efa,
        # For libfabric's buffers: the share, by interfaces, of what EFA's driver sets aside.
        huge_page_bytes=interfaces.EFA_HUGE_PAGES * efa // node_efa * 2**21 if efa else 0,
        # The whole instance's interfaces, of which the engine takes those next to its GPUs.
        device_files=(
            *interfaces.list_device_files(node_efa),
            *(f"/dev/neuron{number}" for number in range(neuron_devices)),
        ),
        cpus=max(1, math.floor(min(instance.vcpus * share for instance, share in shares) * memory.NODE_SHARE)),
        memory_bytes=memory_bytes,
        shared_memory_bytes=queue_bytes + math.ceil(OFFLOAD_ROOM * tuning.ram_bytes),
    )


def _check_offload(tuning: Tuning, memory_bytes: int, room_bytes: int) -> None:
    """Refuse more cache than fits into `room_bytes` of /dev/shm, which is part of the replica's memory."""
    offload = tuning.ram_bytes
    if OFFLOAD_ROOM * offload <= room_bytes:
        return
    max_gib = int(room_bytes / OFFLOAD_ROOM / 2**30)
    reason = (
        f"a replica's share of its node is {memory_bytes / 2**30:.0f} GiB, of which half may be shared memory, "
        f"where the engine keeps this cache: {room_bytes / 2**30:.0f} GiB are free there, and it takes "
        f"{OFFLOAD_ROOM:g} times its size"
    )
    key_path = ("tuning", "kv_offload") if tuning.kv_offload else ("tuning", "kv_tiers", "ram")
    fix = f"set {key_path[-1]}: {max_gib}Gi or less"
    if not max_gib:
        fix = f"remove {key_path[1]}, or use a pool of larger types"
    raise PlacementError(Conflict(key_path, reason, fix, f"{offload / 2**30:g}Gi"))


def _check_disk(fleet: Fleet, role: EngineRole, tuning: Tuning, types: Sequence[Instance]) -> None:
    """Refuse more cached prompts on the disk than the NVMe of a node has room for."""
    disk = tuning.folder_bytes.get("disk")
    if not disk:
        return
    key_path, value = ("tuning", "kv_tiers", "disk"), f"{disk / 2**30:g}Gi"
    if not all(group.nvme for group in groups.resolve_pool(fleet, role.pool)):
        reason = f"the nodes of the pool {role.pool} start without NVMe"
        fix = "remove disk, or use a pool of types with NVMe, such as g6e or p5en, that has disk: nvme"
        raise PlacementError(Conflict(key_path, reason, fix, value))
    smallest = min(types, key=lambda instance: instance.nvme_gb)
    room_gib = int(smallest.nvme_gb * 1e9 * DISK_SHARE / 2**30)
    if disk > room_gib * 2**30:
        reason = (
            f"{smallest.name} has {smallest.nvme_gb} GB of NVMe, of which {DISK_SHARE:.0%} may hold cached "
            "prompts: images, compiled programs and what is written between two cleanings need the rest"
        )
        raise PlacementError(Conflict(key_path, reason, f"set disk: {room_gib}Gi or less", value))


def count_accelerators(instance: Instance) -> int:
    """Return ways that one node can split a model; 0 where it has no accelerator."""
    return memory.count_ranks(instance.accelerators) if instance.accelerators else 0


def count_units(instance: Instance) -> int:
    """Return replicas of one accelerator that a node carries; one if a replica takes all of its CPUs."""
    return max(1, count_accelerators(instance))


def count_nodes(instance: Instance, accelerators: int, replicas: int) -> int:
    """Return nodes for `replicas` of `accelerators` each."""
    per_node = count_units(instance) // accelerators
    return -(-replicas // per_node) if per_node else replicas * -(-accelerators // count_units(instance))
