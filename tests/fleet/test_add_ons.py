from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from infra.constructs import controllers
from llm_serving.catalog.engines import load_engines
from llm_serving.cli import main
from llm_serving.fleet import add_ons, karpenter_manifests, spare_manifests
from llm_serving.fleet.log_outputs import COLLECTOR
from llm_serving.fleet.model import AddOns, Fleet
from llm_serving.fleet.system_group import build_system_group
from llm_serving.kinds.serving.alerts import PULL_LIMIT_S
from llm_serving.operations import add_ons as installer
from llm_serving.settings.document import load
from tests.charts import platform_charts
from tests.fleet.test_karpenter_manifests import close_schema

ROOT = Path(__file__).parents[2]


def load_example(name: str) -> Fleet:
    return load(ROOT / "infra" / "fleets" / f"{name}.yaml", Fleet).value


def list_rows(name: str) -> list[str]:
    return [step.add_on.name for step in add_ons.select_add_ons(load_example(name))]


def test_every_row_is_pinned_has_a_source_and_a_known_condition() -> None:
    own = ("always", "accelerators", "gpus", "nvidia", "neuron", "efa", "karpenter", "node-groups", "logs")
    words = {*own, *AddOns.model_fields}
    for row in add_ons.load_add_ons():
        assert set(row.when.split(" and ")) <= words, row.name
        assert row.manifest or (row.version and row.version[-1].isdigit() and row.source), row.name


def test_every_chart_and_page_has_a_digest_but_those_that_no_source_gives() -> None:
    pulled = {row.name: row for row in add_ons.load_add_ons() if row.chart or row.is_page}
    unpinned = {name for name, row in pulled.items() if not row.digest}
    assert unpinned == {"lws", "kuberay-operator", "gateway-api-inference-extension"}
    assert all("no digest as of" in str(pulled[name].source) for name in unpinned)


def test_a_manifest_with_a_digest_is_refused() -> None:
    with pytest.raises(ValidationError, match="a manifest has none of its own"):
        add_ons.AddOn(name="x", why="y", when="always", manifest="x.yaml", digest=f"sha256:{'0' * 64}")


def test_a_chart_without_a_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="a chart has version, namespace and source"):
        add_ons.AddOn(name="x", why="y", when="always", chart="x", namespace="x", source="z")


@pytest.mark.parametrize("add_on", AddOns.model_fields)
def test_each_add_on_is_a_condition_of_some_row(add_on: str) -> None:
    assert any(add_on in row.when for row in add_ons.load_add_ons())


DOMAIN = f"vpc-logs-{'a1' * 13}.us-west-2.es.amazonaws.com"


@pytest.mark.parametrize(
    ("to", "on", "place"),
    [
        ("cloudwatch", "cloudWatchLogs", ("logGroupName", "/aws/containerinsights/demo/application")),
        ("s3", "s3", ("bucket", "demo-logs-123456789012-us-west-2")),
        (DOMAIN, "opensearch", ("host", DOMAIN)),
    ],
)
def test_a_fleet_s_logs_have_one_output_that_the_chart_knows(to: str, on: str, place: tuple[str, str]) -> None:
    [collector] = [row for row in add_ons.select_add_ons(build_logging_fleet(to)) if row.add_on.name == COLLECTOR]
    outputs = {name: collector.values[name] for name in ("cloudWatchLogs", "s3", "opensearch")}
    assert {name for name, output in outputs.items() if output["enabled"]} == {on}
    assert outputs[on].items() >= {place}
    names = platform_charts.load_facts()[COLLECTOR]["names"]
    assert list(platform_charts.find_unknown_names(collector.values, names)) == []
    assert COLLECTOR not in {row.add_on.name for row in add_ons.select_add_ons(build_logging_fleet(""))}


