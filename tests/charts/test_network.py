"""What the chart's network policies let through once the cluster enforces them, as Kubernetes defines them and as AWS's
controller and agent carry them out.

Sources: kubernetes.io, "Network Policies"; aws/aws-network-policy-agent v1.4.1, pkg/fwruleprocessor (traffic from the
pod's own node always passes: kubelet's probes do); aws/amazon-network-policy-controller-k8s, pkg/resolvers/endpoints.go
(a Service's address is let out to where the peer's labels are among the Service's selector).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving.targets.eks import load_job
from tests.charts.conftest import PRESETS, Render
from tests.charts.objects import list_pods
from tests.charts.test_objects import Preset, filter_by_kind

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
each_preset = pytest.mark.parametrize("name", NAMES)

Labels = Mapping[str, str]
PROMETHEUS = ({"kubernetes.io/metadata.name": "monitoring"}, {"app.kubernetes.io/name": "prometheus"})
DNS = ({"kubernetes.io/metadata.name": "kube-system"}, {"k8s-app": "kube-dns"})
STRANGER = ({"kubernetes.io/metadata.name": "other"}, {"app": "stranger"})
SERVING = {"kubernetes.io/metadata.name": "serving"}
IDENTITY_AGENT = "169.254.170.23"


def matches(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    return (selector or {}).get("matchLabels", {}).items() <= labels.items()


def includes(peer: Mapping[str, Any], other: tuple[Labels, Labels] | str) -> bool:
    """Whether a policy's peer is the other end: a namespace's and a pod's labels, or an address."""
    if isinstance(other, str):
        block = peer.get("ipBlock", {})
        within = [
            ":" not in cidr and ipaddress.IPv4Address(other) in ipaddress.IPv4Network(cidr)
            for cidr in (block.get("cidr", "255.255.255.255/32"), *block.get("except", ()))
        ]
        return within[0] and not any(within[1:])
    namespace, pod = other
    in_namespace = (
        matches(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else namespace == SERVING
    )
    return "ipBlock" not in peer and in_namespace and matches(peer.get("podSelector"), pod)


def is_allowed(
    policies: list[dict[str, Any]], direction: str, pod: Labels, other: tuple[Labels, Labels] | str, port: int
) -> bool:
    """Whether the policies that select the pod let it call the other end (egress), or be called by it (ingress)."""
    rules = [
        rule
        for policy in policies
        if matches(policy["spec"]["podSelector"], pod) and direction.capitalize() in policy["spec"]["policyTypes"]
        for rule in policy["spec"].get(direction) or ()
    ]
    ends = {"ingress": "from", "egress": "to"}[direction]
    return any(
        (not rule[ends] or any(includes(peer, other) for peer in rule[ends]))
        and ("ports" not in rule or port in [item["port"] for item in rule["ports"]])
        for rule in rules
    )


def list_labels(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, Labels, int]]:
    """Each pod's role, its labels, and the port of its metrics."""
    for pod in list_pods(manifests):
        ports = {
            port["name"]: port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }
        yield (
            pod["metadata"]["labels"]["app.kubernetes.io/component"],
            pod["metadata"]["labels"],
            ports.get("metrics", ports.get("http", 0)),
        )


