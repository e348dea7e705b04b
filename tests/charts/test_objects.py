"""The chart's objects: their references, pod security, scheduling and scaling."""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.constructs import task
from llm_serving.catalog import images
from tests.charts import objects
from tests.charts.conftest import CHART, PRESETS, Render
from tests.charts.objects import list_pods

NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
Preset = Callable[[str], dict[str, Any]]
Object = Mapping[str, Any]

each_preset = pytest.mark.parametrize("name", NAMES)


def filter_by_kind(manifests: list[dict[str, Any]], kind: str, name: str | None = None) -> list[dict[str, Any]]:
    """Objects of a kind, and maybe of a name."""
    return [
        manifest for manifest in manifests if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
    ]


def build_engine(**overrides: Any) -> dict[str, Any]:
    """A small engine role."""
    return {"kind": "engine", "command": ["serve"], **overrides}


def build_values(*roles: Mapping[str, Any], **overrides: Any) -> dict[str, Any]:
    """A release of one role called `worker` and a router, or of the roles given."""
    role_values = {f"worker{number or ''}": role for number, role in enumerate(roles or [build_engine()])}
    return {
        "model": {"served": "m"},
        "roles": {**role_values, "router": {"kind": "router", "command": ["route"]}},
        **overrides,
    }


FULL_VALUES = build_values(
    build_engine(
        nodes=2,
        workerCommand=["serve", "--headless"],
        resources={"accelerator": {"count": 8}, "efa": 16, "hugepages": "5120Mi"},
        placement={
            "instanceTypes": ["p5en.48xlarge"],
            "zones": ["us-west-2b"],
            "nodeSelector": {"fleet/pool": "h200"},
            "tolerations": [{"key": "team", "operator": "Equal", "value": "ads", "effect": "NoSchedule"}],
            "networkLayer": "topology.k8s.aws/network-node-layer-3",
        },
        autoscaling={
            "min": 0,
            "max": 3,
            "metric": "kv-usage",
            "threshold": 0.8,
            "cooldownSeconds": 300,
            "pollingSeconds": 15,
        },
        secretEnv={"HF_TOKEN": {"secret": "hub", "key": "token"}},
        mounts={
            "adapters": {"path": "/adapters", "claim": "adapters", "readOnly": True},
            "settings": {"path": "/settings", "configMap": "settings"},
            "keys": {"path": "/keys", "secret": "keys"},
        },
        ports={"kv-events": 5557},
        disruption={"minAvailable": "50%"},
        rollout={"maxSurge": "25%", "maxUnavailable": 0},
        priorityClass="serving",
        labels={"kueue.x-k8s.io/queue-name": "gpus"},
        annotations={"note": "one"},
        fetch={"adapter-sql": "s3://my-adapters/lora/sql"},
        user=0,
    ),
    imagePullSecrets=["registry"],
    labels={"team": "ads"},
    annotations={"owner": "ads"},
    monitoring={"podMonitors": True, "rules": True, "labels": {"release": "prometheus"}},
    networkPolicy={"clients": [{"namespaceSelector": {"matchLabels": {"team": "ads"}}}]},
    route={"gateway": {"name": "gateway", "namespace": "edge", "section": "https"}, "hostnames": ["llm.example.org"]},
)
FULL_VALUES["roles"]["router"]["probes"] = {"readiness": {"path": "/liveness", "body": None}}


def test_kubernetes_accepts_the_objects_of_all_values(render_chart: Render, schema_location: str) -> None:
    manifests = render_chart(FULL_VALUES)
    assert {manifest["kind"] for manifest in manifests} >= {
        *("LeaderWorkerSet", "Deployment", "ScaledObject", "PodMonitor", "PrometheusRule", "HTTPRoute"),
        *(
            "NetworkPolicy",
            "PodDisruptionBudget",
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "Service",
            "ConfigMap",
            "Pod",
        ),
    }
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "kinds"),
    [
        ("_pod.tpl", "terminationGracePeriodSeconds", "terminationGracePeriod", {"Deployment", "LeaderWorkerSet"}),
        ("_pod.tpl", "matchLabelKeys:", "matchLabelKey:", {"LeaderWorkerSet"}),
        ("plain/groups.yaml", "restartPolicy:", "restartPolicies:", {"LeaderWorkerSet"}),
        ("scaling.yaml", "minReplicaCount", "minReplicas", {"ScaledObject"}),
        ("route.yaml", "backendRefs", "backends", {"HTTPRoute"}),
        ("monitors.yaml", "podMetricsEndpoints", "endpoints", {"PodMonitor"}),
        ("network.yaml", "podSelector: {}", "podSelectors: {}", {"NetworkPolicy"}),
        ("disruption.yaml", "{{ $key }}:", "minAvailable: [1]\n  maxUnavailable:", {"PodDisruptionBudget"}),
    ],
)
def test_a_typo_in_a_template_is_detected(
    render_chart: Render, schema_location: str, tmp_path: Path, file: str, right: str, wrong: str, kinds: set[str]
) -> None:
    chart = tmp_path / "inference"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / file
    text = template.read_text()
    assert right in text
    template.write_text(text.replace(right, wrong))
    open_to_all = {**FULL_VALUES, "networkPolicy": {}}
    errors = objects.validate(yaml.safe_dump_all(render_chart(open_to_all, chart)), schema_location)
    assert {line.split()[0] for line in errors} == kinds