@pytest.mark.parametrize(
    ("to", "output", "attempts"),
    [("cloudwatch", "cloudWatchLogs", "no_limits"), ("s3", "s3", "300"), (DOMAIN, "opensearch", "10")],
)
def test_lines_that_an_output_did_not_take_wait_on_the_node_s_disk(to: str, output: str, attempts: str) -> None:
    """Fluent Bit 4.2.2, which the image 3.2.1 has, keeps them in its memory, and sends them once more only."""
    collector = {row.add_on.name: row.values for row in add_ons.select_add_ons(build_logging_fleet(to))}[COLLECTOR]
    service, tail = (
        parse_lines(collector[part][more]) for part, more in (("service", "extraService"), ("input", "extraInputs"))
    )
    sent = {**collector[output], **parse_lines(collector[output].get("extraOutputs", ""))}
    assert str(sent.get("Retry_Limit", sent.get("retryLimit"))) == attempts
    assert (tail["storage.type"], tail["Read_from_Head"]) == ("filesystem", "On")
    assert {sent["storage.total_limit_size"], sent.get("storeDirLimitSize", "1G")} == {"1G"}
    folders = [service["storage.path"], *([sent["storeDir"]] if "storeDir" in sent else [])]
    assert len(set(folders)) == 1 + (to == "s3"), "a folder within that of the other would be taken for lines to send"
    [volume], [mount] = collector["volumes"], collector["volumeMounts"]
    assert volume == {"name": mount["name"], "hostPath": {"path": mount["mountPath"]}}
    assert all(folder.startswith(f"{mount['mountPath']}/") for folder in folders)
    assert int(service["storage.max_chunks_up"]) * 2 * 2 + 50 < 250, "MB of memory, by AWS's guide; the chart's limit"


def build_logging_fleet(to: str) -> Fleet:
    zones, pools = ("us-west-2a", "us-west-2b"), {"general": {"types": "g6e.2xlarge", "size": "0..4"}}
    fields = {"name": "demo", "region": "us-west-2", "zones": zones, "pools": pools, "account": "123456789012"}
    return Fleet.model_validate({**fields, "logs": {"to": to}} if to else fields)


def parse_lines(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines())


def test_a_fleet_installs_the_charts_of_its_pools_and_add_ons() -> None:
    assert list_rows("p5-efa") == [
        "storage-class",
        "node-monitoring",
        "kube-prometheus-stack",
        "nvidia-device-plugin",
        "gpu-health",
        "dcgm-exporter",
        "gpu-alerts",
        "aws-efa-k8s-device-plugin",
        "aws-load-balancer-controller",
        "cluster-autoscaler",
        "spare",
        "lws",
        "kueue",
        "queues",
        "keda",
        "kuberay-operator",
    ]
    assert {"neuron", "karpenter", "node-pools"} <= set(list_rows("mixed"))
    assert "nvidia-device-plugin" not in list_rows("trn2")


@pytest.mark.parametrize(
    "pool", [{"types": "trn2.48xlarge", "zones": ["us-east-2b"]}, {"types": "g6e.2xlarge", "os": "bottlerocket"}]
)
def test_a_broken_accelerator_of_any_maker_rings_while_its_repair_waits(pool: dict[str, Any]) -> None:
    """Node repair acts on `AcceleratedHardwareReady`, whoever made the accelerator and whatever system is on the node."""
    fleet = {
        "name": "demo",
        "region": "us-east-2",
        "zones": ["us-east-2a", "us-east-2b"],
        "pools": {"only": {**pool, "size": "0..4"}},
        "add_ons": {"observability": True},
    }
    rows = [row.add_on.name for row in add_ons.select_add_ons(Fleet.model_validate(fleet))]
    assert {"node-monitoring", "gpu-alerts"} <= set(rows)
    assert ("dcgm-exporter" in rows) == ("os" in pool), "it measures GPUs, of Bottlerocket too"


def test_prometheus_leaves_most_of_a_system_nodes_disk_to_others() -> None:
    fleet = load_example("mixed")
    values = {row.add_on.name: row.values for row in add_ons.select_add_ons(fleet)}
    spec = values["kube-prometheus-stack"]["prometheus"]["prometheusSpec"]
    assert "storageSpec" not in spec, "it writes to the node's disk"
    disk_bytes = build_system_group(fleet).volume.size_gib * 2**30
    assert int(spec["retentionSize"].removesuffix("GB")) * 1e9 < disk_bytes / 3


