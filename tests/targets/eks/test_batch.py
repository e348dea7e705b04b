"""A batch on EKS: the command line, the real helm, a real control plane; nodes are simulated.

The Terraform stack is a fake here, for the embedded AWS has no Pod Identity: tests/infra/batch/ holds its resources.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.cli import main
from llm_serving.fleet import kueue_manifests, loading
from llm_serving.kinds.batch.kind import BatchKind
from llm_serving.operations import apply, context
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import StackState
from llm_serving.operations.kube_api import POD
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets import planning
from llm_serving.targets.eks import helm, readiness, release
from llm_serving.targets.on_aws import deployment_stack
from llm_serving.terraform.plan import Plan, ResourceChange
from tests.control_plane import machines
from tests.control_plane.control_plane import BUDGET, ENDPOINTS, NODE, RELEASED, ControlPlane
from tests.infra.batch.conftest import FLEET, SHAPES
from tests.infra.deployments import write_blueprint

NAMESPACE = "serving"
OWN = "app.kubernetes.io/instance=mine"

pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a fleet and the blueprint `mine`."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    write_blueprint(tmp_path, "mine", SHAPES["pods"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(readiness, "_POLL_INTERVAL_S", 0.4)
    monkeypatch.setattr(release.images, "require_images", lambda *_: None)
    return tmp_path


@pytest.fixture
def cluster(
    control_plane: ControlPlane, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlPlane]:
    """Nodes of the workers' pool, two on spot and two on demand, and two without taints; three workers fit on one."""
    for name, value in control_plane.environment.items():
        monkeypatch.setenv(name, value)
    fleet = loading.load_fleet(working_folder / "fleet.yaml").value
    nodes = [
        *machines.build_for_pool(fleet, "cores", 2, "spot"),
        *machines.build_for_pool(fleet, "cores", 2, "on-demand"),
        machines.build_plain("plain", **{"fleet/purchase": "on-demand"}),
        machines.build_plain("plain-spot", **{"fleet/purchase": "spot"}),
    ]
    for node in nodes[2:4]:
        node["metadata"]["labels"]["fleet/purchase"] = "on-demand"
    assert nodes[0]["metadata"]["labels"]["fleet/purchase"] == "spot", "the pool's first choice"
    control_plane.api.apply(nodes)
    control_plane.wait_for_scheduler(node["metadata"]["name"] for node in nodes)
    yield control_plane
    control_plane.api.delete_all(NODE, timeout_s=60)


@pytest.fixture
def stack_calls(monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane) -> list[str]:
    """Fake Terraform with a queue to create; returns its calls, each with the number of the release's pods then."""
    calls: list[str] = []

    def record(call: str) -> None:
        pods = control_plane.api.list_objects(POD, NAMESPACE, labels=OWN)
        calls.append(f"{call} beside {len(pods)} pods")

    created = Plan({"aws_sqs_queue.control": ResourceChange("aws_sqs_queue.control", ("create",))})
    fake = SimpleNamespace(folders={}, endpoint=None, cloud_name="AWS", program="terraform")
    monkeypatch.setattr(deployment_stack, "build_context", lambda *_: fake)
    monkeypatch.setattr(fleet_plans, "create", lambda _: [StackPlan("batch-mine", 40, Plan({}) if calls else created)])
    monkeypatch.setattr(apply, "apply", lambda *_: record("apply"))
    monkeypatch.setattr(apply, "run_terraform", lambda *_, **__: record("destroy"))
    monkeypatch.setattr(BatchKind, "stop_work", lambda *_: record("stop jobs"))
    state = StackState({}, ("aws_sqs_queue.control",))
    monkeypatch.setattr(context, "read_states", lambda _: {"batch-mine": state})
    return calls


def count_workers(cluster: ControlPlane) -> Counter[str]:
    """Workers on each node, once all of the newest are scheduled."""
    pods = cluster.api.list_objects(POD, NAMESPACE, labels=f"{OWN},inference/kind=worker")
    return Counter(pod["spec"].get("nodeName", "") for pod in pods if "deletionTimestamp" not in pod["metadata"])


