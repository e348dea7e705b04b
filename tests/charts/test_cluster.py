"""A real API server accepts every object of the chart, and the real scheduler schedules its pods.

The server has only the schemas of LeaderWorkerSets, ScaledObjects, PodMonitors, rules and routes; their controllers do
not run. The pods of a LeaderWorkerSet are built from its templates.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths, processes
from llm_serving.catalog import instances
from llm_serving.fleet.loading import load_fleet
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.operations.kube_api import POD, Kind
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import render
from llm_serving.targets.matrix import Cell
from tests.charts import objects, test_patterns
from tests.charts.conftest import Render
from tests.charts.test_dynamo import render_graph
from tests.charts.test_objects import RAY_VALUES
from tests.charts.test_presets import NAMES, each_preset
from tests.control_plane import machines
from tests.control_plane.control_plane import BUDGET, ControlPlane
from tests.kinds.serving import resolving
from tests.kinds.serving.frameworks import test_dynamo

pytestmark = pytest.mark.timeout(300, func_only=True)  # the fixture may wait for a build

Preset = Callable[[str], dict[str, Any]]
Object = Mapping[str, Any]

EXTRA_VALUES = {
    "monitoring": {"podMonitors": True, "rules": True},
    "route": {"gateway": {"name": "edge", "namespace": "gateway", "section": ""}},
    "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "ads"}}}]},
}
"""What presets leave to the user."""

ACCOUNT = "pods"
"""Stands for the service accounts that pods name, which must be there."""

ACCEPTED: set[str] = set()
"""Of a control plane, as JSON: four of five objects of a preset or a pattern are those of another one too."""

LEVELS = ("restricted", "baseline", "privileged")
"""Of Pod Security, the strictest first."""


@pytest.fixture(scope="module")
def secured_cluster(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with a namespace under each level of Pod Security, called as the level."""
    namespaces = [
        manifest
        for level in LEVELS
        for manifest in build_namespace(level, **{"pod-security.kubernetes.io/enforce": level})
    ]
    control_plane.api.apply(namespaces)
    return control_plane


def build_namespace(name: str, **labels: str) -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": name}},
    ]


def validate(cluster: ControlPlane, manifests: Sequence[Object], target_namespace: str) -> list[str]:
    """Return the API server's errors for objects in a namespace, in a dry run; it is asked once for what it accepts."""
    assert manifests
    errors: list[str] = []
    for manifest in manifests:
        item = {**manifest, "metadata": {**manifest["metadata"], "namespace": target_namespace}}
        text = json.dumps([str(cluster.folder), item], sort_keys=True)
        if text not in ACCEPTED:
            errors += (item_errors := cluster.find_errors([item]))
            ACCEPTED.update([] if item_errors else [text])
    return errors


def build_pods(manifests: Sequence[Object], case: str = "case") -> list[dict[str, Any]]:
    """All pods of a release, as controllers would make them, in the case's namespace and for its machines alone."""
    pod_manifests: list[dict[str, Any]] = []
    for manifest in manifests:
        for template in objects.list_pods([manifest]):
            spec = {**template["spec"], "serviceAccountName": ACCOUNT}
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), "case": case}
            # A user's claim is not there, and what it would have a pod wait for is not the scheduler's matter.
            spec["volumes"] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" not in volume]
            spec["containers"] = [{**spec["containers"][0], "volumeMounts": []}]
            for _ in range(manifest["spec"].get("replicas", 1)):
                metadata = {**template["metadata"], "name": f"pod-{len(pod_manifests)}", "namespace": case}
                pod_manifests.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pod_manifests


@each_preset
def test_the_api_server_accepts_each_object_of_a_preset(
    secured_cluster: ControlPlane, render_chart: Render, preset: Preset, name: str
) -> None:
    assert validate(secured_cluster, render_chart({**preset(name), **EXTRA_VALUES}), "privileged") == []