def test_no_default_alert_rings_for_as_long_as_a_healthy_fleet_is_up() -> None:
    """Each rings on EKS, or where all accelerators are in use. Source: the chart's rules-1.14, 87.21.0."""
    values = {row.add_on.name: row.values for row in add_ons.select_add_ons(load_example("mixed"))}
    prometheus = values["kube-prometheus-stack"]
    parts = ("kubeControllerManager", "kubeEtcd", "kubeProxy", "kubeScheduler")
    assert not any(prometheus[part]["enabled"] for part in parts), "their targets are out of reach"
    assert prometheus["defaultRules"] == {
        "disabled": {"KubeCPUOvercommit": True, "KubeMemoryOvercommit": True},
        # Of pods and what makes them: KubePodNotReady, KubeDeploymentReplicasMismatch.
        "appNamespacesOperator": "!~",
        "appNamespacesTarget": spare_manifests.NAME,
    }
    start_s = PULL_LIMIT_S + max(
        row.platforms["gpu"].start_s for row in load_engines().values() if "gpu" in row.platforms
    )
    rules = prometheus["customRules"]
    assert rules.keys() >= {"TargetDown", "KubePodNotReady", "KubeDeploymentReplicasMismatch"}
    assert all(60 * int(rule["for"].removesuffix("m")) > start_s for rule in rules.values()), "while a replica starts"


def test_node_pools_come_after_the_karpenter_that_knows_their_kind() -> None:
    names = [row.name for row in add_ons.load_add_ons()]
    assert names.index("karpenter") < names.index("node-pools")


def test_the_load_balancer_controller_finds_the_gateway_api_as_it_starts(tmp_path: Path) -> None:
    names = [row.name for row in add_ons.load_add_ons()]
    assert names.index("gateway-api") < names.index("aws-load-balancer-controller") < names.index("gateway-classes")
    fleet = load_example("mixed")
    annotations = [
        step.values["podAnnotations"]
        for switch in (False, True)
        for step in add_ons.select_add_ons(fleet.model_copy(update={"add_ons": AddOns(gateway=switch)}))
        if step.add_on.name == "aws-load-balancer-controller"
    ]
    assert annotations == [{"fleet/gateway-api": "off"}, {"fleet/gateway-api": "on"}], "a change starts its pods again"


def read_gateway_classes(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What `platform install` applies of them, by kind and name."""
    fleet = load_example("mixed").model_copy(update={"add_ons": AddOns(gateway=True)})
    commands = installer.build_install_commands(fleet, folder, folder / "fleet.yaml")
    [classes] = [command for command in commands if command.selected.add_on.name == "gateway-classes"]
    manifests = yaml.safe_load_all(Path(classes.arguments[-1]).read_text())
    return {(item["kind"], item["metadata"]["name"]): item for item in manifests}


@pytest.mark.parametrize("name", ["alb", "nlb"])
def test_load_balancers_of_a_gateway_reach_the_pods_of_a_service_and_find_them_healthy(
    tmp_path: Path, name: str
) -> None:
    """By default the controller takes a node's port, which a ClusterIP lacks, and / for healthy, where routers have 404."""
    manifests = read_gateway_classes(tmp_path)
    gateway_class = manifests["GatewayClass", name]["spec"]
    assert gateway_class["controllerName"] == f"gateway.k8s.aws/{name}"
    reference = gateway_class["parametersRef"]
    configuration = manifests[reference["kind"], reference["name"]]
    assert configuration["metadata"]["namespace"] == reference["namespace"]
    targets = manifests["TargetGroupConfiguration", configuration["spec"]["defaultTargetGroupConfiguration"]["name"]]
    assert targets["metadata"]["namespace"] == reference["namespace"] and "targetReference" not in targets["spec"]
    assert targets["spec"]["defaultConfiguration"] == {
        "targetType": "ip",
        "healthCheckConfig": {"matcher": {"httpCode": "200-499"}},
    }
    assert configuration["spec"]["sourceRanges"] == [load_example("mixed").network.cidr], "not every address"
    attributes = {row["key"]: row["value"] for row in configuration["spec"].get("loadBalancerAttributes", ())}
    assert attributes.get("idle_timeout.timeout_seconds") == ("4000" if name == "alb" else None)


CRDS = ROOT.parent / "shared" / "crds"


def test_the_controllers_schemas_have_every_field_of_its_classes(tmp_path: Path) -> None:
    if not CRDS.is_dir():
        pytest.skip(f"the controller's CRDs are not at {CRDS}: copy them there from its release")
    for (kind, _), manifest in read_gateway_classes(tmp_path).items():
        [file] = CRDS.glob(f"*/{manifest['apiVersion'].partition('/')[0]}_{kind.lower()}*.yaml")
        versions = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]
        [schema] = [row["schema"] for row in versions if manifest["apiVersion"].endswith(f"/{row['name']}")]
        closed_schema = close_schema(schema["openAPIV3Schema"]["properties"]["spec"])
        jsonschema.Draft202012Validator(closed_schema).validate(manifest["spec"])