# How the objects fit each other.


def has_pods(selector: Mapping[str, str], manifests: list[dict[str, Any]]) -> bool:
    return any(selector.items() <= pod["metadata"]["labels"].items() for pod in list_pods(manifests))


@each_preset
def test_every_selector_finds_pods_and_every_name_an_object(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    for manifest in manifests:
        for selector in find_selectors(manifest):
            assert has_pods(selector, manifests), manifest["metadata"]["name"]
    for pod in list_pods(manifests):
        assert filter_by_kind(manifests, "ServiceAccount", pod["spec"]["serviceAccountName"])
        for volume in pod["spec"]["volumes"]:
            assert "configMap" not in volume or filter_by_kind(manifests, "ConfigMap", volume["configMap"]["name"])
    for scaled in filter_by_kind(manifests, "ScaledObject"):
        target = scaled["spec"]["scaleTargetRef"]
        assert filter_by_kind(manifests, target["kind"], target["name"])


def find_selectors(manifest: Object) -> Iterator[Mapping[str, str]]:
    """By which pods an object finds pods."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        yield spec["selector"]
    if manifest["kind"] in ("PodDisruptionBudget", "PodMonitor", "Deployment"):
        yield spec["selector"]["matchLabels"]
    if manifest["kind"] == "NetworkPolicy":
        yield spec["podSelector"]["matchLabels"]


@each_preset
def test_no_two_objects_of_a_kind_share_a_name_and_all_are_in_the_releases_namespace(
    render_chart: Render, preset: Preset, name: str
) -> None:
    manifests = render_chart(preset(name))
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(names) == len(set(names))
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {"serving"}


CERTIFICATE = "arn:aws:acm:us-west-2:123456789012:certificate/12345678-1234-1234-1234-123456789012"
WEB_ACL = "arn:aws:wafv2:us-west-2:123456789012:regional/webacl/api/12345678-1234-1234-1234-123456789012"


SUBNETS = {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/16"}}]}}


def test_a_chart_packaged_with_build_metadata_has_labels_that_kubernetes_takes(
    render_chart: Render, tmp_path: Path
) -> None:
    chart = shutil.copytree(CHART, tmp_path / "inference")
    (chart / "Chart.yaml").write_text(
        (CHART / "Chart.yaml").read_text().replace("version: 0.1.0", "version: 0.1.0+g12")
    )
    labels = {item["metadata"]["labels"]["helm.sh/chart"] for item in render_chart(build_values(), chart)}
    assert labels == {"inference-0.1.0_g12"}


def test_a_load_balancer_has_tls_patience_and_a_drain(render_chart: Render) -> None:
    values = {**build_values(), **SUBNETS}
    assert filter_by_kind(render_chart(values), "Ingress") == []
    [ingress] = filter_by_kind(render_chart({**values, "loadBalancer": {"certificate": CERTIFICATE}}), "Ingress")
    annotations = {
        name.removeprefix("alb.ingress.kubernetes.io/"): value
        for name, value in ingress["metadata"]["annotations"].items()
    }
    assert annotations == {
        "scheme": "internal",
        "target-type": "ip",
        "listen-ports": '[{"HTTPS": 443}]',
        "certificate-arn": CERTIFICATE,
        "ssl-policy": "ELBSecurityPolicy-TLS13-1-2-2021-06",
        "load-balancer-attributes": (
            "idle_timeout.timeout_seconds=4000,routing.http.drop_invalid_header_fields.enabled=true"
        ),
        "target-group-attributes": (
            "deregistration_delay.timeout_seconds=120,load_balancing.algorithm.type=least_outstanding_requests"
        ),
        "healthcheck-path": "/readiness",
        "success-codes": "200",
    }
    [rule] = ingress["spec"]["rules"]
    assert ingress["spec"]["ingressClassName"] == "alb"
    assert rule["http"]["paths"][0]["backend"] == {"service": {"name": "mine", "port": {"number": 8000}}}


def test_a_load_balancer_lets_in_its_clients_and_writes_their_requests_to_the_bucket(render_chart: Render) -> None:
    row = {"certificate": CERTIFICATE, "accessLogs": "s3://acme-logs/balancers/chat/"}
    row |= {"clients": ["10.0.0.0/16", "10.8.0.0/16"]}
    [ingress] = filter_by_kind(render_chart({**build_values(), **SUBNETS, "loadBalancer": row}), "Ingress")
    # The controller's security group lets in 0.0.0.0/0 without it: v3.5.0, pkg/ingress/model_builder.go.
    assert ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/inbound-cidrs"] == "10.0.0.0/16,10.8.0.0/16"
    attributes = ingress["metadata"]["annotations"]["alb.ingress.kubernetes.io/load-balancer-attributes"]
    assert attributes.split(",")[2:] == [
        "access_logs.s3.enabled=true",
        "access_logs.s3.bucket=acme-logs",
        "access_logs.s3.prefix=balancers/chat",
    ]


def test_a_public_load_balancer_calls_the_gateway_behind_a_web_acl(render_chart: Render) -> None:
    row = {
        "certificate": CERTIFICATE,
        "public": True,
        "webAcl": WEB_ACL,
        "gateway": {"service": "gateway", "port": 4000},
    }
    [ingress] = filter_by_kind(render_chart({**build_values(), "loadBalancer": row}), "Ingress")
    annotations = ingress["metadata"]["annotations"]
    assert annotations["alb.ingress.kubernetes.io/scheme"] == "internet-facing"
    assert annotations["alb.ingress.kubernetes.io/wafv2-acl-arn"] == WEB_ACL
    [rule] = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"] == {"service": {"name": "gateway", "port": {"number": 4000}}}


def test_clients_reach_the_router_or_the_only_engines_leaders_by_the_releases_name(render_chart: Render) -> None:
    service = filter_by_kind(render_chart(build_values()), "Service", "mine")[0]["spec"]
    assert service["selector"]["app.kubernetes.io/component"] == "router"
    engine_only = build_values(build_engine(nodes=2, workerCommand=["serve"], port=9000))
    del engine_only["roles"]["router"]
    service = filter_by_kind(render_chart(engine_only), "Service", "mine")[0]["spec"]
    assert service["selector"]["app.kubernetes.io/component"] == "worker"
    assert service["selector"]["inference/listens"] == "true"
    assert service["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]


def test_the_service_account_has_the_release_s_name_by_default(render_chart: Render) -> None:
    assert filter_by_kind(render_chart(build_values()), "ServiceAccount", "mine")
    manifests = render_chart(build_values(serviceAccount={"name": "weights", "create": False}))
    assert not filter_by_kind(manifests, "ServiceAccount", "weights")
    assert {pod["spec"]["serviceAccountName"] for pod in list_pods(manifests)} == {"weights", "mine-router"}


# What a role says wins over the defaults, also where it says nothing, none or no.


def test_zero_and_false_override_defaults(render_chart: Render) -> None:
    overridden = build_values(build_engine(replicas=0, drain={"preStopSeconds": 0}, user=0))
    overridden["defaults"] = {"engine": {"privileged": True}}
    overridden["roles"]["worker"]["privileged"] = False
    deployment = filter_by_kind(render_chart(overridden), "Deployment", "mine-worker")[0]["spec"]
    container = deployment["template"]["spec"]["containers"][0]
    assert deployment["replicas"] == 0
    assert "lifecycle" not in container
    assert "privileged" not in container["securityContext"]
    assert deployment["template"]["spec"]["securityContext"]["runAsUser"] == 0


def test_defaults_apply_to_every_role_of_the_kind(render_chart: Render) -> None:
    overridden = build_values(
        build_engine(), build_engine(), defaults={"engine": {"placement": {"zones": ["us-west-2b"]}}}
    )
    zones = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: "us-west-2b" in str(pod["spec"].get("affinity"))
        for pod in list_pods(render_chart(overridden))
    }
    assert zones == {"worker": True, "worker1": True, "router": False}


# What pods may do.


@each_preset
def test_a_pod_has_least_privilege(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    for pod in [*list_pods(manifests), *filter_by_kind(manifests, "Pod")]:
        spec = pod["spec"]
        container = spec["containers"][0]
        limits = set(container["resources"].get("limits", {}))
        pins = bool(limits & {"vpc.amazonaws.com/efa", "aws.amazon.com/neuron"})
        root = spec["securityContext"]["runAsUser"] == 0
        # Kubernetes hands IPC_LOCK to root alone.
        assert root == pins == (not spec["securityContext"]["runAsNonRoot"])
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if pins else {})},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not any("hostPath" in volume for volume in spec["volumes"])
        router = container["name"] == "router"
        assert spec["automountServiceAccountToken"] is router
        assert spec["enableServiceLinks"] is False


def test_neurons_compiler_starts_where_it_may_write(render_chart: Render, preset: Preset) -> None:
    """neuronx-cc leaves a folder where it is started, and vLLM's plugin starts it where the engine runs.

    Sources: aws-neuron/aws-neuron-sdk, issue 806 (`/home/ubuntu/MiniGPT-4/neuronxcc-u35c1edk`); AWShtokoyo/vllm-neuron
    at eabd4c9, vllm_neuron/compile/backend.py, neuroncc_compile, which names no `cwd`. AWS's image of vLLM 0.24 is started
    in a volume of its own (aws-neuron/deep-learning-containers at 2be9ed1); that of 0.29 could not be read.
    """
    [engine] = [
        pod["spec"]["containers"][0]
        for pod in list_pods(render_chart(preset("llama-3.3-70b-trn2")))
        if pod["spec"]["containers"][0]["name"] == "engine"
    ]
    assert engine["securityContext"]["readOnlyRootFilesystem"]
    assert {"name": "tmp", "mountPath": engine["workingDir"]} in engine["volumeMounts"]
    manifests = render_chart(preset("llama-3.3-70b-p5"))
    assert not any("workingDir" in container for pod in list_pods(manifests) for container in pod["spec"]["containers"])


def test_files_are_fetched_before_the_engine_starts(render_chart: Render) -> None:
    weights = {"weights": "s3://my-models/llama/"}
    [pod] = [
        candidate
        for candidate in list_pods(render_chart(build_values(build_engine(fetch=weights, scratch="160Gi"))))
        if "fetch" in str(candidate)
    ]
    [copier], [container] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert copier["image"] == images.pin(images.COPIER), "ECS copies with the same"
    assert copier["command"][-2:] == ["s3://my-models/llama/", f"{task.FETCH_DIR}/weights"]
    assert {"name": "AWS_MAX_ATTEMPTS", "value": "10"} in copier["env"]
    assert copier["terminationMessagePolicy"] == "FallbackToLogsOnError", "`status` says why it fails"
    assert {"name": "scratch", "mountPath": "/scratch"} in copier["volumeMounts"]
    assert {"name": "scratch", "mountPath": "/scratch"} in container["volumeMounts"]
    assert {"name": "scratch", "emptyDir": {"sizeLimit": "160Gi"}} in pod["spec"]["volumes"]
    assert copier["resources"]["requests"]["ephemeral-storage"] == "160Gi", "the node must have it"
    assert copier["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_node_is_checked_by_the_engines_image_with_its_devices_and_rights(render_chart: Render) -> None:
    check = ["--gpus", "8", "--efa", "32"]
    resources = {"accelerator": {"count": 8}, "efa": 32}
    manifests = render_chart(
        build_values(build_engine(nodeCheck=check, resources=resources, user=0, placement={"oneZone": True}))
    )
    [pod] = [pod for pod in list_pods(manifests) if "initContainers" in pod["spec"]]
    [node_check], [engine] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert node_check["command"][:-1] == ["python3", "/etc/inference/node.py", *check, "--peers"]
    [nodes] = [item for item in filter_by_kind(manifests, "Service") if item["spec"].get("publishNotReadyAddresses")]
    assert node_check["command"][-1] == nodes["metadata"]["name"]
    assert nodes["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    same = ("image", "env", "resources", "securityContext")
    assert [node_check[key] for key in same] == [engine[key] for key in same]
    assert engine["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert node_check["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32", "given on to the engine as it ends"
    assert node_check["terminationMessagePolicy"] == "FallbackToLogsOnError", "the pod's status has the reason"
    (programs,) = [item["data"] for item in filter_by_kind(manifests, "ConfigMap") if "probe.py" in item["data"]]
    assert programs["node.py"].strip() == (CHART / "files" / "node.py").read_text().strip()


def test_privileged_is_a_switch_without_contradicting_fields(render_chart: Render) -> None:
    pod = next(
        candidate
        for candidate in list_pods(render_chart(build_values(build_engine(privileged=True))))
        if "engine" in str(candidate)
    )
    assert pod["spec"]["containers"][0]["securityContext"] == {"readOnlyRootFilesystem": True, "privileged": True}


@each_preset
def test_all_traffic_is_denied_but_what_a_role_needs(render_chart: Render, preset: Preset, name: str) -> None:
    manifests = render_chart(preset(name))
    policies = {item["metadata"]["name"]: item["spec"] for item in filter_by_kind(manifests, "NetworkPolicy")}
    default_policy = policies.pop("mine")
    assert default_policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in default_policy
    all_pods = default_policy["podSelector"]["matchLabels"].items()
    assert all(
        all_pods <= pod["metadata"]["labels"].items()
        for pod in [*list_pods(manifests), *filter_by_kind(manifests, "Pod")]
    )
    for role, spec in policies.items():
        external_cidrs = [
            item["ipBlock"]["cidr"] for rule in spec["egress"] for item in rule["to"] if "ipBlock" in item
        ]
        if role == "mine-router":
            assert not any(ipaddress.ip_network(cidr).is_global for cidr in external_cidrs), "the cluster's API alone"
            assert any(ipaddress.ip_address("172.20.0.1") in ipaddress.ip_network(cidr) for cidr in external_cidrs)
        else:
            assert external_cidrs == ["0.0.0.0/0", "169.254.170.23/32", "fd00:ec2::23/128"]
        assert all(rule["ports"] for rule in spec["egress"])


def test_only_named_clients_call_the_router_and_nobody_the_engines(render_chart: Render) -> None:
    policies = {
        item["metadata"]["name"]: item["spec"] for item in filter_by_kind(render_chart(FULL_VALUES), "NetworkPolicy")
    }
    client = {"namespaceSelector": {"matchLabels": {"team": "ads"}}}
    assert client in [item for rule in policies["mine-router"]["ingress"] for item in rule["from"]]
    assert client not in [item for rule in policies["mine-worker"]["ingress"] for item in rule["from"]]


def test_a_router_can_only_list_pods_of_its_namespace(render_chart: Render) -> None:
    manifests = render_chart(build_values())
    assert filter_by_kind(manifests, "Role")[0]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert not filter_by_kind(manifests, "ClusterRole")
    assert filter_by_kind(manifests, "RoleBinding")[0]["subjects"][0]["name"] == "mine-router"


# Where pods are scheduled.


def test_pods_of_a_replica_with_several_nodes_share_a_zone_and_replicas_need_not(
    render_chart: Render,
) -> None:
    group = filter_by_kind(render_chart(FULL_VALUES), "LeaderWorkerSet")[0]["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    for template_name in ("leaderTemplate", "workerTemplate"):
        affinity = group[template_name]["spec"]["affinity"]["podAffinity"]
        zone = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [term["topologyKey"] for term in zone] == ["topology.kubernetes.io/zone"]
        assert zone[0]["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-key"]
        preferred_term = affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
        assert preferred_term["topologyKey"] == "topology.k8s.aws/network-node-layer-3"
        assert (
            group[template_name]["metadata"]["labels"]["inference/listens"]
            == str(template_name == "leaderTemplate").lower()
        )


def test_a_role_keeps_its_service_where_its_replicas_get_more_nodes(render_chart: Render) -> None:
    """Helm goes neither from a Service that LeaderWorkerSet has created to its own, nor back."""
    one = build_engine(nodes=1)
    for role in (one, {**one, "nodes": 2, "workerCommand": ["serve"]}):
        [service] = filter_by_kind(render_chart(build_values(role)), "Service", "mine-worker")
        assert service["spec"]["clusterIP"] == "None"
        # As pkg/utils/controller/controller_utils.go of LeaderWorkerSet 0.10.0 makes its own.
        assert ("publishNotReadyAddresses" in service["spec"], "ports" in service["spec"]) == (
            role["nodes"] > 1,
            role["nodes"] == 1,
        )


def test_followers_wait_for_their_leaders_requests_and_leaders_for_the_router(render_chart: Render) -> None:
    manifests = render_chart(build_values(build_engine(nodes=2, workerCommand=["serve"], drain={"graceSeconds": 150})))
    template = filter_by_kind(manifests, "LeaderWorkerSet")[0]["spec"]["leaderWorkerTemplate"]
    leader, follower = (
        template[kind]["spec"]["containers"][0]["lifecycle"]["preStop"] for kind in ("leaderTemplate", "workerTemplate")
    )
    assert leader == {"sleep": {"seconds": 10}}
    assert follower["exec"]["command"][:2] == ["sh", "-c"]
    assert follower["exec"]["command"][2] == (
        'exec python3 /etc/inference/group.py drain --leader "$LWS_LEADER_ADDRESS" --requests 8000 --drain 140'
    )
    (programs,) = [item["data"] for item in filter_by_kind(manifests, "ConfigMap") if "probe.py" in item["data"]]
    assert programs["group.py"].strip() == (CHART / "files" / "group.py").read_text().strip()


def test_roles_with_one_zone_share_it(render_chart: Render, preset: Preset) -> None:
    manifests = render_chart(preset("qwen3-235b-a22b-p6-b300-disaggregated"))
    zone = {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "mine", "inference/one-zone": "true"}
    for pod in list_pods(manifests):
        term = pod["spec"].get("affinity", {}).get("podAffinity")
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "router":
            assert term is None
        else:
            assert zone.items() <= pod["metadata"]["labels"].items()
            required = term["requiredDuringSchedulingIgnoredDuringExecution"]
            assert required == [{"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": zone}}]


def test_replicas_of_one_node_spread_over_zones_and_routers_over_nodes_too(render_chart: Render) -> None:
    places = {"engine": ["topology.kubernetes.io/zone"]}
    places["router"] = [*places["engine"], "kubernetes.io/hostname"]
    for pod in list_pods(render_chart(build_values())):
        spread = pod["spec"]["topologySpreadConstraints"]
        labels = pod["metadata"]["labels"]
        assert [constraint["topologyKey"] for constraint in spread] == places.pop(labels["inference/kind"])
        assert all(constraint["labelSelector"]["matchLabels"].items() <= labels.items() for constraint in spread)
    assert not places


RAY_ROLES = {
    "head": {"kind": "router", "ports": {"metrics": 9090, "dashboard": 8265}},
    "many": {"kind": "engine", "replicas": 3, "ports": {"metrics": 9090}},
    "one": {"kind": "engine", "ports": {"metrics": 9090}, "disruption": {"maxUnavailable": "50%"}},
}
RAY_VALUES = {
    "framework": "ray",
    "frameworkConfig": {"version": "2.60.0", "serve": {"applications": []}},
    "model": {"served": "mine"},
    "image": "registry.example/ray:1",
    "roles": RAY_ROLES,
}


def test_the_head_of_ray_and_the_test_run_on_nodes_that_their_image_is_for(render_chart: Render) -> None:
    """Nodes of a fleet's system are of Graviton, and rayproject/ray-llm:VERSION-PYTHON-CUDA is for x86-64."""
    for arch, labels in (("amd64", {}), ("arm64", {"kubernetes.io/arch": "arm64"})):
        head = {**RAY_ROLES["head"], "placement": {"nodeSelector": labels}}
        manifests = render_chart({**RAY_VALUES, "roles": {**RAY_ROLES, "head": head}})
        [service] = filter_by_kind(manifests, "RayService")
        [test] = filter_by_kind(manifests, "Pod")
        group = service["spec"]["rayClusterConfig"]["headGroupSpec"]
        assert group["template"]["spec"]["nodeSelector"] == test["spec"]["nodeSelector"] == {"kubernetes.io/arch": arch}


def test_the_test_runs_where_the_image_of_what_it_asks_is(render_chart: Render, preset: Preset) -> None:
    """An engine's image of many GB is nowhere else."""
    for name, has_types in (("qwen3-embedding-0.6b-g6e", True), ("qwen3-0.6b-g6e", False)):
        manifests = render_chart(preset(name))
        [test] = [pod["spec"] for pod in filter_by_kind(manifests, "Pod")]
        front = "router" if "router" in preset(name)["roles"] else "worker"
        [served] = [
            pod["spec"]
            for pod in list_pods(manifests)
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == front
        ]
        assert test["containers"][0]["image"] == served["containers"][0]["image"]
        keys = ("affinity", "nodeSelector", "tolerations")
        assert [test.get(key) for key in keys] == [served.get(key) for key in keys]
        assert ("affinity" in test) is has_types


def test_exact_types_zones_labels_and_the_accelerators_taint(render_chart: Render) -> None:
    leader = list_pods(render_chart(FULL_VALUES))[1]["spec"]
    terms = leader["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5en.48xlarge"]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-west-2b"]},
            ]
        }
    ]
    assert leader["nodeSelector"] == {"fleet/pool": "h200"}
    assert leader["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "ads", "effect": "NoSchedule"},
    ]
    assert leader["containers"][0]["resources"]["limits"] == {
        "memory": "16Gi",
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
        "hugepages-2Mi": "5120Mi",
    }


