"""The platform's charts know our values, and their pods run where the fleet means them to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from llm_serving.catalog import instances
from llm_serving.fleet.groups import Group, Taint, resolve_all
from llm_serving.fleet.system_group import build_system_group
from tests.charts import platform_charts
from tests.charts.platform_charts import FLEET, find_unknown_names

FACTS = platform_charts.load_facts()
CHARTS = {selected.add_on.name: selected for selected in platform_charts.select_charts()}

ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
SYSTEM = "system"


@dataclass(frozen=True)
class Node:
    """What a scheduler sees of a node."""

    pool: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]

    @property
    def arch(self) -> str:
        return self.labels["kubernetes.io/arch"]


def build_node(group: Group) -> Node:
    labels = {
        **group.labels,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES[group.arch],
        "node.kubernetes.io/instance-type": group.types[0],
    }
    return Node(group.pool, labels, group.taints)


NODES = [build_node(group) for group in (build_system_group(FLEET), *resolve_all(FLEET))]


def is_schedulable(pod: Mapping[str, Any], node: Node) -> bool:
    """Whether the pod's node selector, required node affinity and tolerations let it run on the node."""
    terms = pod.get("node_affinity", [])
    return (
        pod.get("node_selector", {}).items() <= node.labels.items()
        and (not terms or any(matches_term(term, node.labels) for term in terms))
        and all(is_tolerated(taint, pod.get("tolerations", [])) for taint in node.taints)
    )


def matches_term(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in term["matchExpressions"]:
        label, values = labels.get(expression["key"]), expression.get("values", [])
        fits = {
            "In": label in values,
            "NotIn": label not in values,
            "Exists": label is not None,
            "DoesNotExist": label is None,
        }
        if not fits[expression["operator"]]:
            return False
    return True


def is_tolerated(taint: Taint, tolerations: list[Mapping[str, str]]) -> bool:
    return any(
        toleration.get("key", taint.key) == taint.key
        and toleration.get("effect", taint.effect) == taint.effect
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.value)
        for toleration in tolerations
    )


def list_pods(kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, pod) for name, facts in FACTS.items() for pod in facts["pods"] if pod["kind"] == kind]


DAEMON_SET_POOLS = {
    "nvidia-device-plugin": {"general", "spanning"},  # Bottlerocket has its own
    "nvidia-device-plugin-mps-control-daemon": set(),  # asked for by a label
    "dcgm-exporter": {"general", "rocket", "spanning"},
    "aws-efa-k8s-device-plugin": {"spanning"},
    "neuron-device-plugin": {"neuron"},
    "kube-prometheus-stack-prometheus-node-exporter": {SYSTEM, *FLEET.pools},
    "aws-for-fluent-bit": {SYSTEM, *FLEET.pools},
}


def test_there_are_facts_of_every_chart_of_the_table_in_its_pinned_version() -> None:
    pins = {name: (selected.add_on.chart, selected.add_on.version) for name, selected in CHARTS.items()}
    assert pins == {name: (facts["chart"], facts["version"]) for name, facts in FACTS.items()}
    assert set(CHARTS) == {row.name for row in platform_charts.add_ons.load_add_ons() if row.chart}
    assert all(facts["source"] and facts["architectures"]["source"] for facts in FACTS.values())


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_knows_the_name_of_every_value(name: str) -> None:
    assert list(find_unknown_names(CHARTS[name].values, FACTS[name]["names"])) == []


def test_a_name_that_a_chart_does_not_know_is_reported() -> None:
    old_values = {"tolerations": [], "affinity": {"nodeAffinity": {}}}
    assert list(find_unknown_names(old_values, FACTS["aws-efa-k8s-device-plugin"]["names"])) == ["affinity"]
    values = {"settings": {"clusterName": "demo", "clusterNames": "demo", "featureGates": {"reservedCapacities": True}}}
    assert list(find_unknown_names(values, FACTS["karpenter"]["names"])) == [
        "settings.clusterNames",
        "settings.featureGates.reservedCapacities",
    ]


def test_kueue_ends_no_pod_that_is_slow_to_be_ready() -> None:
    """By a feature of v0.19.2 (pkg/features/kube_features.go), to be removed in 0.21: it starts with none that it lacks."""
    assert CHARTS["kueue"].add_on.version.startswith("0.19.")
    gates = CHARTS["kueue"].values["controllerManager"]["featureGates"]
    assert gates == [{"name": "DisableWaitForPodsReady", "enabled": True}]


@pytest.mark.parametrize("name", CHARTS)
def test_the_pods_are_those_of_todays_values(name: str) -> None:
    assert CHARTS[name].values == FACTS[name]["values"], (
        "render the chart again: python -m tests.charts.platform_charts"
    )


@pytest.mark.parametrize(("name", "pod"), list_pods("DaemonSet"), ids=lambda value: str(value)[:40])
def test_a_daemon_set_runs_on_the_pools_that_it_is_for(name: str, pod: Mapping[str, Any]) -> None:
    nodes = [node for node in NODES if is_schedulable(pod, node)]
    assert {node.pool for node in nodes} == DAEMON_SET_POOLS[pod["name"]]
    assert {node.arch for node in nodes} <= set(FACTS[name]["architectures"]["of"])


@pytest.mark.parametrize(("name", "pod"), list_pods("Deployment"), ids=lambda value: str(value)[:40])
def test_a_controller_runs_on_the_system_nodes_and_on_no_accelerator(name: str, pod: Mapping[str, Any]) -> None:
    pools = {node.pool: node.arch for node in NODES if is_schedulable(pod, node)}
    assert SYSTEM in pools
    assert set(pools) <= {SYSTEM, "routers"}, "pools without accelerators and taints"
    assert set(pools.values()) <= set(FACTS[name]["architectures"]["of"])


def test_a_controller_that_must_answer_before_a_pod_is_created_runs_twice() -> None:
    replicas = {
        name: max(pod["replicas"] for pod in facts["pods"] if pod["kind"] == "Deployment")
        for name, facts in FACTS.items()
        if facts.get("guards_pods")
    }
    assert replicas == {"aws-load-balancer-controller": 2, "kueue": 2, "lws": 2}


def test_a_pod_without_toleration_or_for_other_instance_types_is_kept_off() -> None:
    [(_, plugin)] = [(name, pod) for name, pod in list_pods("DaemonSet") if pod["name"] == "neuron-device-plugin"]
    [neuron_node] = [node for node in NODES if node.pool == "neuron"]
    assert is_schedulable(plugin, neuron_node)
    chart_tolerations = [{"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}]
    assert not is_schedulable({**plugin, "tolerations": chart_tolerations}, neuron_node), "the pool's own taint"
    [efa_node] = [node for node in NODES if node.pool == "spanning"]
    old_term = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}
    old_plugin = {"node_affinity": [{"matchExpressions": [old_term]}], "tolerations": [{"operator": "Exists"}]}
    assert not is_schedulable(old_plugin, efa_node), "a chart's own list of types ends with those of its day"


def test_the_neuron_chart_knows_every_neuron_type_of_the_catalog() -> None:
    [plugin] = FACTS["neuron"]["pods"]
    [types] = [
        expression["values"]
        for term in plugin["node_affinity"]
        for expression in term["matchExpressions"]
        if expression["key"] == "node.kubernetes.io/instance-type"
    ]
    neuron_types = {
        name for name, row in instances.load().items() if row.accelerators and row.accelerators.kind == "neuron"
    }
    assert neuron_types <= set(types)