def test_the_efa_plugin_comes_from_the_fleets_own_region() -> None:
    [values] = [
        step.values
        for step in add_ons.select_add_ons(load_example("p5-efa"))
        if step.add_on.name == "aws-efa-k8s-device-plugin"
    ]
    repository = "602401143452.dkr.ecr.us-east-1.amazonaws.com/eks/aws-efa-k8s-device-plugin"
    assert values["image"] == {"repository": repository}


def test_service_accounts_are_those_that_the_stack_gives_roles_to() -> None:
    by_name = {row.name: row for row in add_ons.load_add_ons()}
    balancers, autoscaler = by_name["aws-load-balancer-controller"], by_name["cluster-autoscaler"]
    karpenter_row = by_name["karpenter"]
    assert balancers.values and autoscaler.values and karpenter_row.values
    assert balancers.values["serviceAccount"]["name"] == controllers.LOAD_BALANCER_CONTROLLER
    assert autoscaler.values["rbac"]["serviceAccount"]["name"] == controllers.AUTOSCALER
    assert karpenter_row.values["serviceAccount"]["name"] == controllers.KARPENTER
    assert {row.namespace for row in (balancers, autoscaler)} == {controllers.NAMESPACE}
    assert karpenter_row.namespace == controllers.NAMESPACE


def test_values_come_from_the_fleet() -> None:
    filled = {step.add_on.name: step.values for step in add_ons.select_add_ons(load_example("mixed"))}
    assert filled["karpenter"]["settings"]["interruptionQueue"] == "mixed-interruptions"
    assert filled["aws-load-balancer-controller"]["vpcTags"] == {"fleet": "mixed", "Name": "mixed"}
    assert "{" not in str([value for values in filled.values() for value in find_leaves(values)])


def test_node_groups_are_tried_in_the_order_of_their_pools_choices(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a]\npools:\n"
        "  large: {types: [p5.48xlarge, g6e.48xlarge], buy: [spot, on-demand], size: 1..4}\n"
    )
    fleet = load(tmp_path / "fleet.yaml", Fleet).value
    filled = {step.add_on.name: step.values for step in add_ons.select_add_ons(fleet)}["cluster-autoscaler"]
    assert filled["extraArgs"]["expander"].split(",")[0] == "priority"
    priorities = filled["expanderPriorities"]
    group_names = {
        "eks-large-p5-48xlarge-a-spot-6cc4a6c9-1b2f-4f0e-9d5e-0a1b2c3d4e5f": "100",
        "eks-large-p5-48xlarge-a-od-6cc4a6c9-1b2f-4f0e-9d5e-0a1b2c3d4e5f": "99",
        "eks-large-g6e-48xlarge-a-spot-6cc4a6c9-1b2f-4f0e-9d5e-0a1b2c3d4e5f": "98",
        "eks-large-g6e-48xlarge-a-od-6cc4a6c9-1b2f-4f0e-9d5e-0a1b2c3d4e5f": "97",
        "eks-system-6cc4a6c9-1b2f-4f0e-9d5e-0a1b2c3d4e5f": "1",
    }
    matches_by_name = {
        name: [key for key, patterns in priorities.items() if any(re.search(pattern, name) for pattern in patterns)]
        for name in group_names
    }
    assert matches_by_name == {name: [priority] for name, priority in group_names.items()}


