"""Whether a cluster of EKS has what the fleet file describes: nodes of each pool, their devices, and controllers.

Deployments are checked against the file and never against the cluster: where it has something else, pods wait for
nodes that nobody starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from llm_serving.aws.preflight.check import CheckGroup, CheckResult, Status
from llm_serving.catalog import instances
from llm_serving.fleet import add_ons, groups, names, node_template
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.groups import Group
from llm_serving.fleet.model import Fleet
from llm_serving.operations.kube_api import Kind, KubeApi, Manifest
from llm_serving.settings.units import format_count

_NODE = Kind("v1", "Node")
_DAEMON_SET = Kind("apps/v1", "DaemonSet")
_LOCAL_QUEUE = Kind("kueue.x-k8s.io/v1beta2", "LocalQueue")

_POD_IDENTITY = "eks-pod-identity-agent"

_TYPE, _ZONE = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"

_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/", "ebs.csi.aws.com/")
"""Prefixes of taints that nodes have while they start, end or are ill."""

_KEEPS_AWAY = ("NoSchedule", "NoExecute")


def check(fleet: Fleet, api: KubeApi) -> tuple[CheckGroup, ...]:
    """Ask a cluster for what the fleet's pools and add-ons say of it; change nothing.

    Raises:
        ApiError: it does not answer.
        InputError: a type that the catalog does not have.
    """
    pools = [name for name, pool in fleet.pools.items() if fleet.get_orchestrator(pool) == "eks"]
    controllers = [*_check_controllers(fleet, api), _check_pod_identity(api), *_check_queues(fleet, api, pools)]
    nodes = [result for name in pools for result in _check_pool(fleet, name, api)]
    return CheckGroup("nodes", tuple(nodes)), CheckGroup("controllers", tuple(controllers))


def _check_pool(fleet: Fleet, name: str, api: KubeApi) -> list[CheckResult]:
    nodes = api.list_objects(_NODE, labels=f"fleet/pool={name}")
    if not nodes:
        fix = f"add the label fleet/pool={name} to its nodes, or to what an autoscaler starts them from"
        status: Status = "fail" if fleet.pools[name].size.min else "warn"
        return [CheckResult(name, status, f"no node has the label fleet/pool={name}", fix)]
    pool_groups = groups.resolve_pool(fleet, name)
    faults = Counter(fault for node in nodes for fault in _list_faults(node, pool_groups))
    if faults:
        count = format_count(len(nodes), "node")
        return [CheckResult(name, "fail", f"{seen} of {count}: {why}", fix) for (why, fix), seen in faults.items()]
    kinds = Counter(f"{_read_label(node, _TYPE)} in {_read_label(node, _ZONE)}" for node in nodes)
    return [CheckResult(name, "pass", join_words(f"{count} x {kind}" for kind, count in sorted(kinds.items())))]


def _list_faults(node: Manifest, pool_groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """Yield why pods of the pool do not run on a node or run wrongly, each with the fix."""
    instance_type, zone = _read_label(node, _TYPE), _read_label(node, _ZONE)
    group = next((group for group in pool_groups if instance_type in group.types), None)
    if group is None:
        allowed = dict.fromkeys(name for group in pool_groups for name in group.types)
        yield (
            f"the type is {instance_type or 'not known'}",
            f"use another label, or add it to types of the pool, which has {join_words(allowed)}",
        )
        return
    if not any(zone in other.zones for other in pool_groups):
        yield f"the zone is {zone or 'not known'}", "add it to zones in the fleet file"
    yield from _list_lacking(node, group, instance_type)
    for taint in node["spec"].get("taints", ()):
        if not _is_tolerated(taint, group):
            text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            yield f"the taint {text} keeps pods away", "add it to taints in the pool"


def _list_lacking(node: Manifest, group: Group, instance_type: str) -> Iterator[tuple[str, str]]:
    """Yield devices that differ from the type's, as where several pods share one, and amounts that are too small."""
    from kubernetes.utils.quantity import parse_quantity

    allocatable = node.get("status", {}).get("allocatable", {})
    for resource, count in node_template.count_resources(group, instances.find(instance_type)).items():
        if resource == node_template.STORAGE:
            continue
        expected, actual = node_template.format_amount(resource, count), str(allocatable.get(resource, "0"))
        is_less = parse_quantity(actual) < parse_quantity(expected)
        if is_less or (expected.isdecimal() and actual != expected):
            fix = "install its device plugin, one for each device" if expected.isdecimal() else "reserve them at boot"
            yield f"{actual} {resource}, and {instance_type} should have {expected}", fix


