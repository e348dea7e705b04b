"""Karpenter's NodePools, EC2NodeClasses and NodeOverlays for the instance groups that it starts, as plain data.

One of the first two for a group: what differs between groups (interfaces, volumes, reservation) is the class's, and
what bounds them is the pool's. What the stack made is found by name and tag: no id is in the manifests but the fleet
file's own.

Source: karpenter.sh/v1.14/concepts, and the CRDs of aws/karpenter-provider-aws v1.14.1, 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances
from llm_serving.fleet import groups, machine_images, names, node_config
from llm_serving.fleet.groups import RESERVED_OPTIONS, Group, Volume
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings import own_yaml

Manifest = dict[str, Any]

_ARCH = {"x86_64": "amd64", "arm64": "arm64"}
_CAPACITY_TYPES = {"on-demand": "on-demand", "spot": "spot", "reservation": "reserved", "capacity-block": "reserved"}
_MAX_WEIGHT = 100
"""Largest weight of a NodePool: the first choice of a pool has it, and each further one less."""


def build(fleet: Fleet) -> list[Manifest]:
    """Return all of them, classes before the pools that name them."""
    karpenter_groups = [group for group in groups.resolve_all(fleet) if group.kind == "karpenter"]
    return [
        *(build_node_class(fleet, group) for group in karpenter_groups),
        *(build_node_pool(group) for group in karpenter_groups),
        *(
            _fill("node_overlay", {"name": group.name, "huge_pages": f"{2 * EFA_HUGE_PAGES}Mi"})
            for group in karpenter_groups
            if needs_overlay(group)
        ),
    ]


def needs_overlay(group: Group) -> bool:
    """Return whether the group's nodes have what Karpenter cannot know of their types: huge pages, with EFA."""
    return group.kind == "karpenter" and group.efa > 0


def build_node_class(fleet: Fleet, group: Group) -> Manifest:
    own_raid = group.os == "bottlerocket"  # Karpenter's leaves the folder of SOCI's snapshots on the slow volume
    values = {
        "name": group.name,
        "instance_profile": names.format_role_name(fleet.name, fleet.region, names.KARPENTER_NODE_PURPOSE),
        "subnets": list(_build_subnet_terms(fleet, group.zones)),
        "security_groups": list(_build_security_group_terms(fleet, group)),
        "volumes": list(_build_volumes(group)),
        "max_pods": node_config.MAX_PODS,
        "user_data": node_config.render(group),
        "tags": {**names.build_tags(fleet), "pool": group.pool},
    }
    manifest = _fill("node_class", values)
    spec = {**_build_image(fleet, group), **manifest["spec"]}
    if group.nvme and not own_raid:
        spec["instanceStorePolicy"] = "RAID0"
    if group.efa:
        spec["networkInterfaces"] = [
            {"networkCardIndex": interface.card, "deviceIndex": interface.device, "interfaceType": interface.kind}
            for interface in group.interfaces
        ]
    if group.placement_group:
        spec["placementGroupSelector"] = {"name": names.format_placement_group_name(fleet.name, group.placement_group)}
    if group.purchase_option in RESERVED_OPTIONS:
        spec["capacityReservationSelectorTerms"] = [_build_reservation_term(fleet, group)]
    return {**manifest, "spec": spec}


def build_node_pool(group: Group) -> Manifest:
    """Return when the group's nodes are started and terminated, and their maximum."""
    values = {
        "name": group.name,
        "weight": max(1, _MAX_WEIGHT - group.choice),
        "limits": _build_limits(group),
        "labels": dict(group.labels),
        "requirements": list(_build_requirements(group)),
        "taints": [asdict(taint) for taint in group.taints],
    }
    return _fill("node_pool", values)


def _fill(name: str, values: dict[str, Any]) -> Manifest:
    manifest: Manifest = own_yaml.fill_values(own_yaml.read(Path(__file__).with_name(f"{name}.yaml")), values)
    return manifest


def _build_reservation_term(fleet: Fleet, group: Group) -> Manifest:
    """Return the term that selects reservations: the fleet's own by tags, existing ones by id."""
    if group.reservation:
        return {"id": group.reservation}
    return {"tags": {"fleet": fleet.name, "Name": names.format_reservation_name(fleet.name, group.name)}}


def _build_limits(group: Group) -> dict[str, str]:
    """Return limits of accelerators and nodes: Karpenter counts accelerators before it asks EC2, nodes after."""
    accelerators = [row.accelerators for type_name in group.types if (row := instances.load()[type_name]).accelerators]
    accelerator_limits = {
        item.device: str(group.max_size * max(accelerator.count for accelerator in accelerators if accelerator))
        for item in accelerators
        if item
    }
    return {"nodes": str(group.max_size), **accelerator_limits}


def _build_image(fleet: Fleet, group: Group) -> dict[str, Any]:
    family = {"al2023": "AL2023", "bottlerocket": "Bottlerocket"}[group.os]
    if group.ami:
        return {"amiFamily": family, "amiSelectorTerms": [{"id": group.ami}]}
    release = machine_images.find_release(fleet, group.orchestrator, group.os).name
    return {"amiSelectorTerms": [{"alias": f"{group.os}@{'v' * (group.os == 'bottlerocket')}{release}"}]}


def _build_subnet_terms(fleet: Fleet, zones: Sequence[str]) -> Iterator[Manifest]:
    for zone in zones:
        if isinstance(fleet.network, ExistingNetwork):
            yield {"id": fleet.network.private_subnets[fleet.zones.index(zone)]}
        else:
            yield {"tags": names.build_private_subnet_tags(fleet, zone)}


def _build_security_group_terms(fleet: Fleet, group: Group) -> Iterator[Manifest]:
    yield {"tags": {"aws:eks:cluster-name": names.format_cluster_name(fleet)}}  # which EKS gives the one that it makes
    if group.efa:
        yield {"tags": {"fleet": fleet.name, "Name": names.format_efa_group_name(fleet.name, "eks")}}


def _build_volumes(group: Group) -> Iterator[Manifest]:
    if group.os == "bottlerocket":
        yield {**_build_volume("/dev/xvda", node_config.BOTTLEROCKET_ROOT), "rootVolume": False}
        yield {**_build_volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot), "rootVolume": True}
        return
    yield {**_build_volume("/dev/xvda", group.volume), "rootVolume": True}
    if group.snapshot:
        yield _build_volume(node_config.SNAPSHOT_DEVICE, group.volume, group.snapshot)


def _build_volume(device: str, volume: Volume, snapshot: str | None = None) -> Manifest:
    ebs = {
        "volumeType": "gp3",
        "volumeSize": f"{volume.size_gib}Gi",
        "throughput": volume.throughput_mib_s,
        "iops": volume.iops,
        "encrypted": True,
        "deleteOnTermination": True,
    }
    return {"deviceName": device, "ebs": {**ebs, "snapshotID": snapshot} if snapshot else ebs}


def _build_requirements(group: Group) -> Iterator[Manifest]:
    requirements = {
        "node.kubernetes.io/instance-type": list(group.types),
        "topology.kubernetes.io/zone": list(group.zones),
        "karpenter.sh/capacity-type": [_CAPACITY_TYPES[group.purchase_option]],
        "kubernetes.io/arch": [_ARCH[group.arch]],
        "kubernetes.io/os": ["linux"],
    }
    for key, values in requirements.items():
        yield {"key": key, "operator": "In", "values": values}