def test_pods_that_ask_for_neuron_cores_run_as_those_that_ask_for_devices(render_chart: Render) -> None:
    """Nodes have the taint of devices alone, which cores need too, and pinned memory."""
    pods = [
        list_pods(render_chart(build_values(build_engine(nodes=1, resources={"accelerator": accelerator}))))[-1]["spec"]
        for accelerator in ({"name": f"aws.amazon.com/{name}", "count": 1} for name in ("neuron", "neuroncore"))
    ]
    devices, cores = ([pod["tolerations"], pod["containers"][0]["securityContext"]] for pod in pods)
    assert devices == cores and devices[0][0]["key"] == "aws.amazon.com/neuron"


# How it starts, scales and ends.


@each_preset
def test_ready_means_that_the_model_answered_once_and_that_the_engine_lives(
    render_chart: Render, preset: Preset, name: str
) -> None:
    for pod in list_pods(render_chart(preset(name))):
        container = pod["spec"]["containers"][0]
        if container["name"] == "router":
            # It knows an engine that has answered.
            assert container["readinessProbe"]["httpGet"]["path"] == "/readiness"
        elif pod["metadata"]["labels"]["inference/listens"] == "true":
            assert container["startupProbe"]["exec"]["command"][:2] == ["python3", "/etc/inference/probe.py"]
            for probe in ("readiness", "liveness"):
                # A completion would wait behind users' requests, and all replicas would leave at once.
                assert container[f"{probe}Probe"]["httpGet"]["path"] == "/health"
        else:
            assert not [key for key in container if key.endswith("Probe")]