@test_patterns.each_cell
def test_the_api_server_accepts_each_object_of_a_pattern(
    secured_cluster: ControlPlane, render_chart: Render, cell: Cell
) -> None:
    assert validate(secured_cluster, test_patterns.render_objects(render_chart, cell), "privileged") == []


@pytest.mark.parametrize("text", [test_dynamo.PLANNED, test_dynamo.PLANNED_APART], ids=["worker", "pair"])
def test_the_api_server_accepts_each_object_of_a_graph_with_planners(
    secured_cluster: ControlPlane, render_chart: Render, tmp_path: Path, text: str
) -> None:
    manifests = render_graph(tmp_path, render_chart, text)
    assert validate(secured_cluster, [*manifests.values()], "restricted") == []
    graph = manifests["DynamoGraphDeployment", "mine"]
    *others, planner = graph["spec"]["components"]
    wrong = {**graph, "spec": {**graph["spec"], "components": [*others, {**planner, "type": "scaler"}]}}
    assert validate(secured_cluster, [wrong], "restricted")


def test_models_that_share_accelerators_are_one_workload_that_scales_by_their_queue(
    secured_cluster: ControlPlane, render_chart: Render, tmp_path: Path
) -> None:
    shared = (paths.PATTERNS / "multi-model/presets/shared.yaml").read_text()
    text = shared.replace("pool: wide", "pool: wide\n      replicas: 1..2\n      scale: {queue: 16}")
    fleet = (paths.PATTERNS.parent / "fleet.yaml").read_text().replace("size: 0..1", "size: 0..2")
    fleet += "add_ons: {operators: on, observability: on}\n"
    deployment = resolving.resolve_files(tmp_path, f"name: mine\n{text}", fleet, "eks")
    values = render.render_text(deployment, render.find_template(paths.PATTERNS / "multi-model", "eks"))
    manifests = render_chart(yaml.safe_load(values))
    assert validate(secured_cluster, manifests, "restricted") == []
    [pod, _] = build_pods(manifests)
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "chat"
    assert validate(secured_cluster, [pod], "restricted") == []
    [container] = pod["spec"]["containers"]
    assert container["command"][:2] == ["python3", "/opt/vllm/model_switch.py"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] in (4, "4")
    environment = {row["name"]: row.get("value") for row in container["env"]}
    # The engines' end and the last answers come after preStop and the drain: END_S and ANSWER_S of the program.
    assert pod["spec"]["terminationGracePeriodSeconds"] >= int(environment["DRAIN_S"]) + 10 + 7
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] > 2 * 600, "both models load, one after the other"
    [scaler] = [manifest for manifest in manifests if manifest["kind"] == "ScaledObject"]
    assert "vllm:num_requests_waiting" in scaler["spec"]["triggers"][0]["metadata"]["query"]