def test_no_autoscaler_drains_a_node_that_serves() -> None:
    fleet = load_example("mixed")
    filled = {step.add_on.name: step.values for step in add_ons.select_add_ons(fleet)}
    assert filled["cluster-autoscaler"]["extraArgs"]["max-drain-parallelism"] == 0
    pools = [row for row in karpenter_manifests.build(fleet) if row["kind"] == "NodePool"]
    assert {row["spec"]["disruption"]["consolidationPolicy"] for row in pools} == {"WhenEmpty"}


def find_leaves(value: object) -> list[str]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in find_leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in find_leaves(item)]
    return [str(value)]


def test_every_command_waits_and_is_idempotent(tmp_path: Path) -> None:
    commands = installer.build_install_commands(load_example("mixed"), tmp_path, tmp_path / "fleet.yaml")
    for command in commands:
        if command.arguments[0] == "helm":
            assert command.arguments[1:3] == ["upgrade", "--install"]
            assert {"--wait", "--timeout"} <= set(command.arguments)
            assert command.archive and str(command.archive.file).endswith(f"{command.selected.add_on.version}.tgz")
            assert command.arguments[4].endswith(command.archive.file.name), "from the archive that is checked"
        else:
            assert command.arguments[:4] == ["kubectl", "apply", "--server-side", "-f"]
    assert (tmp_path / "node-pools.yaml").read_text().count("kind: NodePool") >= 1


def test_the_plan_is_shown_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = str(ROOT / "infra" / "fleets" / "p5-efa.yaml")
    assert main.run(["platform", "install", "--plan", "--fleet", fleet]) == 0
    out = capsys.readouterr().out
    assert "helm pull nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin --version 0.19.2" in out
    assert "helm upgrade --install nvidia-device-plugin rendered/p5-efa/platform/charts/nvidia-device-plugin-0" in out
    assert out.count("pinned by sha256:") == 8
    assert out.count("pinned by version alone: its first digest goes to ") == 2, "lws and kuberay-operator"
    manifests = "the storage class, the agent's grace, the GPUs' health and alerts, the spare nodes and the queues"
    assert out.count("kubectl apply") == 6, manifests


def test_a_fleet_without_kubernetes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = str(ROOT / "infra" / "fleets" / "ads-scale.yaml")
    assert main.run(["platform", "install", "--fleet", fleet]) == 2
    assert "platform charts need an EKS cluster" in capsys.readouterr().err


def test_the_rows_are_installed_in_order_and_a_failure_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    helm = tools / "helm"
    version = '[ "$*" = "version --short" ] && echo v4.3.1 && exit'
    helm.write_text(f'#!/bin/sh\n{version}\necho "$3" >> {tmp_path}/calls\ntest "$3" != lws\n')
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installer.chart_archives, "fetch", lambda archive, _: archive.digest)
    monkeypatch.setattr(installer.chart_archives, "read_crds", lambda _: [])
    monkeypatch.setattr(installer.kube_api, "open_api", lambda _: None)

    def record(manifest: str, _: object, **__: object) -> None:
        with (tmp_path / "calls").open("a") as log:
            log.write(f"{Path(manifest).stem}\n")

    monkeypatch.setattr(installer, "_apply_manifest", record)
    fleet = str(ROOT / "infra" / "fleets" / "p5-efa.yaml")
    assert main.run(["platform", "install", "--fleet", fleet]) == 1
    assert (tmp_path / "calls").read_text().split() == list_rows("p5-efa")[: list_rows("p5-efa").index("lws") + 1]
    assert "helm upgrade --install lws" in capsys.readouterr().err