def test_a_probe_requests_the_served_model_by_default(render_chart: Render) -> None:
    readiness = {"path": "/v1/completions", "body": {"prompt": "ready?", "max_tokens": 1}}
    role = build_engine(probes={"startup": {"body": {"model": "other", "prompt": "x"}}, "readiness": readiness})
    container = list_pods(render_chart(build_values(role)))[1]["spec"]["containers"][0]
    assert container["name"] == "engine"
    bodies = [container[f"{probe}Probe"]["exec"]["command"][3] for probe in ("startup", "readiness")]
    assert [yaml.safe_load(body) for body in bodies] == [
        {"model": "other", "prompt": "x"},
        {"model": "m", "prompt": "ready?", "max_tokens": 1},
    ]


def test_a_pod_knows_its_address_before_its_environment_uses_it_and_each_variable_once(render_chart: Render) -> None:
    role = build_engine(env={"A": "$(POD_IP)", "NODE_NAME": "mine"})
    container = list_pods(render_chart(build_values(role)))[1]["spec"]["containers"][0]
    names = [variable["name"] for variable in container["env"]]
    assert names.index("POD_IP") < names.index("A")
    assert sorted(names) == sorted(set(names))


def test_the_autoscaler_sets_the_count_alone_and_sums_over_replicas(render_chart: Render) -> None:
    manifests = render_chart(FULL_VALUES)
    assert "replicas" not in filter_by_kind(manifests, "LeaderWorkerSet")[0]["spec"]
    spec = filter_by_kind(manifests, "ScaledObject")[0]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["cooldownPeriod"]) == (0, 3, 300)
    assert spec["initialCooldownPeriod"] == 900 + 900, "a node's start and the startup probe's limit"
    usage, arrivals = spec["triggers"]
    role = 'namespace="serving",app_kubernetes_io_instance="mine",app_kubernetes_io_component="worker"'
    assert usage["metricType"] == "AverageValue"
    assert usage["metadata"]["query"] == f"sum(avg by (pod) (vllm:kv_cache_usage_perc{{{role}}})) or vector(0)"
    assert usage["metadata"]["threshold"] == "0.8"
    counters = (
        '{__name__=~"vllm_router_(pd_)?requests_total|'
        'vllm_router_(request_errors|retries_exhausted|pd_errors|pd_prefill_errors|pd_decode_errors)_total",'
        + role.replace('"worker"', '"router"')
        + "}"
    )
    now = f"sum by (pod) ({counters})"
    assert arrivals["metadata"]["query"] == (
        f"sum(({now} - sum by (pod) ({counters} offset 300s) >= 0) or {now}) or vector(0)"
    )
    # By default all that an empty queue does not ask for go at once, and the queue is back before they are.
    scale_down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    tenth = {"type": "Percent", "value": 10, "periodSeconds": 300}
    assert scale_down == {"stabilizationWindowSeconds": 300, "policies": [tenth]}