def test_a_batch_runs_on_spot_nodes_first_and_leaves_nothing_behind(
    cluster: ControlPlane, stack_calls: list[str], working_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(command: str, *words: str) -> str:
        code = main.run([command, "mine", "--target", "eks", *words])
        output = capfd.readouterr()
        assert code == 0, output.err
        return output.out + output.err

    shown = run("deploy", "--yes")
    assert "created: aws_sqs_queue.control" in shown and "+ Deployment mine-batch-worker" in shown
    assert "mine: is up at http://mine-batch-api.serving:8080" in shown
    assert stack_calls == ["apply beside 0 pods"], "a pod gets its role as it starts, so the stack was first"
    assert "Warning" not in next(working_folder.rglob("eks.log")).read_text(), "the API server takes every object"
    assert count_workers(cluster) == {"spot-0": 3, "spot-1": 3}
    [api] = cluster.api.list_objects(POD, NAMESPACE, labels=f"{OWN},inference/kind=api")
    assert api["spec"]["nodeName"] == "plain"
    _check_budget_and_service(cluster, api)
    assert Counter(
        member["role"] for member in json.loads(run("status", "--json").partition("\n}\n")[0] + "}")["members"]
    ) == {
        "batch-worker": 6,
        "batch-api": 1,
    }
    plan = planning.plan(Path("mine"), Path("fleet.yaml"), target="eks")
    with release.open_tunnel(plan) as url, urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        assert answer.status == 200, "as `blueprint batch submit` reaches the Batch API"
    assert "mine: no change" in run("deploy", "--yes")

    cluster.patch(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/mine-batch-worker", spec={"replicas": 8})
    processes.wait_until(lambda: count_workers(cluster).total() == 8 and not count_workers(cluster)[""], "workers", 90)
    counts = count_workers(cluster)
    assert (counts["spot-0"], counts["spot-1"]) == (3, 3)
    assert counts["on-demand-0"] + counts["on-demand-1"] == 2, "no spot node has room, and a job goes on"

    _edit(working_folder, "count: 6", "count: 4, spot: off")
    assert {"-  replicas: 6", "+  replicas: 4"} <= set(run("diff").splitlines())
    run("deploy", "--yes")
    processes.wait_until(lambda: count_workers(cluster).total() == 4, "the former workers", 90)
    assert {node.rpartition("-")[0] for node in count_workers(cluster)} == {"on-demand"}

    run("destroy", "--yes")
    assert stack_calls[-2:] == ["stop jobs beside 0 pods", "destroy beside 0 pods"], "what pods use goes after them"
    assert cluster.list_names(*RELEASED, namespace=NAMESPACE, labels=OWN) == []


def _check_budget_and_service(cluster: ControlPlane, api: dict[str, Any]) -> None:
    def is_counted() -> bool:
        return cluster.read(BUDGET, "mine-batch-worker", NAMESPACE).get("status", {}).get("currentHealthy") == 6

    processes.wait_until(is_counted, "the disruption budget", 90)
    budget = cluster.read(BUDGET, "mine-batch-worker", NAMESPACE)["status"]
    assert (budget["disruptionsAllowed"], budget["desiredHealthy"]) == (2, 4), "a quarter of six, rounded up"
    [endpoints] = cluster.api.list_objects(ENDPOINTS, NAMESPACE, labels="kubernetes.io/service-name=mine-batch-api")
    assert [port["port"] for port in endpoints["ports"]] == [8080]
    assert [address for entry in endpoints["endpoints"] for address in entry["addresses"]] == [api["status"]["podIP"]]


def _edit(folder: Path, old: str, new: str) -> None:
    file = folder / "mine" / "blueprint.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_release_of_another_chart_is_not_touched(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planning.plan(Path("mine"), Path("fleet.yaml"), target="eks", account="123456789012")
    history = [{"revision": 1, "status": "deployed", "chart": "inference-0.1.0"}]
    monkeypatch.setattr(helm, "run_query", lambda *_: json.dumps(history))
    monkeypatch.setattr(release.addons, "require_tools", lambda *_: None)
    for operation in (release.diff, release.destroy):
        with pytest.raises(CheckFailed) as refusal:
            operation(plan)
        assert str(refusal.value) == (
            "mine: a release of the chart inference has this name. Nothing was changed. Fix: choose another `name` in "
            "mine/blueprint.yaml"
        )


def test_kueue_has_the_workers_queue_and_a_quota_for_all_that_they_ask_for(working_folder: Path) -> None:
    plan = planning.plan(Path("mine"), Path("fleet.yaml"), target="eks", account="123456789012")
    worker, _ = plan.deployment.services
    manifests = kueue_manifests.build(plan.fleet.value)
    queues = {item["metadata"]["name"]: item for item in manifests if item["kind"] == "LocalQueue"}
    assert queues[worker.placement.queue]["metadata"]["namespace"] == plan.deployment.environment.namespace
    [quota] = [item for item in manifests if item["kind"] == "ClusterQueue" and item["metadata"]["name"] == "cores"]
    [resources] = quota["spec"]["resourceGroups"]
    assert {"cpu", "memory", "ephemeral-storage"} <= set(resources["coveredResources"])
