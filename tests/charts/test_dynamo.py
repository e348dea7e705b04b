"""framework: dynamo: what its operator makes pods of, and what these need of the cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving import paths
from llm_serving.targets import render
from llm_serving.targets.local import engine_setups
from tests.charts import objects
from tests.charts.conftest import Render
from tests.kinds.serving.frameworks import test_dynamo

Manifests = dict[tuple[str, str], dict[str, Any]]


def render_graph(
    folder: Path, render_chart: Render, blueprint: str = test_dynamo.ON_EKS, **overrides: dict[str, Any]
) -> Manifests:
    """What the chart makes of a blueprint; `overrides` by role, as parameters of Argo CD have them."""
    deployment = test_dynamo.resolve(folder, blueprint, "eks", test_dynamo.EKS_FLEET)
    text = render.render_text(deployment, render.find_template(paths.PATTERNS / deployment.pattern, "eks"))
    values = yaml.safe_load(text)
    for role, override in overrides.items():
        values["roles"][role] |= override
    return {(item["kind"], item["metadata"]["name"]): item for item in render_chart(values)}


@pytest.fixture
def manifests(tmp_path: Path, render_chart: Render) -> Manifests:
    return render_graph(tmp_path, render_chart)


def get_components(manifests: Manifests) -> dict[str, dict[str, Any]]:
    graph = manifests["DynamoGraphDeployment", "mine"]
    assert (
        graph["metadata"]["annotations"].items()
        >= {
            "nvidia.com/enable-grove": "false",
            "nvidia.com/enable-metrics": "false",
        }.items()
    )
    return {component["name"]: component for component in graph["spec"]["components"]}


def get_main(component: dict[str, Any]) -> dict[str, Any]:
    """The container that the operator completes. Source: MainContainerName of its types."""
    [container] = component["podTemplate"]["spec"]["containers"]
    assert container["name"] == "main"
    return dict(container)


def test_the_frontend_and_the_workers_are_components_and_nothing_else_runs(manifests: Manifests) -> None:
    components = get_components(manifests)
    assert manifests["DynamoGraphDeployment", "mine"]["spec"]["backendFramework"] == "vllm"
    assert {name: component["type"] for name, component in components.items()} == {
        "router": "frontend",
        "worker": "worker",
    }
    assert not {kind for kind, _ in manifests} & {"Deployment", "LeaderWorkerSet", "RayService"}
    for component in components.values():
        assert component["runtimeVersionOverride"] == "1.6.1"
        assert component["sharedMemorySize"] == "0", "the pod mounts its own"
        main = get_main(component)
        # Of an empty list the operator's own arguments would stay.
        assert main["command"] == ["python3"] and main["args"][:1] == ["-m"]
        assert "/dev/shm" in {mount["mountPath"] for mount in main["volumeMounts"]}
        updates = component["podTemplate"]["metadata"]["annotations"]
        assert {
            key.rpartition("max-")[2]: value
            for key, value in updates.items()
            if key.startswith("nvidia.com/deployment-rolling")
        } == (
            {"surge": "1", "unavailable": "0"}
            if component["type"] == "frontend"
            else {"surge": "0", "unavailable": "1"}
        )


def test_what_is_not_counted_is_in_no_alert(tmp_path: Path) -> None:
    deployment = test_dynamo.resolve(tmp_path, test_dynamo.ON_EKS, "eks", test_dynamo.EKS_FLEET)
    text = render.render_text(deployment, render.find_template(paths.PATTERNS / "aggregated", "eks"))
    metrics = yaml.safe_load(text)["metrics"]["router"]
    assert metrics == {"requests": "dynamo_frontend_requests_total", "errors": ""}, "not vllm-router's"


def test_ports_have_the_names_by_which_the_operator_and_the_release_find_them(manifests: Manifests) -> None:
    ports = {name: get_main(component)["ports"] for name, component in get_components(manifests).items()}
    assert ports == {
        "router": [{"name": "http", "containerPort": 8080}],
        "worker": [{"name": "system", "containerPort": 9090}],
    }
    for name, component in get_components(manifests).items():
        main = get_main(component)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert main[probe]["httpGet"]["port"] == ports[name][0]["name"]
        assert main["livenessProbe"]["httpGet"]["path"] == "/live"
    [port] = manifests["Service", "mine"]["spec"]["ports"]
    assert port == {"name": "http", "port": 8080, "targetPort": "http"}
    assert ("Service", "mine-worker") not in manifests, "the operator makes a Service of this name"


def test_their_metrics_are_read_where_they_are(manifests: Manifests) -> None:
    monitored = {
        name: item["spec"]["podMetricsEndpoints"][0]["port"]
        for (kind, name), item in manifests.items()
        if kind == "PodMonitor"
    }
    assert monitored == {"mine-router": "http", "mine-worker": "system"}


@pytest.mark.parametrize(("framework", "path"), [("plain", "/prometheus/metrics"), ("dynamo", "/metrics")])
def test_metrics_of_tensorrt_llm_are_read_at_the_path_of_the_program_that_runs_it(
    tmp_path: Path, render_chart: Render, framework: str, path: str
) -> None:
    text = test_dynamo.choose("tensorrt-llm").replace("framework: dynamo", f"framework: {framework}")
    manifests = render_graph(tmp_path, render_chart, text)
    paths_by_role = {
        name: manifests["PodMonitor", f"mine-{name}"]["spec"]["podMetricsEndpoints"][0]["path"]
        for name in ("router", "worker")
    }
    assert paths_by_role == {"router": "/metrics", "worker": path}


def test_prefill_and_decode_are_components_of_these_types(tmp_path: Path, render_chart: Render) -> None:
    components = get_components(render_graph(tmp_path, render_chart, test_dynamo.APART))
    assert {name: (component["type"], component["replicas"]) for name, component in components.items()} == {
        "router": ("frontend", 1),
        "prefill": ("prefill", 2),
        "decode": ("decode", 1),
    }
    for name in ("prefill", "decode"):
        main = get_main(components[name])
        assert {"name": "side", "containerPort": 5600} in main["ports"]
        assert {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "$(POD_IP)"} in main["env"]


@pytest.mark.parametrize(
    ("engine", "backend", "module"),
    [("tensorrt-llm", "trtllm", "dynamo.trtllm"), ("sglang", "sglang", "dynamo.sglang")],
)
def test_other_engines_are_components_of_the_same_kind(
    tmp_path: Path, render_chart: Render, schema_location: str, engine: str, backend: str, module: str
) -> None:
    for text in (test_dynamo.ON_EKS, test_dynamo.APART):
        manifests = render_graph(tmp_path, render_chart, test_dynamo.choose(engine, text))
        graph = manifests["DynamoGraphDeployment", "mine"]
        assert graph["spec"]["backendFramework"] == backend
        assert objects.validate(yaml.safe_dump(graph), schema_location) == []
        for name, component in get_components(manifests).items():
            args = get_main(component)["args"]
            assert component["type"] == ("frontend" if name == "router" else name)
            assert args[args.index("-m") + 1] == ("dynamo.frontend" if name == "router" else module)


def test_keda_scales_the_adapter_that_the_operator_makes(manifests: Manifests) -> None:
    components = get_components(manifests)
    assert components["worker"]["scalingAdapter"] == {} and "replicas" not in components["worker"]
    assert components["router"]["replicas"] == 1
    # <graph>-<component>: dynamo/planner/connectors/clients/kubernetes_api.py of 1.6.1.
    assert manifests["ScaledObject", "mine-worker"]["spec"]["scaleTargetRef"] == {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeploymentScalingAdapter",
        "name": "mine-worker",
    }


def test_argo_cd_owns_no_replicas_of_a_planner_where_a_parameter_takes_them_away(
    tmp_path: Path, render_chart: Render
) -> None:
    manifests = render_graph(tmp_path, render_chart, test_dynamo.PLANNED_APART, decode={"replicas": 0})
    assert {name for name, component in get_components(manifests).items() if "replicas" not in component} == {"decode"}


@pytest.mark.parametrize("text", ["PLANNED", "PLANNED_APART"])
def test_a_planner_is_a_component_that_may_scale_its_roles_adapters_alone(
    tmp_path: Path, render_chart: Render, schema_location: str, text: str
) -> None:
    manifests = render_graph(tmp_path, render_chart, getattr(test_dynamo, text))
    assert objects.validate(yaml.safe_dump_all(manifests.values()), schema_location) == []
    assert not {kind for kind, _ in manifests} & {"ScaledObject"}
    components = get_components(manifests)
    roles = {name for name, component in components.items() if component["type"] not in ("frontend", "planner")}
    starts = {"worker": 1, "prefill": 2, "decode": 1}
    for name in roles:
        assert (components[name]["scalingAdapter"], components[name]["replicas"]) == ({}, starts[name])
        planner = components[f"planner-{name}"]
        assert (planner["type"], planner["replicas"]) == ("planner", 1)
        spec, main = planner["podTemplate"]["spec"], get_main(planner)
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("mine-planner", True)
        assert "initContainers" not in spec, "it reads nothing of the model"
        assert main["image"] == "nvcr.io/nvidia/ai-dynamo/dynamo-planner:1.6.1"
        assert main["ports"] == [{"name": "system", "containerPort": 9090}]
        assert (main["startupProbe"]["httpGet"]["path"], main["readinessProbe"]["httpGet"]["path"]) == (
            "/live",
            "/health",
        )
        assert main["args"][:3] == ["-m", "dynamo.planner", "--config"]
        prometheus = {"name": "PROMETHEUS_ENDPOINT", "value": "http://kube-prometheus-stack-prometheus.monitoring:9090"}
        assert prometheus in main["env"]
    assert {name for name, component in components.items() if component["type"] == "planner"} == {
        f"planner-{name}" for name in roles
    }
    assert manifests["Role", "mine-planner"]["rules"] == [
        {
            "apiGroups": ["nvidia.com"],
            "resources": ["dynamographdeployments"],
            "resourceNames": ["mine"],
            "verbs": ["get"],
        },
        {
            "apiGroups": ["nvidia.com"],
            "resources": ["dynamographdeploymentscalingadapters/scale"],
            "resourceNames": sorted(f"mine-{name}" for name in roles),
            "verbs": ["get", "patch"],
        },
    ]
    bound = {name: manifests["RoleBinding", name] for name in ("mine-planner", "mine-planner-discovery")}
    assert {name: item["roleRef"]["name"] for name, item in bound.items()} == {
        "mine-planner": "mine-planner",
        "mine-planner-discovery": "mine-discovery",
    }
    assert {subject["name"] for item in bound.values() for subject in item["subjects"]} == {"mine-planner"}
    [workers] = manifests["RoleBinding", "mine-discovery"]["subjects"]
    assert workers["name"] == "engines", "workers may scale nothing"


def test_what_a_planner_calls_is_let_through(tmp_path: Path, render_chart: Render) -> None:
    policy = render_graph(tmp_path, render_chart, test_dynamo.PLANNED)["NetworkPolicy", "mine-planner"]["spec"]
    assert policy["podSelector"]["matchLabels"]["inference/kind"] == "planner"
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [443, 9090]
    assert policy["policyTypes"] == ["Egress"]


def test_a_role_that_keda_scales_has_no_planner(tmp_path: Path, render_chart: Render) -> None:
    text = test_dynamo.PLANNED_APART.replace("2..3, scale: {planner: on}", "2..3")
    manifests = render_graph(tmp_path, render_chart, text)
    assert {name for kind, name in manifests if kind == "ScaledObject"} == {"mine-prefill"}
    components = get_components(manifests)
    assert {name for name in components if name.startswith("planner-")} == {"planner-decode"}
    assert "replicas" not in components["prefill"] and components["prefill"]["scalingAdapter"] == {}


READ = """
import json, sys, types

