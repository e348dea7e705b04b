"""What a user adds to the pods and before the router: it runs under the release's restrictions, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.charts import objects
from tests.charts.conftest import Render
from tests.charts.objects import list_pods
from tests.charts.test_values import CERTIFICATE, HelmErrorGetter, build_release

MEMORY = {"resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}}
SHIPPER = {
    "name": "logs",
    "image": "example/logs:1",
    **MEMORY,
    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    "securityContext": {"runAsUser": 1000},
}
WARM = {"name": "warm", "image": "example/warm:1", **MEMORY}
ADDITIONS = {
    "fetch": {"adapter": "s3://models/sql/"},
    "initContainers": [WARM],
    "sidecars": [SHIPPER],
    "volumes": [{"name": "shared", "emptyDir": {"sizeLimit": "1Gi"}}],
    "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    "runtimeClassName": "gvisor",
}
INGRESS = {"className": "nginx", "hosts": ["llm.example.com"], "tlsSecret": "llm-tls", "annotations": {"a/b": "c"}}
CONTROLLER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}


@pytest.mark.parametrize("nodes", [1, 2])
def test_additions_are_in_every_pod_of_the_role_and_kubernetes_takes_them(
    render_chart: Render, schema_location: str, nodes: int
) -> None:
    release = build_release(**ADDITIONS, nodes=nodes, **({"workerCommand": ["serve"]} if nodes > 1 else {}))
    release |= {"ingress": INGRESS, "networkPolicy": {"clients": [CONTROLLER]}}
    manifests = render_chart(release)
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    pods = list_pods(manifests)
    assert len(pods) == nodes
    for pod in pods:
        spec = pod["spec"]
        assert spec["runtimeClassName"] == "gvisor"
        assert [container["name"] for container in spec["containers"]] == ["engine"]
        started = [(container["name"], container.get("restartPolicy")) for container in spec["initContainers"]]
        assert started == [("fetch-adapter", None), ("warm", None), ("logs", "Always")], "a sidecar outlives the engine"
        assert {"name": "shared", "emptyDir": {"sizeLimit": "1Gi"}} in spec["volumes"]
        for container in (spec["containers"][0], spec["initContainers"][2]):
            assert {"name": "shared", "mountPath": "/shared"} in container["volumeMounts"]


def test_an_added_container_has_the_releases_restrictions_where_it_names_none(render_chart: Render) -> None:
    # As root, for the devices of the role itself.
    [pod] = list_pods(render_chart(build_release(**ADDITIONS, user=0)))
    _, warm, logs = pod["spec"]["initContainers"]
    restrictions = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 0,
        "runAsNonRoot": True,
        "runAsUser": 2000,
    }
    assert warm["securityContext"] == restrictions
    assert logs["securityContext"] == {**restrictions, "runAsUser": 1000}
    assert pod["spec"]["securityContext"]["runAsUser"] == 0, "negative control"


def test_an_ingress_sends_its_hosts_to_what_clients_call(render_chart: Render) -> None:
    release = build_release({"ingress": INGRESS, "networkPolicy": {"clients": [CONTROLLER]}})
    [ingress] = [item for item in render_chart(release) if item["kind"] == "Ingress"]
    assert ingress["metadata"]["annotations"] == {"a/b": "c"}
    backend = {"service": {"name": "mine", "port": {"number": 8000}}}
    assert ingress["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"secretName": "llm-tls", "hosts": ["llm.example.com"]}],
        "rules": [
            {
                "host": "llm.example.com",
                "http": {"paths": [{"path": "/v1", "pathType": "Prefix", "backend": backend}]},
            }
        ],
    }
    assert not [item for item in render_chart(build_release()) if item["kind"] == "Ingress"]


MORE_RIGHTS = "it would have more rights than the role. Fix: "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image": "example/logs"},
            '.image: "example/logs": not pinned: replicas could differ, and a rollback would have no effect. Fix: write REPOSITORY:VERSION or REPOSITORY@sha256:DIGEST',
        ),
        (
            {"resources": {}},
            ".resources.limits.memory: not set: it could take the memory of the engine. Fix: write requests and a limit of memory",
        ),
        ({"name": "engine"}, ": the chart has a container of this name. Fix: choose another name"),
        ({"securityContext": {"privileged": True}}, f".securityContext.privileged: true: {MORE_RIGHTS}remove it"),
        (
            {"securityContext": {"allowPrivilegeEscalation": True}},
            f".securityContext.allowPrivilegeEscalation: true: {MORE_RIGHTS}remove it",
        ),
        ({"securityContext": {"runAsNonRoot": False}}, f".securityContext.runAsNonRoot: false: {MORE_RIGHTS}remove it"),
        (
            {"securityContext": {"runAsUser": 0}},
            f".securityContext.runAsUser: 0: {MORE_RIGHTS}write the id of another user",
        ),
        (
            {"securityContext": {"capabilities": {"add": ["SYS_ADMIN", "NET_ADMIN"]}}},
            f".securityContext.capabilities.add: SYS_ADMIN, NET_ADMIN: {MORE_RIGHTS}remove it",
        ),
        (
            {"ports": [{"containerPort": 80, "hostPort": 80}]},
            ".ports: hostPort 80: it listens on the node, past network policies. Fix: remove hostPort",
        ),
    ],
)
@pytest.mark.parametrize("key", ["sidecars", "initContainers"])
def test_a_container_with_more_rights_than_the_role_is_refused(
    get_helm_error: HelmErrorGetter, key: str, change: dict[str, Any], message: str
) -> None:
    container = {**copy.deepcopy(SHIPPER), **change}
    error = get_helm_error(build_release(**{key: [container]}))
    assert f"roles.worker.{key}.{container['name']}{message}\n" in error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            build_release(volumes=[{"name": "etc", "hostPath": {"path": "/etc"}}]),
            "roles.worker.volumes.etc.hostPath: a folder of the node. Fix: use roles.worker.mounts, whose folder the role's container alone sees",
        ),
        (
            build_release(volumes=[{"name": "scratch", "emptyDir": {}}]),
            "roles.worker.volumes.scratch: the chart has a volume of this name. Fix: choose another name",
        ),
        (
            build_release(volumes=[{"name": "etc", "emptyDir": {}}, {"name": "etc", "emptyDir": {}}]),
            "roles.worker.volumes.etc: another one of the pod has this name. Fix: choose another name",
        ),
        (
            build_release(initContainers=[SHIPPER], sidecars=[SHIPPER]),
            f"roles.worker.sidecars.{SHIPPER['name']}: another one of the pod has this name. Fix: choose another name",
        ),
        (
            build_release(volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}]),
            'roles.worker.volumeMounts: "/tmp": the container has another volume there. Fix: choose another path',
        ),
        (
            build_release(mounts={"x": {"path": "/x", "claim": "disk", "subPath": "a/../.."}}),
            'roles.worker.mounts.x.subPath: "a/../..": Kubernetes takes no path with "..". Fix: write where it leads to',
        ),
        (
            build_release({"ingress": {"className": "nginx"}}),
            'ingress.className: "nginx": the network policy lets in the pods of the namespace only. Fix: write the controller\'s pods to networkPolicy.clients',
        ),
        (
            build_release({"loadBalancer": {"certificate": CERTIFICATE}}),
            "loadBalancer.certificate: the network policy lets in the pods of the namespace only, and no load balancer would find a router healthy. Fix: write the subnets' range to networkPolicy.clients, as {ipBlock: {cidr: RANGE}}",
        ),
        (
            build_release(
                {
                    "ingress": {"className": "nginx"},
                    "networkPolicy": {"clients": [CONTROLLER]},
                    "loadBalancer": {"certificate": CERTIFICATE},
                }
            ),
            "ingress.className: loadBalancer.certificate makes an Ingress of its own. Fix: keep one of the two",
        ),
        (
            {
                "ingress": {"className": "nginx"},
                "networkPolicy": {"clients": [CONTROLLER]},
                "route": {"gateway": {"name": "g"}, "backends": [{"release": "v1", "port": 8000, "weight": 1}]},
            },
            "ingress.className: the release has no roles to send requests to. Fix: set route, or roles",
        ),
        (
            {
                "loadBalancer": {"certificate": CERTIFICATE},
                "route": {"gateway": {"name": "g"}, "backends": [{"release": "v1", "port": 8000, "weight": 1}]},
            },
            "loadBalancer.certificate: the release has no roles to send requests to. Fix: set route, or roles",
        ),
    ],
)
def test_volumes_and_ingresses_that_cannot_work_are_refused(
    get_helm_error: Callable[..., str], values: dict[str, Any], message: str
) -> None:
    assert message in get_helm_error(values)
