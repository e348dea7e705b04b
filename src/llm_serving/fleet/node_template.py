"""What cluster-autoscaler knows of a node group that has no node: resources that only the running node would show.

It takes the type's CPUs, memory and GPUs from EC2, labels and taints from EKS, and all other resources from tags of the
node group. Without them no node starts for a pod that asks for one. Source: kubernetes/autoscaler,
cluster-autoscaler/cloudprovider/aws/aws_manager.go, buildNodeFromTemplate, from cluster-autoscaler-1.28.0 on.
"""

from __future__ import annotations

import math

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet.groups import Group
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES

_PREFIX = "k8s.io/cluster-autoscaler/node-template/resources/"

STORAGE = "ephemeral-storage"

_USABLE_STORAGE = 0.8
"""Kubelet keeps a tenth of the disk free, and the file system and the operating system take their share."""


def build_tags(group: Group) -> dict[str, str]:
    """Return the tags of a node group of one instance type, a resource of its nodes each."""
    instance = instances.find(group.types[0])
    return {f"{_PREFIX}{name}": format_amount(name, count) for name, count in count_resources(group, instance).items()}


def count_resources(group: Group, instance: Instance) -> dict[str, int]:
    """Return what one node has beside CPUs and memory, for which it is chosen: storage in GiB, huge pages in MiB."""
    disk_gib = instance.nvme_gb * 1e9 / 2**30 if group.nvme else group.volume.size_gib
    resources = {STORAGE: math.floor(disk_gib * _USABLE_STORAGE)}
    if instance.accelerators:
        resources[instance.accelerators.device] = instance.accelerators.count
    if group.efa:
        resources |= {"vpc.amazonaws.com/efa": group.efa, "hugepages-2Mi": 2 * EFA_HUGE_PAGES}
    return resources


def format_amount(resource: str, count: int) -> str:
    """Return a count of `count_resources` as Kubernetes writes it."""
    return f"{count}{_UNITS.get(resource, '')}"


_UNITS = {STORAGE: "Gi", "hugepages-2Mi": "Mi"}