import dynamo

# Its package takes what this environment goes without: the planner's image has scikit-learn, AISimulate and more.
package = types.ModuleType("dynamo.planner")
package.__path__ = [f"{folder}/planner" for folder in dynamo.__path__]
sys.modules["dynamo.planner"] = package
from dynamo.planner.config.planner_config import PlannerConfig

written = json.loads(sys.argv[1])
assert written.keys() <= PlannerConfig.model_fields.keys(), written.keys() - PlannerConfig.model_fields.keys()
read = PlannerConfig.from_config_arg(sys.argv[1])
assert {key: read.model_dump(mode="json")[key] for key in written} == written
print(read.mode, read.optimization_target, read.enable_load_scaling, read.active_min_endpoints())
"""


def read_config(config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Read a planner's configuration with Dynamo's own class, which by itself takes unknown keys without a word."""
    python = engine_setups.find("vllm", "dynamo").ensure() / "python"
    words = [python, "-c", READ, json.dumps(config)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(not engine_setups.find("vllm", "dynamo").is_ready(), reason="dynamo is not set up")
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_dynamos_own_class_reads_what_a_planner_is_told(tmp_path: Path, render_chart: Render) -> None:
    seen = []
    for text in (test_dynamo.PLANNED, test_dynamo.PLANNED_APART):
        components = get_components(render_graph(tmp_path, render_chart, text))
        for name in (name for name, component in components.items() if component["type"] == "planner"):
            config = json.loads(get_main(components[name])["args"][-1])
            assert config["model_name"] == "Qwen/Qwen3-32B"
            run = read_config(config)
            assert run.returncode == 0, run.stderr
            seen.append(run.stdout.strip())
    assert seen == ["agg sla True (None, 1)", "decode sla True (None, 1)", "prefill sla True (2, None)"]
    assert "decode_min_endpoint is not supported" in read_config({**config, "decode_min_endpoint": 1}).stderr
    assert "max_endpoint" in read_config({**config, "max_endpoint": 4}).stderr, "it has no such key"


def test_pods_may_read_the_model_and_find_one_another(manifests: Manifests) -> None:
    """An operator with pods of an account of their own gives them no rights."""
    [subject] = manifests["RoleBinding", "mine-discovery"]["subjects"]
    for component in get_components(manifests).values():
        spec = component["podTemplate"]["spec"]
        assert spec["serviceAccountName"] == subject["name"] and spec["automountServiceAccountToken"]
    rules = {
        resource: set(rule["verbs"])
        for rule in manifests["Role", "mine-discovery"]["rules"]
        for resource in rule["resources"]
    }
    read = {"get", "list", "watch"}
    assert rules.pop("dynamoworkermetadatas") == read | {"create", "update", "patch", "delete"}
    assert rules == dict.fromkeys(("pods", "endpoints", "endpointslices"), read)
    assert ("ServiceAccount", "mine-router") not in manifests
    for name in ("router", "worker"):
        egress = manifests["NetworkPolicy", f"mine-{name}"]["spec"]["egress"]
        ranges = {peer["ipBlock"]["cidr"] for rule in egress for peer in rule["to"]}
        assert {"0.0.0.0/0", "10.0.0.0/8", "169.254.170.23/32"} <= ranges


def test_the_frontend_copies_all_of_the_model_but_its_weights(manifests: Manifests) -> None:
    copies = {
        name: next(
            container["command"]
            for container in component["podTemplate"]["spec"]["initContainers"]
            if container["name"] == "fetch-weights"
        )
        for name, component in get_components(manifests).items()
    }
    assert "--exclude=*.safetensors" in copies["router"]
    assert [word for word in copies["router"] if not word.startswith("--exclude=")] == copies["worker"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("scalingAdapter: {}", "scalingAdapter: {enabled: true}"),
        ("type: frontend", "type: router"),
        ("terminationGracePeriodSeconds", "terminationGracePeriod"),
    ],
)
def test_what_the_kind_does_not_have_is_detected(
    manifests: Manifests, schema_location: str, right: str, wrong: str
) -> None:
    text = yaml.safe_dump(manifests["DynamoGraphDeployment", "mine"])
    assert objects.validate(text, schema_location) == []
    assert right in text
    assert objects.validate(text.replace(right, wrong), schema_location)
