"""Every pattern that renders for EKS on an example fleet: values that the chart takes, objects that Kubernetes takes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.kinds.serving import alerts
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.targets import planning, render
from llm_serving.targets.matrix import Cell
from tests import matrix_cells
from tests.charts import objects
from tests.charts.conftest import Render
from tests.charts.test_network import STRANGER, is_allowed
from tests.charts.test_objects import filter_by_kind
from tests.kinds.serving import test_workers

CELLS = [cell for cell in matrix_cells.build("eks") if cell.deployment]
FEED_ANOTHER_DEPLOYMENT = {"offline-batch", "near-real-time"}
"""The patterns that no fleet alone can render: tests/charts/test_batch.py and test_streaming.py render them."""

SERVING_CELLS = [cell for cell in CELLS if isinstance(cell.deployment, ServingDeployment)]
"""Of charts/inference."""

OTHER_CELLS = [cell for cell in CELLS if not isinstance(cell.deployment, ServingDeployment)]
"""Of charts/batch."""


def format_cell(cell: Cell) -> str:
    return f"{cell.pattern}-{cell.fleet}-{cell.engine}-{cell.framework}"


def parametrize_cells(cells: Sequence[Cell]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", cells, ids=format_cell)


each_cell = parametrize_cells(CELLS)
each_serving_cell = parametrize_cells(SERVING_CELLS)
each_other_cell = parametrize_cells(OTHER_CELLS)


def render_values(cell: Cell) -> dict[str, Any]:
    chart_values: dict[str, Any] = yaml.load(matrix_cells.render_text(cell), yaml.CSafeLoader)
    return chart_values


def render_objects(render_chart: Render, cell: Cell) -> list[dict[str, Any]]:
    """What the cell's chart makes of its values; charts/batch refuses a release of another name than the blueprint's."""
    assert cell.deployment
    own_name = {"fullnameOverride": cell.deployment.name} if cell.deployment.chart == "batch" else {}
    return render_chart({**render_values(cell), **own_name}, paths.CHARTS / cell.deployment.chart)


def test_each_pattern_with_a_template_for_eks_renders_on_an_example_fleet() -> None:
    patterns = {folder.name for folder in paths.list_patterns() if "eks" in render.list_targets(folder)}
    assert {cell.pattern for cell in CELLS} == patterns - FEED_ANOTHER_DEPLOYMENT
    charts = [{cell.deployment.chart for cell in cells if cell.deployment} for cells in (SERVING_CELLS, OTHER_CELLS)]
    assert charts == [{"inference"}, {"batch"}]


def test_kubernetes_accepts_the_chart_s_objects(render_chart: Render, schema_location: str) -> None:
    cells = {format_cell(cell): render_objects(render_chart, cell) for cell in CELLS}
    assert len(cells) == len(CELLS), "two cells share a name"
    broken = {**cells[format_cell(CELLS[0])][0], "specs": {}}
    errors = objects.validate_each({**cells, "broken": [broken]}, schema_location)
    assert errors.pop("broken"), "it can fail"
    assert errors == {name: [] for name in cells}


@each_serving_cell
def test_its_prometheus_rule_is_the_plain_rule_file(render_chart: Render, cell: Cell) -> None:
    assert cell.deployment and isinstance(cell.deployment, ServingDeployment)
    manifests = render_chart({**render_values(cell), "monitoring": {"podMonitors": True, "rules": True}})
    [rule] = [manifest for manifest in manifests if manifest["kind"] == "PrometheusRule"]
    release = cell.deployment.model_copy(update={"name": "mine"})
    assert rule["spec"] == alerts.build_rules(release)
    assert any("window" in entry["labels"] for group in rule["spec"]["groups"] for entry in group["rules"])


def test_a_role_that_gives_way_has_no_alert_on_its_absence_in_the_chart_either(render_chart: Render) -> None:
    cell = SERVING_CELLS[0]
    assert isinstance(cell.deployment, ServingDeployment)
    roles = [role.model_copy(update={"gives_way": role.kind == "engine"}) for role in cell.deployment.roles]
    values = {**render_values(cell), "monitoring": {"rules": True}}
    for role in roles:
        values["roles"][role.name]["priorityClass"] = "gives-way" if role.gives_way else ""
    [rule] = [manifest for manifest in render_chart(values) if manifest["kind"] == "PrometheusRule"]
    release = cell.deployment.model_copy(update={"name": "mine", "roles": tuple(roles)})
    assert rule["spec"] == alerts.build_rules(release) != alerts.build_rules(cell.deployment)


@each_other_cell
def test_its_pods_run_the_commands_of_the_services_and_only_what_they_call_is_let_through(
    render_chart: Render, cell: Cell
) -> None:
    assert cell.deployment
    manifests = render_objects(render_chart, cell)
    pods = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in objects.list_pods(manifests)}
    assert pods.keys() == {service.name for service in cell.deployment.services}
    policies = filter_by_kind(manifests, "NetworkPolicy")
    for service in cell.deployment.services:
        spec, labels = pods[service.name]["spec"], pods[service.name]["metadata"]["labels"]
        [container] = spec["containers"]
        assert container["command"] == list(service.command)
        assert {entry["name"]: entry["value"] for entry in container["env"]} == {"HOME": "/tmp", **service.env}
        assert container["resources"]["limits"] == {"memory": f"{service.resources.memory_bytes // 2**20}Mi"}
        assert spec["serviceAccountName"] == f"{cell.deployment.name}-{service.name}"
        for call in service.calls.values():
            assert is_allowed(policies, "egress", labels, "10.0.1.7", call.port)
        assert not is_allowed(policies, "egress", labels, "169.254.169.254", 80), "the node's own role"
        assert not is_allowed(policies, "egress", labels, STRANGER, 8080)
        assert not is_allowed(policies, "ingress", labels, STRANGER, service.port or 8080)


@each_serving_cell
def test_its_pods_request_the_accelerators_and_run_the_commands_of_the_deployment(
    render_chart: Render, cell: Cell
) -> None:
    assert isinstance(cell.deployment, ServingDeployment)
    pod_templates = objects.list_pods(render_chart(render_values(cell)))
    specs = {
        (
            pod["metadata"]["labels"]["app.kubernetes.io/component"],
            *pod["spec"]["containers"][0].get("command", ()),
            *pod["spec"]["containers"][0].get("args", ()),
        ): pod["spec"]
        for pod in pod_templates
    }
    for role in cell.deployment.roles:
        (service,) = cell.deployment.list_services(role)
        for command in (service.command, *filter(None, [service.worker_command])):
            spec = specs[role.name, *command]
            limits = spec["containers"][0]["resources"]["limits"]
            assert int(limits.get(role.resources.device or "none", 0)) == role.resources.accelerators
            assert int(limits.get("vpc.amazonaws.com/efa", 0)) == role.resources.efa
            if role.kind == "engine":
                assert spec["nodeSelector"] == service.placement.labels
                assert spec["serviceAccountName"] == cell.deployment.environment.service_account


def test_with_events_the_router_discovers_pods_by_dns_and_clients_cannot_subscribe(
    render_chart: Render, tmp_path: Path
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    file = tmp_path / "mine" / "blueprint.yaml"
    file.write_text(file.read_text().replace("policy: cache-aware", "policy: kv-aware"))
    fleet = paths.PATTERNS.parent / "fleet.yaml"
    text = planning.write_rendered(
        planning.plan(file.parent, fleet, target="eks", root=tmp_path, account="123456789012")
    ).read_text()
    manifests = render_chart(yaml.safe_load(text))
    manifests_by_name = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    [router] = [
        manifest
        for (kind, name), manifest in manifests_by_name.items()
        if kind == "Deployment" and name.endswith("-router")
    ]
    [worker_flag] = [
        word for word in router["spec"]["template"]["spec"]["containers"][0]["command"] if "--worker=" in word
    ]
    address = worker_flag.removeprefix("--worker=").replace("$(RELEASE)", "mine")
    service = manifests_by_name["Service", address.partition(".")[0]]
    assert service["spec"]["clusterIP"] == "None", "an address a pod"
    engine = manifests_by_name["Deployment", service["metadata"]["name"]]["spec"]["template"]
    assert {5557, 5558} <= {port["containerPort"] for port in engine["spec"]["containers"][0]["ports"]}
    ingress = manifests_by_name["NetworkPolicy", service["metadata"]["name"]]["spec"]["ingress"]
    release_labels = {"app.kubernetes.io/name": "inference", "app.kubernetes.io/instance": "mine"}
    every_port = [rule["from"] for rule in ingress if "ports" not in rule]
    assert every_port == [[{"podSelector": {"matchLabels": release_labels}}]], "the release's own pods"
    other_ports = {port["port"] for rule in ingress for port in rule.get("ports", ())}
    assert not other_ports & {5557, 5558}


def test_a_route_to_the_release_lets_requests_take_as_long_as_its_router_does(
    render_chart: Render, tmp_path: Path
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    file = tmp_path / "mine" / "blueprint.yaml"
    file.write_text(file.read_text().replace("policy: cache-aware", "request_timeout: 2h"))
    fleet = paths.PATTERNS.parent / "fleet.yaml"
    plan = planning.plan(file.parent, fleet, target="eks", root=tmp_path, account="123456789012")
    values = yaml.safe_load(planning.write_rendered(plan).read_text())
    values["route"]["gateway"] = {"name": "edge"}
    [route] = [manifest for manifest in render_chart(values) if manifest["kind"] == "HTTPRoute"]
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "7200s"}
    assert "7200" in values["roles"]["router"]["command"]


@pytest.mark.parametrize("setting", ["node", "claim:compiled"])
def test_compiled_programs_outlive_a_pod_where_the_blueprint_says_so(
    render_chart: Render, tmp_path: Path, setting: str
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    file = tmp_path / "mine" / "blueprint.yaml"
    keys = set()
    for image in ("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.32.1"):
        if image not in file.read_text():
            base = (paths.PATTERNS / "aggregated" / "blueprint.yaml").read_text()
            file.write_text(f"{base}image: {image}\ntuning: {{compile_cache: '{setting}'}}\n")
        fleet = paths.PATTERNS.parent / "fleet.yaml"
        plan = planning.plan(file.parent, fleet, target="eks", root=tmp_path, account="123456789012")
        manifests = render_chart(yaml.safe_load(planning.write_rendered(plan).read_text()))
        [spec] = [
            pod["spec"] for pod in objects.list_pods(manifests) if pod["spec"]["containers"][0]["name"] == "engine"
        ]
        [volume] = [row for row in spec["volumes"] if row["name"] == "mount-compile-cache"]
        [mount] = [row for row in spec["containers"][0]["volumeMounts"] if row["name"] == "mount-compile-cache"]
        assert mount["mountPath"] == "/compile-cache"
        if setting == "node":
            assert volume["hostPath"]["type"] == "DirectoryOrCreate"
            assert volume["hostPath"]["path"].startswith("/mnt/k8s-disks/0/compile-cache/mine/")
            assert spec["securityContext"]["runAsUser"] == 0, "the folder is root's"
            keys.add(volume["hostPath"]["path"])
        else:
            assert volume["persistentVolumeClaim"]["claimName"] == "compiled"
            keys.add(mount["subPath"])
        environment = {row["name"]: row.get("value") for row in spec["containers"][0]["env"]}
        assert environment["TRITON_CACHE_DIR"] == "/compile-cache/triton"
        assert environment["VLLM_ASSETS_CACHE"] == "/scratch/cache/assets", "the engine removes it"
    assert len(keys) == 2, "another image has another folder"


def test_the_chart_refuses_a_typo_in_a_users_template(render_chart: Render) -> None:
    invalid = render_values(CELLS[0])
    invalid["roles"]["worker"]["replica"] = 3
    with pytest.raises(AssertionError, match="replica"):
        render_chart(invalid)


@pytest.mark.parametrize("gang", ["on", "off"])
def test_a_replica_over_several_nodes_waits_for_all_of_them_in_the_queue_of_its_pool(
    render_chart: Render, schema_location: str, tmp_path: Path, gang: str
) -> None:
    shutil.copytree(paths.PATTERNS / "distributed", tmp_path / "mine")
    (tmp_path / "mine" / "blueprint.yaml").write_text(
        "pattern: distributed\nmodel: Qwen/Qwen3-235B-A22B-FP8\nroles:\n"
        f"  worker: {{pool: p5en, accelerators: 16, pipeline: 2, expert: on, gang: {gang}}}\n"
        "traffic: {users: 2, input_tokens: 32, output_tokens: 8}\nslo: {}\n"
    )
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2c]\norchestrator: eks\nadd_ons: {schedulers: on}\n"
        "pools:\n  p5en: {types: p5en.48xlarge, zones: us-west-2c, size: 4, efa: on}\n"
    )
    plan = planning.plan(tmp_path / "mine", fleet, target="eks", root=tmp_path, account="123456789012")
    manifests = render_chart(yaml.safe_load(planning.write_rendered(plan).read_text()))
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    [group] = [manifest for manifest in manifests if manifest["kind"] == "LeaderWorkerSet"]
    assert group["spec"]["startupPolicy"] == "LeaderCreated", "Kueue takes no other"
    template = group["spec"]["leaderWorkerTemplate"]
    queues = [
        part["metadata"]["labels"].get("kueue.x-k8s.io/queue-name")
        for part in (group, template["leaderTemplate"], template["workerTemplate"])
    ]
    assert queues == ["p5en" if gang == "on" else None] * 3


def test_one_model_on_unlike_accelerators_has_a_deployment_for_each_that_kubernetes_accepts(
    render_chart: Render, schema_location: str, tmp_path: Path
) -> None:
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "mine")
    (tmp_path / "mine" / "blueprint.yaml").write_text(test_workers.BLUEPRINT.replace("WEIGHT", "weight: 5"))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(test_workers.FLEET.replace("ORCHESTRATOR", "eks"))
    plan = planning.plan(tmp_path / "mine", fleet, target="eks", root=tmp_path, account="123456789012")
    manifests = render_chart(yaml.safe_load(planning.write_rendered(plan).read_text()))
    assert objects.validate(yaml.safe_dump_all(manifests), schema_location) == []
    limits = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["spec"]["containers"][0]["resources"]["limits"]
        for pod in objects.list_pods(manifests)
    }
    assert limits["worker"]["nvidia.com/gpu"] == "8" and limits["small"]["nvidia.com/gpu"] == "1"
    assert limits["trn"]["aws.amazon.com/neuron"] == "16"