def test_queries_of_autoscaler_and_alerts_have_the_monitors_labels(
    render_chart: Render,
) -> None:
    manifests = render_chart(FULL_VALUES)
    labels = ["app.kubernetes.io/instance", "app.kubernetes.io/component"]
    assert all(manifest["spec"]["podTargetLabels"] == labels for manifest in filter_by_kind(manifests, "PodMonitor"))
    queries = [
        manifest["metadata"]["query"] for manifest in filter_by_kind(manifests, "ScaledObject")[0]["spec"]["triggers"]
    ]
    queries += [
        rule["expr"]
        for group in filter_by_kind(manifests, "PrometheusRule")[0]["spec"]["groups"]
        for rule in group["rules"]
        if "kube_"
        not in rule["expr"]  # kube-state-metrics names pods and autoscalers, which no monitor of a role scrapes
    ]
    assert len(queries) >= 5
    assert all(label.replace(".", "_").replace("/", "_") + '="' in query for label in labels for query in queries)


def test_alerts_of_releases_of_one_name_in_two_namespaces_differ(render_chart: Render) -> None:
    """A sum has no label of what it adds: to Alertmanager both would be one alert, which the other resolves."""
    groups = filter_by_kind(render_chart(FULL_VALUES), "PrometheusRule")[0]["spec"]["groups"]
    assert {rule["labels"]["namespace"] for group in groups for rule in group["rules"]} == {"serving"}