def _is_tolerated(taint: dict[str, str], group: Group) -> bool:
    """Return whether pods of the pool run on a node with a taint, as soon as it is ready.

    EKS lets pods that ask for a device tolerate the taint of its name, whatever its value. Source: EKS user guide,
    "EKS platform versions", admission controllers, ExtendedResourceToleration, 2026-11.
    """
    if taint["effect"] not in _KEEPS_AWAY or taint["key"].startswith(_PASSING_TAINTS):
        return True
    own = [(entry.key, entry.value, entry.effect) for entry in group.taints]
    is_device = taint["effect"] == "NoSchedule" and taint["key"] in instances.DEVICES.values()
    return is_device or (taint["key"], taint.get("value", ""), taint["effect"]) in own


def _read_label(node: Manifest, label: str) -> str:
    return str(node["metadata"].get("labels", {}).get(label, ""))


def _check_controllers(fleet: Fleet, api: KubeApi) -> Iterator[CheckResult]:
    for add_on in [selected.add_on for selected in add_ons.select_add_ons(fleet)]:
        if not add_on.adds:
            continue
        version, _, kind = add_on.adds.partition(" ")
        served_versions = api.list_versions(Kind(version, kind))
        if version in served_versions:
            yield CheckResult(add_on.name, "pass", add_on.adds)
            continue
        is_optional = add_on.when == "always"  # and no line of the file speaks of it
        install = "install the version of charts/platform.yaml" if served_versions else "install it"
        fix = install if is_optional else f"{install}, or set {add_on.when}: off in add_ons"
        served_text = f", only {join_words(served_versions)}" if served_versions else ""
        message = f"the cluster does not know {add_on.adds}{served_text}: {add_on.why}"
        yield CheckResult(add_on.name, "warn" if is_optional else "fail", message, fix)


def _check_pod_identity(api: KubeApi) -> CheckResult:
    if api.find(_DAEMON_SET, _POD_IDENTITY, "kube-system"):
        return CheckResult(_POD_IDENTITY, "pass", "gives pods their roles")
    message = "it is not there: except on EKS Auto Mode, which has it built in, engines cannot read weights"
    return CheckResult(_POD_IDENTITY, "warn", message, "install EKS's add-on of this name")


def _check_queues(fleet: Fleet, api: KubeApi, pools: Sequence[str]) -> Iterator[CheckResult]:
    """Yield Kueue's queue of each pool: a workload that names one that is not there waits for ever."""
    if not (fleet.add_ons.schedulers and api.has_kind(_LOCAL_QUEUE)):
        return
    for name in pools:
        queue: Any = api.find(_LOCAL_QUEUE, name, names.SERVING_NAMESPACE)
        place = f"{name} in {names.SERVING_NAMESPACE}"
        conditions = queue.get("status", {}).get("conditions", ()) if queue else ()
        faults = [entry["message"] for entry in conditions if (entry["type"], entry["status"]) == ("Active", "False")]
        if faults:
            fix = f"create or start the ClusterQueue {queue['spec']['clusterQueue']}"
            yield CheckResult(f"queue {name}", "fail", f"LocalQueue {place} admits nothing: {faults[0]}", fix)
        elif queue:
            yield CheckResult(f"queue {name}", "pass", f"LocalQueue {place}")
        else:
            fix = f"create the LocalQueue {place}, or set schedulers: off in add_ons"
            yield CheckResult(f"queue {name}", "fail", "Kueue has no queue for replicas that span nodes", fix)