def test_a_node_with_pods_of_ray_can_be_drained(secured_cluster: ControlPlane, render_chart: Render) -> None:
    """The owner of such pods, a RayCluster, has no scale, as the RayService has none here.

    Source: ray-project/kuberay at feeaf72, ray-operator/apis/ray/v1/raycluster_types.go, and its issue 2662.
    """
    namespace, cluster = "privileged", secured_cluster
    rendered = [{**item, "metadata": {**item["metadata"], "namespace": namespace}} for item in render_chart(RAY_VALUES)]
    [service] = (item for item in rendered if item["kind"] == "RayService")
    budgets = [item for item in rendered if item["kind"] == "PodDisruptionBudget"]
    [any_budget, *_] = budgets
    wrong = {**any_budget, "metadata": {"name": "wrong", "namespace": namespace}}
    wrong["spec"] = {"maxUnavailable": 1, "selector": any_budget["spec"]["selector"]}
    cluster.api.apply([machines.build_plain("ray"), service])
    owner = cluster.read(Kind("ray.io/v1", "RayService"), "mine", namespace)
    reference = {key: owner["metadata"][key] for key in ("name", "uid")}
    reference |= {"apiVersion": "ray.io/v1", "kind": "RayService", "controller": True}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{budget['metadata']['name']}-{number}",
                "namespace": namespace,
                "labels": budget["spec"]["selector"]["matchLabels"],
                "ownerReferences": [reference],
            },
            "spec": {"nodeName": "ray", "containers": [{"name": "ray", "image": "ray:0"}]},
        }
        for budget in budgets
        for number in range(3 if "many" in budget["metadata"]["name"] else 1)
    ]
    cluster.api.apply([*pods, *budgets, wrong])

    def count_evictable() -> list[int]:
        found = [cluster.read(BUDGET, item["metadata"]["name"], namespace) for item in budgets]
        return [item.get("status", {}).get("disruptionsAllowed", 0) for item in found]

    processes.wait_until(lambda: count_evictable() == [1, 1, 1], "the budgets' controller", 90)

    def read_fault() -> str:
        # The controller, which hears of new kinds every 30 s, would try again ever later.
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/wrong"
        cluster.patch(path, metadata={"annotations": {"asked": str(time.monotonic())}})
        conditions = cluster.read(BUDGET, "wrong", namespace).get("status", {}).get("conditions", [])
        return str([condition["message"] for condition in conditions])

    processes.wait_until(
        lambda: "does not implement the scale" in read_fault(), "what the other budget lacks", 90, interval_s=1
    )
    cluster.remove(*pods, wrong, *budgets, service, machines.build_plain("ray"))


GRAPH = Kind("nvidia.com/v1beta1", "DynamoGraphDeployment")
GRAPHS = f"/apis/{GRAPH.api_version}/namespaces/privileged/dynamographdeployments"


def read_replicas(cluster: ControlPlane, name: str) -> dict[str, int | None]:
    components = cluster.read(GRAPH, name, "privileged")["spec"]["components"]
    return {component["name"]: component.get("replicas") for component in components}


def test_an_upgrade_keeps_the_replicas_beside_a_scaling_adapter(secured_cluster: ControlPlane, tmp_path: Path) -> None:
    """Dynamo's operator refuses others: it takes none for one. KEDA scales prefill here, and a planner decode."""
    text = test_dynamo.PLANNED_APART.replace("2..3, scale: {planner: on}", "2..3")
    deployment = test_dynamo.resolve(tmp_path, text, "eks", test_dynamo.EKS_FLEET)
    values = tmp_path / "values.yaml"
    values.write_text(render.render_text(deployment, render.find_template(paths.PATTERNS / deployment.pattern, "eks")))

    def upgrade(*options: str) -> None:
        words = [secured_cluster.helm, "upgrade", "kept", str(paths.CHARTS / "inference"), "--install"]
        words += ["--namespace", "privileged", "--values", str(values), *options]
        environment = {**os.environ, **secured_cluster.environment}
        run = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=240, check=False)
        assert run.returncode == 0, run.stderr

    upgrade()
    others = {"router": 1, "planner-decode": 1}
    assert read_replicas(secured_cluster, "kept") == {"prefill": None, "decode": 1, **others}
    components = secured_cluster.read(GRAPH, "kept", "privileged")["spec"]["components"]
    chosen = {"prefill": 3, "decode": 4}
    for component in components:
        component["replicas"] = chosen.get(component["name"], 1)
    secured_cluster.patch(f"{GRAPHS}/kept", spec={"components": components})
    upgrade("--set", "labels.changed=yes")
    assert read_replicas(secured_cluster, "kept") == {**chosen, **others}
    secured_cluster.request("delete", f"{GRAPHS}/kept")