@each_preset
def test_pods_of_a_release_reach_each_other_on_every_port(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    policies = filter_by_kind(manifests, "NetworkPolicy")
    pods = [labels for _, labels, _ in list_labels(manifests)]
    for source in pods:
        for target in pods:
            # HTTP, NIXL's side channel, tensors' and LeaderWorkerSet's rendezvous, Ray.
            for port in (8000, 5600, 29500, 6379):
                assert is_allowed(policies, "egress", source, (SERVING, target), port)
                assert is_allowed(policies, "ingress", target, (SERVING, source), port)


@each_preset
def test_pods_find_names_weights_and_their_role_and_nothing_else(
    render_chart: Render, preset: Preset, name: str
) -> None:
    manifests = render_chart(preset(name))
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for role, labels, _ in list_labels(manifests):
        assert is_allowed(policies, "egress", labels, DNS, 53)
        # Engines read weights from S3; a router asks the cluster's API alone, at a private address.
        assert is_allowed(policies, "egress", labels, "52.218.0.1", 443) == (role != "router")
        assert is_allowed(policies, "egress", labels, "172.20.0.1", 443)
        assert is_allowed(policies, "egress", labels, IDENTITY_AGENT, 80) == (role != "router")
        assert not is_allowed(policies, "egress", labels, "169.254.169.254", 80)
        assert not is_allowed(policies, "egress", labels, STRANGER, 8000)


def test_no_range_lets_pods_out_to_no_address(render_chart: Render, preset: Preset) -> None:
    """A rule without peers lets out to all of them."""
    values = {**preset(NAMES[0]), "networkPolicy": {"https": [], "apiServer": []}}
    manifests = render_chart(values)
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for _, labels, _ in list_labels(manifests):
        assert is_allowed(policies, "egress", labels, DNS, 53)
        assert not is_allowed(policies, "egress", labels, "52.218.0.1", 443)


def test_engines_connect_to_what_they_call_and_routers_do_not(render_chart: Render, preset: Preset) -> None:
    values = preset(NAMES[0])
    for role in values["roles"].values():
        if role.get("kind") != "router":
            role["calls"] = {"traces": {"purpose": "Spans of requests", "port": 4318}}
    manifests = render_chart(values)
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for role, labels, _ in list_labels(manifests):
        assert is_allowed(policies, "egress", labels, "10.0.3.4", 4318) == (role != "router")
        assert not is_allowed(policies, "egress", labels, "10.0.3.4", 4317)


def test_a_router_that_asks_for_keys_reads_them_by_its_role_and_meters_of_gateways_what_teams_used(
    render_chart: Render, preset: Preset
) -> None:
    values = preset("qwen3-32b-g6e-12xlarge")
    meter = {"app.kubernetes.io/name": "batch", "app.kubernetes.io/component": "meter"}
    for ports in ({"metrics": 9090, "usage": 9092}, {"metrics": 9090}):
        has_keys = "usage" in ports
        router_values = {"kind": "router", "ports": ports}
        manifests = render_chart({**values, "roles": {**values["roles"], "router": router_values}})
        policies = filter_by_kind(manifests, "NetworkPolicy")
        router = next(labels for role, labels, _ in list_labels(manifests) if role == "router")
        assert is_allowed(policies, "egress", router, "52.218.0.1", 443) == has_keys, "Secrets Manager"
        assert is_allowed(policies, "egress", router, IDENTITY_AGENT, 80) == has_keys
        assert is_allowed(policies, "ingress", router, (SERVING, meter), 9092) == has_keys
        assert not is_allowed(policies, "ingress", router, STRANGER, 9092)
        services = {item["metadata"]["name"]: item["spec"] for item in filter_by_kind(manifests, "Service")}
        assert ("mine-router" in services) == has_keys
        assert not has_keys or services["mine-router"]["clusterIP"] == "None", "an address for each router"
        [test] = filter_by_kind(manifests, "Pod")
        path, body = test["spec"]["containers"][0]["command"][2:4]
        assert (path.endswith("/readiness"), body == "") == (has_keys, has_keys), "`helm test` has no key"


def test_a_load_driver_calls_the_router_reads_metrics_and_sends_its_results(
    render_chart: Render, preset: Preset
) -> None:
    manifests = render_chart(preset(NAMES[0]))
    plan: Any = SimpleNamespace(
        deployment=SimpleNamespace(
            name=manifests[0]["metadata"]["labels"]["app.kubernetes.io/instance"],
            chart="inference",
            environment=SimpleNamespace(namespace="serving", registry="r", image_digests={}),
        )
    )
    template = load_job.build_job(plan, "load", 2, limit_s=60)["spec"]["template"]
    # The Job's controller adds the job's name.
    driver = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": "load"}
    [own, _] = load_job.build_belongings(plan, "load", "uid", ["http://x"])
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for _, labels, metrics in list_labels(manifests):
        for port in filter(None, (8000, metrics)):
            assert is_allowed(policies, "egress", driver, (SERVING, labels), port)
            assert is_allowed(policies, "ingress", labels, (SERVING, driver), port)
        assert not is_allowed(policies, "ingress", driver, (SERVING, STRANGER[1]), 8000)
    assert is_allowed(policies, "egress", driver, DNS, 53)
    assert is_allowed([*policies, own], "egress", driver, "52.218.0.1", 443)
    assert not is_allowed(policies, "egress", driver, "52.218.0.1", 443), "the Job brings its way out to S3"
    assert not is_allowed([*policies, own], "egress", driver, "169.254.169.254", 80)


@each_preset
def test_prometheus_reads_metrics_and_strangers_read_nothing(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for _, labels, metrics in list_labels(manifests):
        if metrics:
            assert is_allowed(policies, "ingress", labels, PROMETHEUS, metrics)
        assert not is_allowed(policies, "ingress", labels, PROMETHEUS, 5600)
        assert not is_allowed(policies, "ingress", labels, STRANGER, 8000)


@each_preset
def test_a_services_address_is_let_out_to_as_its_pods_are(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    peers = [
        peer
        for policy in filter_by_kind(manifests, "NetworkPolicy")
        for rule in policy["spec"].get("egress", ())
        for peer in rule["to"]
        if "podSelector" in peer and "namespaceSelector" not in peer
    ]
    services = [item for item in filter_by_kind(manifests, "Service") if item["spec"].get("clusterIP") != "None"]
    assert services
    for service in services:
        assert any(matches(peer["podSelector"], service["spec"]["selector"]) for peer in peers)


def test_without_the_policy_of_peers_a_router_would_reach_no_engine(render_chart: Render, preset: Preset) -> None:
    manifests = render_chart(preset("qwen3-32b-g6e-12xlarge"))
    labels = next(labels for _, labels, _ in list_labels(manifests))
    others = [item for item in filter_by_kind(manifests, "NetworkPolicy") if item["metadata"]["name"] != "mine"]
    assert not is_allowed(others, "egress", labels, (SERVING, labels), 8000)
