"""User data of a node: NodeConfig for Amazon Linux 2023, TOML for Bottlerocket.

Every text comes in two: with the cluster's address, for a node group's launch template, and without, for Karpenter,
which adds it. Values may be Terraform's tokens.

Sources, read 2026-11: awslabs.github.io/amazon-eks-ami/nodeadm/doc/api; bottlerocket.dev, "container-runtime-plugins",
"bootstrap-commands"; soci-snapshotter, docs/parallel-mode.md; EKS user guide, "Using Bottlerocket with EFA".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from llm_serving.fleet.groups import Group, Volume
from llm_serving.fleet.interfaces import EFA_HUGE_PAGES

MAX_PODS = 110
"""Pods of a node at the most, where the CNI hands out whole prefixes. Source: EKS best practices, "Prefix Mode"."""

SNAPSHOT_DEVICE = "/dev/xvdb"
"""The volume made from a snapshot of images, and Bottlerocket's data volume."""

BOTTLEROCKET_ROOT = Volume(4, 125, 3000)
"""Bottlerocket's system volume: never written to, so its size is the image's."""

_SOCI_SETTINGS = {
    # Of one image at a time; the defaults of 3 and 1 leave a fast volume idle.
    "max-concurrent-downloads-per-image": 20,
    "concurrent-download-chunk-size": "16mb",
    "max-concurrent-unpacks-per-image": 12,
    "discard-unpacked-layers": True,
}

_BOUNDARY = "==BLUEPRINT=="


@dataclass(frozen=True)
class ClusterConnection:
    """What a node must know to join."""

    name: str
    endpoint: str
    certificate: str
    """Base64 of the cluster's certificate authority."""

    service_cidr: str


def render(group: Group, cluster: ClusterConnection | None = None) -> str:
    """Return the user data of the group's nodes; without a cluster, what Karpenter adds its own part to."""
    return _render_bottlerocket(group, cluster) if group.os == "bottlerocket" else _render_al2023(group, cluster)


def _render_al2023(group: Group, cluster: ClusterConnection | None) -> str:
    parts = [("application/node.eks.aws", _render_nodeadm_config(group, cluster))]
    if group.images == "snapshot":
        # Before containerd starts: nodeadm starts it after cloud-init has mounted.
        parts.append(build_snapshot_mount("/var/lib/containerd"))
    return render_multipart(parts)


def build_snapshot_mount(folder: str) -> tuple[str, str]:
    """Return the part for cloud-init that mounts the volume of images."""
    mounts = {"mounts": [[SNAPSHOT_DEVICE, folder, "auto", "defaults"]]}
    return "text/cloud-config", f"#cloud-config\n{yaml.safe_dump(mounts)}"


def render_multipart(parts: Sequence[tuple[str, str]]) -> str:
    """Return the user data of several parts for cloud-init, each with its MIME type."""
    lines = ["MIME-Version: 1.0", f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"', ""]
    for mime_type, text in parts:
        lines += [f"--{_BOUNDARY}", f"Content-Type: {mime_type}", "", text.rstrip("\n"), ""]
    return "\n".join([*lines, f"--{_BOUNDARY}--", ""])


def _render_nodeadm_config(group: Group, cluster: ClusterConnection | None) -> str:
    spec: dict[str, Any] = {}
    if cluster:
        spec["cluster"] = {
            "name": cluster.name,
            "apiServerEndpoint": cluster.endpoint,
            "certificateAuthority": cluster.certificate,
            "cidr": cluster.service_cidr,
        }
        spec["kubelet"] = {"config": {"maxPods": MAX_PODS}, "flags": list(_build_kubelet_flags(group))}
    if group.images == "soci":
        spec["featureGates"] = {"FastImagePull": True}
    if group.nvme and cluster:  # Karpenter has a field for it, which tells its scheduler as well
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return yaml.safe_dump(config, sort_keys=False, width=1000)


def _build_kubelet_flags(group: Group) -> Iterator[str]:
    """Yield the labels and taints at registration; EKS itself adds a node group's later."""
    if group.labels:
        yield f"--node-labels={','.join(f'{key}={value}' for key, value in group.labels.items())}"
    if group.taints:
        taints = (f"{taint.key}={taint.value}:{taint.effect}" for taint in group.taints)
        yield f"--register-with-taints={','.join(taints)}"


def _render_bottlerocket(group: Group, cluster: ClusterConnection | None) -> str:
    tables: dict[str, Mapping[str, Any]] = {}
    if cluster:
        tables["settings.kubernetes"] = {
            "cluster-name": cluster.name,
            "api-server": cluster.endpoint,
            "cluster-certificate": cluster.certificate,
            "max-pods": MAX_PODS,
        }
        tables["settings.kubernetes.node-labels"] = group.labels
        tables["settings.kubernetes.node-taints"] = _group_taints(group)
    if group.images == "soci":
        tables["settings.container-runtime"] = {"snapshotter": "soci"}
        plugin = "settings.container-runtime-plugins.soci-snapshotter"
        tables[plugin] = {"pull-mode": "parallel-pull-unpack"}
        tables[f"{plugin}.parallel-pull-unpack"] = _SOCI_SETTINGS
    if group.nvme:
        tables["settings.bootstrap-commands.instance-store"] = _build_instance_store(group)
    if group.efa:
        # As many as the driver of the other AMIs sets aside: Bottlerocket does not any more (bottlerocket#4411).
        tables["settings.kernel.sysctl"] = {"vm.nr_hugepages": str(EFA_HUGE_PAGES)}
    return "\n".join(f"[{name}]\n{_format_toml(table)}" for name, table in tables.items() if table)


def _group_taints(group: Group) -> dict[str, list[str]]:
    keys = dict.fromkeys(taint.key for taint in group.taints)
    return {key: [f"{taint.value}:{taint.effect}" for taint in group.taints if taint.key == key] for key in keys}


def _build_instance_store(group: Group) -> dict[str, Any]:
    """Return the commands that join the NVMe disks into one, and put on it what grows."""
    folders = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"]
    if group.images == "soci":
        folders.append("/var/lib/soci-snapshotter")
    init = ["apiclient", "ephemeral-storage", "init"]
    bind = ["apiclient", "ephemeral-storage", "bind", "--dirs", *folders]
    return {"commands": [init, bind], "mode": "always", "essential": True}


def _format_toml(table: Mapping[str, Any]) -> str:
    """Return one table's lines; strings, numbers, booleans and lists are written in TOML as in JSON."""
    return "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in table.items())