def test_an_engine_with_requests_that_computes_nothing_is_an_alert(render_chart: Render) -> None:
    groups = filter_by_kind(render_chart(FULL_VALUES), "PrometheusRule")[0]["spec"]["groups"]
    [query] = [rule["expr"] for group in groups for rule in group["rules"] if rule["alert"] == "InferenceEngineHangs"]
    labels = 'namespace="serving",app_kubernetes_io_instance="mine",app_kubernetes_io_component="worker"'
    assert query == (
        f"(sum by (pod) (vllm:num_requests_running{{{labels}}}) > 0) "
        f"unless (sum by (pod) (increase(vllm:iteration_tokens_total_count{{{labels}}}[10m])) > 0)"
    ), "requests that wait do not count: a long queue is no hang"


def test_another_engines_scaling_and_alerts_use_its_own_metrics(render_chart: Render) -> None:
    names = {"queue": "", "running": "", "preemptions": "", "failed-transfers": "", "kv-usage": "other:cache"}
    manifests = render_chart({**FULL_VALUES, "metrics": {"engine": names, "router": {"requests": "r", "errors": "e"}}})
    usage, arrivals = filter_by_kind(manifests, "ScaledObject")[0]["spec"]["triggers"]
    assert usage["metadata"]["query"].startswith("sum(avg by (pod) (other:cache{")
    assert '{__name__=~"r|e",' in arrivals["metadata"]["query"]
    groups = filter_by_kind(manifests, "PrometheusRule")[0]["spec"]["groups"]
    assert [(group["name"], [rule["alert"] for rule in group["rules"]]) for group in groups] == [
        ("mine-router", ["InferenceRoleGone", "InferenceReplicasRestart", "InferenceStartSlow"]),
        (
            "mine-worker",
            ["InferenceReplicasRestart", "InferenceStartSlow", "InferenceAutoscalerAtMaximum", "InferenceCacheFull"],
        ),
    ], "no alert without its metric"