@pytest.fixture(scope="module")
def planned_cluster(
    secured_cluster: ControlPlane, render_chart: Render, tmp_path_factory: pytest.TempPathFactory
) -> ControlPlane:
    """The cluster whose authorizer, which hears of roles after the API server, knows what a planner may do."""
    manifests = render_graph(tmp_path_factory.mktemp("planned"), render_chart, test_dynamo.PLANNED_APART)
    rights = [item for (kind, _), item in manifests.items() if kind in ("ServiceAccount", "Role", "RoleBinding")]
    for item in rights:
        item = {**item, "metadata": {**item["metadata"], "namespace": "privileged"}}
        for subject in item.get("subjects", ()):
            subject["namespace"] = "privileged"
        secured_cluster.api.apply([item])
    of_each_binding = (("get", "dynamographdeployments", "mine"), ("list", "dynamoworkermetadatas", ""))
    processes.wait_until(
        lambda: all(may_planner(secured_cluster, *right) for right in of_each_binding), "the planner's rights", 90
    )
    return secured_cluster


def may_planner(cluster: ControlPlane, verb: str, resource: str, name: str) -> bool:
    resource, _, part = resource.partition("/")
    attributes = {"namespace": "privileged", "verb": verb, "group": "nvidia.com", "resource": resource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:serviceaccount:privileged:mine-planner",
            "resourceAttributes": {**attributes, **({"subresource": part} if part else {})},
        },
    }
    response = cluster.request("post", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(json.loads(response.data)["status"]["allowed"])


@pytest.mark.parametrize(
    ("verb", "resource", "name", "allowed"),
    [
        ("get", "dynamographdeployments", "mine", True),
        ("patch", "dynamographdeployments", "mine", False),
        ("patch", "dynamographdeploymentscalingadapters/scale", "mine-prefill", True),
        ("patch", "dynamographdeploymentscalingadapters/scale", "others-prefill", False),
        ("update", "dynamographdeploymentscalingadapters", "mine-prefill", False),
        ("list", "dynamoworkermetadatas", "", True),
    ],
)
def test_a_planner_may_do_what_its_process_asked_for_and_no_more(
    planned_cluster: ControlPlane, verb: str, resource: str, name: str, allowed: bool
) -> None:
    assert may_planner(planned_cluster, verb, resource, name) is allowed


def test_an_unknown_kubernetes_field_is_detected(
    secured_cluster: ControlPlane, render_chart: Render, preset: Preset
) -> None:
    manifests = render_chart(preset("qwen3-0.6b-g6e"))
    manifest = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    invalid = {**manifest, "spec": {**manifest["spec"], "replica": 2}}
    assert 'unknown field "spec.replica"' in "".join(validate(secured_cluster, [invalid], "privileged"))


@each_preset
def test_pods_keep_to_the_strictest_level_of_pod_security_that_their_devices_allow(
    secured_cluster: ControlPlane, render_chart: Render, preset: Preset, name: str
) -> None:
    pod_manifests = build_pods(render_chart(preset(name)))
    pins = any("add" in pod["spec"]["containers"][0]["securityContext"]["capabilities"] for pod in pod_manifests)
    root = any(pod["spec"]["securityContext"]["runAsUser"] == 0 for pod in pod_manifests)
    level = LEVELS.index("privileged" if pins else "baseline" if root else "restricted")
    assert validate(secured_cluster, pod_manifests, LEVELS[level]) == []
    if level:
        errors = validate(secured_cluster, pod_manifests, LEVELS[level - 1])
        assert errors and all("violates PodSecurity" in line for line in errors)


ACCELERATED_CELLS = [
    cell
    for cell in test_patterns.SERVING_CELLS
    if isinstance(cell.deployment, ServingDeployment)
    and all(role.resources.accelerators for role in cell.deployment.engine_roles)
    and not cell.deployment.workload  # whose operator makes the pods
]


@pytest.fixture(scope="module")
def scheduling_errors(
    control_plane: ControlPlane, render_chart: Render, preset: Preset
) -> Iterator[dict[str, list[str]]]:
    """The scheduler's errors for the pods of each preset and pattern, on as many nodes as their accelerators fill."""
    pods_by_case: dict[str, tuple[list[dict[str, Any]], Cell | None]] = {
        format_slug(name): (build_pods(render_chart(preset(name)), format_slug(name)), None) for name in NAMES
    }
    for cell in ACCELERATED_CELLS:
        pods_by_case[format_case(cell)] = (
            build_pods(test_patterns.render_objects(render_chart, cell), format_case(cell)),
            cell,
        )
    assert len(pods_by_case) == len(NAMES) + len(ACCELERATED_CELLS), "two cases share a name"
    namespaces = [item for name in pods_by_case for item in build_namespace(name)]
    nodes = [item for name, (case_pods, cell) in pods_by_case.items() for item in build_machines(name, case_pods, cell)]
    waiting = [pod for case_pods, _ in pods_by_case.values() for pod in case_pods]
    control_plane.api.apply([*namespaces, *nodes, *waiting])

    def list_waiting() -> list[Object]:
        pods = control_plane.api.list_objects(POD, labels="app.kubernetes.io/name=inference")
        return [pod for pod in pods if pod["metadata"]["namespace"] in pods_by_case and "nodeName" not in pod["spec"]]

    # The scheduler may hear of a pod before it hears of the pod's machine: its first word is not its last.
    with contextlib.suppress(Unavailable):
        processes.wait_until(lambda: not list_waiting(), "a machine for each pod", timeout_s=240, interval_s=0.5)
    errors: dict[str, list[str]] = {name: [] for name in pods_by_case}
    for pod in list_waiting():
        errors[pod["metadata"]["namespace"]].append(find_scheduling_error(pod) or "no word of the scheduler")
    yield errors
    # The namespaces stay to the session's end, with pods on machines that are gone.
    control_plane.request("delete", "/api/v1/nodes?labelSelector=case")


def format_slug(name: str) -> str:
    return name.replace(".", "-")


def format_case(cell: Cell) -> str:
    return format_slug(f"{cell.pattern}-on-{cell.fleet}-{cell.engine}-{cell.framework}")


def find_scheduling_error(pod: Object) -> str:
    """Why a pod has no machine; empty where the scheduler has not said."""
    conditions = pod["status"].get("conditions", [])
    return next((condition["message"] for condition in conditions if condition.get("reason") == "Unschedulable"), "")


def build_machines(name: str, pod_manifests: Sequence[Object], cell: Cell | None) -> list[dict[str, Any]]:
    """A machine without accelerators, and as many with them as the pods' accelerators fill."""
    engines = [item for item in pod_manifests if item["spec"].get("affinity", {}).get("nodeAffinity")]
    terms = engines[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [expressions] = [term["matchExpressions"] for term in terms["nodeSelectorTerms"]]
    row = instances.load()[next(item["values"][0] for item in expressions if item["key"].endswith("instance-type"))]
    assert row.accelerators
    device = row.accelerators.device
    accelerators = sum(int(item["spec"]["containers"][0]["resources"]["limits"].get(device, 0)) for item in engines)
    count = math.ceil(accelerators / row.accelerators.count)
    if cell is None:
        nodes = machines.build_for_type(row, count, name, case=name)
    else:
        nodes = machines.build_for_pool(
            load_fleet(paths.EXAMPLE_FLEETS / f"{cell.fleet}.yaml").value, cell.pool, count, name, case=name
        )
    return [machines.build_plain(f"{name}-plain", case=name), *nodes]


@each_preset
def test_a_preset_s_pods_are_scheduled_on_nodes_that_their_accelerators_fill(
    scheduling_errors: dict[str, list[str]], name: str
) -> None:
    assert scheduling_errors[format_slug(name)] == []


@test_patterns.parametrize_cells(ACCELERATED_CELLS)
def test_a_pattern_s_pods_are_scheduled_on_nodes_that_their_accelerators_fill(
    scheduling_errors: dict[str, list[str]], cell: Cell
) -> None:
    assert scheduling_errors[format_case(cell)] == []