def test_the_monitor_scrapes_the_routers_own_port_and_the_engines_only_one(render_chart: Render) -> None:
    monitors = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in filter_by_kind(render_chart(FULL_VALUES), "PodMonitor")
    }
    ports = {name: spec["podMetricsEndpoints"][0]["port"] for name, spec in monitors.items()}
    assert ports == {"mine-router": "metrics", "mine-worker": "http"}


# Two versions side by side.


def test_a_release_without_roles_is_a_route_that_shares_requests_by_weight(
    render_chart: Render, schema_location: str
) -> None:
    backends = [
        {"release": "mine-v1", "port": 8000, "weight": 90},
        {"release": "mine-v2", "port": 8000, "weight": 10},
    ]
    manifests = render_chart({"route": {"gateway": {"name": "gateway"}, "backends": backends}})
    assert [item["kind"] for item in manifests] == ["HTTPRoute"]
    rule = filter_by_kind(manifests, "HTTPRoute")[0]["spec"]["rules"][0]
    assert [(item["name"], item["weight"]) for item in rule["backendRefs"]] == [("mine-v1", 90), ("mine-v2", 10)]
    assert rule["timeouts"] == {"request": "1800s"}, "the routers' own default"
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []


def test_a_separate_route_leads_to_the_release(render_chart: Render) -> None:
    route = filter_by_kind(render_chart(FULL_VALUES), "HTTPRoute")[0]["spec"]
    assert route["parentRefs"] == [{"name": "gateway", "namespace": "edge", "sectionName": "https"}]
    assert route["rules"][0]["backendRefs"] == [{"name": "mine", "port": 8000}]


# The notes after an installation. Helm renders them only with a cluster, so a changed copy puts them into an object.


def render_notes(rendered: Render, values: Mapping[str, Any], folder: Path) -> str:
    chart = folder / "notes"
    shutil.copytree(CHART, chart)
    text = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text('{{- define "notes" -}}' + text + "{{- end -}}")
    template = 'apiVersion: v1\nkind: Notes\nmetadata: {name: notes}\ntext: {{ include "notes" . | quote }}\n'
    (chart / "templates" / "notes.yaml").write_text(template)
    return str(filter_by_kind(rendered(values, chart), "Notes")[0]["text"])


def test_the_notes_list_what_runs_and_how_to_test_it(render_chart: Render, preset: Preset, tmp_path: Path) -> None:
    text = render_notes(render_chart, preset("qwen3-235b-a22b-p6-b300-disaggregated"), tmp_path)
    assert text.split("\n\n")[:2] == [
        "\nqwen3-235b-a22b is deployed as mine in namespace serving:",
        "  decode       1 x 4 nvidia.com/gpu and 8 EFA\n"
        "  prefill      12 x 1 nvidia.com/gpu and 2 EFA\n"
        "  router       2 x 1 CPU",
    ]
    assert "port-forward service/mine 8000" in text
    assert text.endswith("helm -n serving rollback mine")


def test_the_notes_of_a_route_list_its_backends(render_chart: Render, tmp_path: Path) -> None:
    backends = [{"release": "mine-v1", "port": 8000, "weight": 90}]
    text = render_notes(render_chart, {"route": {"gateway": {"name": "edge"}, "backends": backends}}, tmp_path)
    assert "Requests to /v1 are routed to:\n\n  mine-v1 with weight 90\n" in text
