"""Deploying to EKS: the command line, the real helm and a real control plane.

Nodes are simulated: no container runs, and a pod's annotation decides whether it is ready at once or fails. A server
with known delays answers behind the tunnel to a pod. tests/targets/test_probe.py covers the probes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml

from llm_serving import paths, processes
from llm_serving.cli import main
from llm_serving.console import CommandFailed
from llm_serving.fleet.loading import load_fleet as read_fleet
from llm_serving.operations.kube_api import POD, Kind, KubeApi
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import helm, pods, readiness, release
from tests import go_programs
from tests.control_plane import machines
from tests.control_plane.control_plane import (
    BUDGET,
    DEPLOYMENT,
    ENDPOINTS,
    NETWORK_POLICY,
    NODE,
    RELEASED,
    SECRET,
    ControlPlane,
)

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "serving"
NAMESPACE_FLAGS = ("--namespace", NAMESPACE)
WORKERS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/mine-worker"
ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute")
SETS = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
SCALED = Kind("keda.sh/v1alpha1", "ScaledObject")
FLINK = Kind("flink.apache.org/v1beta1", "FlinkDeployment")
STREAM = """\
kind: streaming
pattern: near-real-time
endpoint: {url: "http://chat-router:8080", model: tiny}
eks: {image: "registry.example/stream-job:1", cache: "redis://valkey.cache:6379", state_class: efs}
"""
GPUS = 3
"""Machines of the pool `general`, of one accelerator each; the pattern takes two."""

pytestmark = pytest.mark.timeout(300, func_only=True)  # the fixture may wait for a build


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


RunCli = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Machines of the pool that the pattern takes, and one without an accelerator; nothing is deployed."""
    fleet = read_fleet(ROOT / "fleet.yaml").value
    nodes = [machines.build_plain("plain"), *machines.build_for_pool(fleet, "general", GPUS)]
    control_plane.api.apply(nodes)
    yield control_plane
    uninstall(control_plane, "mine")
    control_plane.api.delete_all(NODE, timeout_s=60)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a fleet and the blueprint `mine`."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder / "mine")
    shutil.copy(ROOT / "fleet.yaml", folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(readiness, "_POLL_INTERVAL_S", 0.4)
    monkeypatch.setattr(release.images, "require_images", lambda *_: None)
    return folder


class Clock:
    """A clock that may be ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def expire_when(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Expire the startup deadline, half an hour, once the cluster reports all given words."""
    clock, original = Clock(), readiness.list_pending_roles
    monkeypatch.setattr(readiness, "time", clock)

    def set_up(*words: str) -> None:
        def find_late(plan: DeploymentPlan) -> Iterator[str]:
            late_lines = list(original(plan))
            if not clock.ahead_s and all(
                word in "\n".join([*late_lines, *readiness._describe_failures(plan)]) for word in words
            ):
                clock.ahead_s = 3600
            return iter(late_lines)

        monkeypatch.setattr(readiness, "list_pending_roles", find_late)

    return set_up


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> RunCli:
    """The command line."""

    def run(command: str, *words: str, folder: str = "mine") -> CommandResult:
        capfd.readouterr()
        code = main.run([command, folder, "--target", "eks", *words])
        output = capfd.readouterr()
        return CommandResult(code, output.out, output.err)

    return run


@pytest.fixture
def connected_cluster(cluster: ControlPlane, working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """The cluster, to which the kubeconfig leads."""
    for key, value in cluster.environment.items():
        monkeypatch.setenv(key, value)
    return cluster


@pytest.fixture
def running_release(connected_cluster: ControlPlane, run_cli: RunCli) -> None:
    """Deploy `mine` as the pattern has it; tests must restore its state."""
    workers = connected_cluster.api.find(DEPLOYMENT, "mine-worker", NAMESPACE) or {"spec": {"replicas": 0}}
    if (workers["spec"]["replicas"], workers.get("status", {}).get("readyReplicas")) != (2, 2):
        result = run_cli("deploy", "--yes")
        assert result.code == 0, result.err


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def list_pods(cluster: ControlPlane) -> dict[str, list[dict[str, Any]]]:
    """The release's pods by role, but for those that are to end."""
    pods_by_role: dict[str, list[dict[str, Any]]] = {}
    for pod in cluster.api.list_objects(POD, NAMESPACE, labels="app.kubernetes.io/instance=mine,inference/kind"):
        if "deletionTimestamp" not in pod["metadata"]:
            pods_by_role.setdefault(pod["metadata"]["labels"]["app.kubernetes.io/component"], []).append(pod)
    return pods_by_role


def list_machines(role_pods: list[dict[str, Any]]) -> set[str]:
    return {pod["spec"].get("nodeName", "").rpartition("-")[0] or pod["spec"]["nodeName"] for pod in role_pods}


def list_uids(pods_by_role: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {pod["metadata"]["uid"] for role_pods in pods_by_role.values() for pod in role_pods}


def test_deploy_shows_the_objects_waits_until_ready_and_sends_a_test_request(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    code, out, err = run_cli("deploy", "--yes")
    assert code == 0, err
    assert "+ Deployment mine-worker" in err, "what will change is shown before"
    assert "$ helm test mine" in err
    assert out == "mine: is up at http://mine.serving.svc:8080\n"
    pods_by_role = list_pods(connected_cluster)
    assert {role: list_machines(role_pods) for role, role_pods in pods_by_role.items()} == {
        "worker": {"general"},
        "router": {"plain"},
    }
    assert "Warning" not in next(working_folder.rglob("eks.log")).read_text(), (
        "the API server has nothing against an object"
    )
    status = run_cli("status", "--json")
    assert status.code == 0, status
    assert json.loads(status.out)["members"][0]["state"] == "ready"


def test_a_second_deploy_changes_nothing_and_an_edit_shows_as_its_difference(
    running_release: None, connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    before = list_uids(list_pods(connected_cluster))
    code, out, _ = run_cli("deploy", "--yes")
    assert (code, out) == (0, "mine: no change; it is up at http://mine.serving.svc:8080\n")
    assert list_uids(list_pods(connected_cluster)) == before
    edit(working_folder / "mine/blueprint.yaml", "replicas: 2", "replicas: 3")
    code, out, _ = run_cli("diff")
    assert code == 0
    assert {"-  replicas: 2", "+  replicas: 3"} <= set(out.splitlines())
    assert run_cli("diff", "--exit-code").code == 1


def test_what_somebody_has_changed_by_hand_is_shown_and_restored(
    running_release: None, connected_cluster: ControlPlane, run_cli: RunCli
) -> None:
    connected_cluster.patch(WORKERS, spec={"replicas": 0})
    connected_cluster.api.delete(NETWORK_POLICY, "mine-worker", NAMESPACE)
    code, out, _ = run_cli("diff")
    assert code == 0
    assert {"-  replicas: 0", "+  replicas: 2", "+kind: NetworkPolicy"} <= set(out.splitlines())
    assert run_cli("deploy", "--yes").code == 0
    assert connected_cluster.read(DEPLOYMENT, "mine-worker", NAMESPACE)["spec"]["replicas"] == 2
    assert connected_cluster.read(NETWORK_POLICY, "mine-worker", NAMESPACE)
    assert run_cli("diff").out == "No changes\n"


def test_helm_4_takes_back_what_somebody_has_changed_by_hand(
    connected_cluster: ControlPlane, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a release that it has made, by server-side apply, Helm 4 upgrades no field that another program owns."""
    program = Path(go_programs.find_or_build(go_programs.HELM_4))
    uninstall(connected_cluster, "mine")
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    try:
        assert run_cli("deploy", "--yes").code == 0
        connected_cluster.patch(WORKERS, spec={"replicas": 0})
        code, _, err = run_cli("deploy", "--yes")
        assert code == 0, err
        assert connected_cluster.read(DEPLOYMENT, "mine-worker", NAMESPACE)["spec"]["replicas"] == 2
    finally:
        uninstall(connected_cluster, "mine")


def test_diff_does_not_overwrite_an_edited_rendered_file(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    run_cli("render")
    rendered = working_folder / "rendered/mine/eks/eks.yaml"
    rendered.write_text(rendered.read_text() + "# mine\n")
    assert run_cli("diff").code == 0
    assert rendered.read_text().endswith("# mine\n")
    code, _, err = run_cli("deploy", "--yes")
    assert code == 2 and "eks.yaml" in err, "deploying asks before it is overwritten"


def test_a_declined_deploy_changes_nothing(
    running_release: None, connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    before = connected_cluster.list_names(DEPLOYMENT, namespace=NAMESPACE)
    edit(working_folder / "mine/blueprint.yaml", "replicas: 2", "replicas: 3")
    code, _, err = run_cli("deploy")
    assert code == 2, "there is nobody to ask"
    assert "--yes" in err
    assert len(list_pods(connected_cluster)["worker"]) == 2
    assert connected_cluster.list_names(DEPLOYMENT, namespace=NAMESPACE) == before


def test_an_unschedulable_replica_rolls_the_deployment_back_with_its_reason(
    running_release: None,
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    expire_when: Callable[..., None],
) -> None:
    expire_when(f"worker {GPUS} of {GPUS + 1}", f"{GPUS} Insufficient nvidia.com/gpu")
    before = {pod["metadata"]["uid"] for pod in list_pods(connected_cluster)["worker"]}
    edit(working_folder / "mine/blueprint.yaml", "replicas: 2", f"replicas: {GPUS + 1}")
    code, _, err = run_cli("deploy", "--yes")
    assert code == 1
    assert "mine is not ready: " in err and f"worker {GPUS} of {GPUS + 1}" in err
    assert f"0/{GPUS + 1} nodes are available" in err and f"{GPUS} Insufficient nvidia.com/gpu" in err
    assert err.endswith("rolled back: the previous revision runs\n")
    # Kubernetes ends any one of the three that run, if they became ready at about the same time.
    assert before & {pod["metadata"]["uid"] for pod in list_pods(connected_cluster)["worker"]}, "one was left to serve"


def test_a_crashing_version_is_rolled_back_with_its_log_while_the_old_one_serves(
    running_release: None,
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    expire_when: Callable[..., None],
) -> None:
    expire_when("CrashLoopBackOff")
    before = {pod["metadata"]["uid"] for pod in list_pods(connected_cluster)["worker"]}
    connected_cluster.pods_log.write_text(
        "2026-11-01T00:00:00.000000000Z stdout F ValueError: no room for the KV cache\n"
    )
    edit(
        working_folder / "mine/eks.yaml.j2",
        "{% include",
        "defaults: {engine: {annotations: {play: crash}}}\n{% include",
    )
    code, _, err = run_cli("deploy", "--yes")
    assert code == 1
    assert ": CrashLoopBackOff, 4 restarts\n" in err
    assert "ValueError: no room for the KV cache" in err
    assert err.endswith("rolled back: the previous revision runs\n")
    assert before & {pod["metadata"]["uid"] for pod in list_pods(connected_cluster)["worker"]}, "one was left to serve"


def test_after_a_killed_helm_nothing_is_rolled_back_and_the_fix_is_shown(
    running_release: None, connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    run_cli("render")
    release = ["mine", *NAMESPACE_FLAGS, "--values", "rendered/mine/eks/eks.yaml", str(paths.CHARTS / "inference")]
    upgrade = subprocess.Popen(
        [connected_cluster.helm, "upgrade", *release, "--set", f"roles.worker.replicas={GPUS + 2}", "--wait"]
    )

    def list_pending() -> list[str]:
        labels = "owner=helm,name=mine,status=pending-upgrade"
        return connected_cluster.list_names(SECRET, namespace=NAMESPACE, labels=labels)

    processes.wait_until(lambda: bool(list_pending()), "helm's work", 90)
    upgrade.kill()
    upgrade.wait()
    code, _, err = run_cli("deploy", "--yes")
    assert code == 1
    message = err.splitlines()[-1]
    assert message.startswith("mine: another helm operation is in progress. Nothing was changed. Fix: wait for it; ")
    assert list_pending(), "helm's work was not touched"
    fix = message[message.index("helm rollback") : message.index(" and deploy again")]
    subprocess.run(fix.split(), check=True, timeout=240, capture_output=True)
    assert run_cli("deploy", "--yes").out == "mine: no change; it is up at http://mine.serving.svc:8080\n"


def test_a_failed_test_request_rolls_the_deployment_back(
    running_release: None, connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    connected_cluster.pods_log.write_text("2026-11-01T00:00:00.000000000Z stdout F no answer in 60 s\n")
    edit(working_folder / "mine/eks.yaml.j2", "{% include", "annotations: {play: silence}\n{% include")
    code, _, err = run_cli("deploy", "--yes")
    assert code == 1
    assert "no answer in 60 s" in err, "the output of the client's pod"
    assert err.endswith("rolled back: the previous revision runs\n")
    assert run_cli("status").code == 0, "the client's pod is no part of the deployment"


@pytest.mark.parametrize(
    ("ready_after", "least", "requests", "fails"),
    [(2, 0, 3, False), (None, 0, 3, True), (None, 1, 1, True), (0, 0, 1, True)],
    ids=["it wakes", "it does not wake", "it may not sleep", "it is awake"],
)
def test_a_test_request_that_wakes_a_role_is_sent_again_for_as_long_as_a_start_takes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ready_after: int | None,
    least: int,
    requests: int,
    fails: bool,
) -> None:
    """Of a worker that is ready after so many requests; a start takes two intervals at most."""
    clock, sent, log = Clock(), list[str](), tmp_path / "eks.log"
    log.touch()
    monkeypatch.setattr(clock, "sleep", lambda seconds: setattr(clock, "ahead_s", clock.ahead_s + seconds))
    monkeypatch.setattr(release, "time", clock)

    def send(_: object, command: str, *__: str, **___: float) -> None:
        sent.append(command)
        if fails or len(sent) <= (ready_after or 0):
            raise CommandFailed(["helm", command], log, "503")

    def list_replicas(_: object) -> list[SimpleNamespace]:
        is_ready = ready_after is not None and len(sent) >= ready_after
        return [SimpleNamespace(role="worker", state="ready" if is_ready else "pending")]

    monkeypatch.setattr(helm, "run", send)
    monkeypatch.setattr(pods, "list_replicas", list_replicas)
    monkeypatch.setattr(pods, "read_pod_log", lambda *_: "its log")
    monkeypatch.setattr(release.planning, "compute_start_s", lambda _: 1.5 * release._WAKE_INTERVAL_S)
    worker = SimpleNamespace(role="worker", replicas=SimpleNamespace(min=least))
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine", services=[worker]))
    with pytest.raises(CheckFailed, match="its log") if fails else contextlib.nullcontext():
        release._run_chart_test(plan)
    assert sent == ["test"] * requests


@pytest.mark.parametrize("is_stuck", [False, True])
def test_each_replica_that_an_upgrade_replaces_has_the_time_of_a_start(
    monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """Ten of them take six times as long as one start may; of a version that does not start, the first is the last."""
    clock, replaced = Clock(), [0]

    def replace_one(_: object) -> None:
        clock.ahead_s += 60.0
        replaced[0] += not (is_stuck and replaced[0])

    def list_workloads(_: object) -> list[dict[str, Any]]:
        status = {"observedGeneration": 1, "replicas": 10, "updatedReplicas": replaced[0], "readyReplicas": 10}
        metadata = {"generation": 1, "labels": {"app.kubernetes.io/component": "worker"}}
        return [{"metadata": metadata, "spec": {"replicas": 10}, "status": status}]

    monkeypatch.setattr(readiness, "time", clock)
    monkeypatch.setattr(readiness, "_list_workloads", list_workloads)
    monkeypatch.setattr(readiness, "_wait_for_change", replace_one)
    monkeypatch.setattr(readiness, "_describe_failures", lambda _: [])
    monkeypatch.setattr(readiness.planning, "compute_start_s", lambda _: 100)
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine", services=[], workload=None))
    with pytest.raises(CheckFailed, match="worker 1 of 10") if is_stuck else contextlib.nullcontext():
        readiness.wait_until_ready(plan)
    assert replaced == [1 if is_stuck else 10]


def test_a_rollback_that_the_cluster_breaks_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def uninstall(_: object) -> None:
        raise Unavailable("cannot list Pods: timed out")

    monkeypatch.setattr(release, "_uninstall", uninstall)
    plan: Any = SimpleNamespace(deployment=SimpleNamespace(name="mine"))
    assert release._roll_back(plan, helm.Release(None, False, "")) == "rollback failed: cannot list Pods: timed out"


def test_a_first_deployment_that_the_cluster_rejects_is_removed_with_its_reason(
    running_release: None,
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    expire_when: Callable[..., None],
) -> None:
    expire_when("violates PodSecurity")
    shutil.copytree(working_folder / "mine", working_folder / "other")
    edit(working_folder / "other/eks.yaml.j2", "{% include", "defaults: {engine: {user: 0}}\n{% include")
    level = "pod-security.kubernetes.io/enforce"
    root = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root", "namespace": NAMESPACE}}
    root["spec"] = {"containers": [{"name": "root", "image": "root:0"}]}
    connected_cluster.patch(f"/api/v1/namespaces/{NAMESPACE}", metadata={"labels": {level: "restricted"}})
    try:
        processes.wait_until(lambda: bool(connected_cluster.find_errors([root])), "admission to know of it", 90)
        code, _, err = run_cli("deploy", "--yes", folder="other")
    finally:
        connected_cluster.patch(f"/api/v1/namespaces/{NAMESPACE}", metadata={"labels": {level: None}})
    assert code == 1
    assert "other is not ready: " in err and "worker 0 of 2: " in err
    assert 'violates PodSecurity "restricted:latest"' in err and "runAsNonRoot" in err
    assert err.endswith("other had no previous release and was removed\n")
    remaining = " ".join(connected_cluster.list_names(*RELEASED, namespace=NAMESPACE))
    assert "other" not in remaining and "mine" in remaining


def test_status_logs_and_deploy_distinguish_pending_pods_from_running_ones(
    running_release: None,
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    expire_when: Callable[..., None],
) -> None:
    expire_when("worker 1 of 2")
    connected_cluster.pods_log.write_text("2026-11-01T00:00:00.000000000Z stdout F Uvicorn running\n")
    gone, _ = list_pods(connected_cluster)["worker"]

    def wait_for(ready: int) -> None:
        def is_seen() -> bool:
            deployment = connected_cluster.read(DEPLOYMENT, "mine-worker", NAMESPACE)
            return bool(deployment["status"].get("readyReplicas") == ready)

        processes.wait_until(is_seen, "the deployment's controller", 90)

    cordon(connected_cluster, is_on=True)
    try:
        connected_cluster.remove(gone)
        wait_for(1)
        code, _, err = run_cli("deploy", "--yes")
        assert code == 1, "nothing is to be changed, and still it is not up"
        assert "worker 1 of 2" in err
        code, out, err = run_cli("status", "--json")
        assert (code, err.splitlines()[-1]) == (1, "mine: not ready: worker")
        states = [member["state"] for member in json.loads(out)["members"] if member["role"] == "worker"]
        assert states.count("ready") == 1
        code, out, _ = run_cli("logs", "worker", "--lines", "1")
        assert (code, out.count("/engine] Uvicorn running\n")) == (0, 1)
    finally:
        cordon(connected_cluster, is_on=False)
        wait_for(2)


def test_an_adapter_is_changed_in_every_pod_of_a_role_and_a_failure_names_its_pod(
    running_release: None, connected_cluster: ControlPlane, working_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    role = "worker: {pool: general, replicas: 2, accelerators: 1"
    edit(working_folder / "mine/blueprint.yaml", role, f"{role}, adapters: {{sql: s3://models/sql}}")
    edit(working_folder / "fleet.yaml", "spend_limit:", "storage: {model_buckets: {bucket: models}}\nspend_limit:")
    workers = sorted(pod["metadata"]["name"] for pod in list_pods(connected_cluster)["worker"])
    programs = connected_cluster.pods_programs
    programs.mkdir()
    try:
        # The engines' Python: the first of two says that it is done, the other that it is not.
        (programs / "python3").write_text(
            f"#!/bin/sh\nread -r request\nif mkdir {programs}/first 2>/dev/null\n"
            """then echo 'adapter: {"done": "unloaded"}'\nelse echo 'adapter: {"error": "it is busy"}'\nfi\n"""
        )
        (programs / "python3").chmod(0o755)
        capfd.readouterr()
        code = main.run(["adapter", "unload", "mine", "worker", "sql", "--target", "eks"])
    finally:
        shutil.rmtree(programs)
    output = capfd.readouterr()
    assert output.out, output.err
    [done] = [line.removesuffix(": unloaded") for line in output.out.splitlines()]
    [failed] = set(workers) - {done}
    assert done in workers
    assert (code, output.err) == (
        1,
        f"1 of 2 replicas of worker failed:\n  {failed}: it is busy\n"
        "Fix: run the command again; what is done already stays as it is.\n",
    )


def test_validate_plays_the_load_through_the_api_servers_tunnel(
    running_release: None, working_folder: Path, run_cli: RunCli
) -> None:
    code, out, err = run_cli("validate", "--requests", "20", "--load-from", "here", "--json")
    # Twenty requests are enough to see the way there and back, and too few for a verdict.
    assert (code, "this load does not show that mine meets its SLO" in err) == (1, True), err
    assert "to the Service mine port 8080" in err
    report = json.loads(out)
    assert (report["verdict"], report["missed"]) == ("not shown", [])
    assert (report["requests"]["total"], report["requests"]["failed"]) == (20, 0)
    assert report["remarks"][0].startswith("The load came through one tunnel to one router")


NO_SHARE = (
    "no deployment of this name is in the cluster, and its share of the requests would fail. Nothing was changed."
)
NO_ROUTE = "it is a deployment, whose processes a route of the same name would replace. Nothing was changed."
REFUSED_SHIFTS = [
    (("chat", "mine=90", "mine-v3=10"), f"SHARE: mine-v3: {NO_SHARE} Fix: name one that you have deployed."),
    (("other", "chat=100"), f"SHARE: chat: {NO_SHARE} Fix: name one that you have deployed."),
    (("mine", "mine=90", "mine-v2=10"), f"ROUTE: mine: {NO_ROUTE} Fix: choose another name for the route."),
    (("mine", "--back"), f"ROUTE: mine: {NO_ROUTE} Fix: choose another name for the route."),
]


def test_a_new_version_gets_its_traffic_share_and_one_command_rolls_back(
    running_release: None,
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(working_folder / "mine", working_folder / "mine-v2")
    edit(working_folder / "mine-v2/blueprint.yaml", "replicas: 2", "replicas: 1")
    before = list_uids(list_pods(connected_cluster))
    assert run_cli("deploy", "--yes", folder="mine-v2").code == 0
    try:
        assert list_uids(list_pods(connected_cluster)) == before, "the old version has not noticed"
        assert main.run(["shift", "chat", "mine=90", "mine-v2=10", "--gateway", "edge/public"]) == 0
        assert read_weights(connected_cluster) == {"mine": 90, "mine-v2": 10}
        assert main.run(["shift", "chat", "mine=0", "mine-v2=100", "--gateway", "edge/public"]) == 0
        assert read_weights(connected_cluster) == {"mine": 0, "mine-v2": 100}
        assert main.run(["shift", "chat", "--back"]) == 0
        assert read_weights(connected_cluster) == {"mine": 90, "mine-v2": 10}
        for arguments, message in REFUSED_SHIFTS:
            capfd.readouterr()
            assert main.run(["shift", *arguments]) == 1
            assert capfd.readouterr().err.splitlines()[-1] == message
        assert read_weights(connected_cluster) == {"mine": 90, "mine-v2": 10}
        shutil.copytree(working_folder / "mine", working_folder / "chat")
        for command in ("deploy", "destroy"):
            assert run_cli(command, "--yes", folder="chat").err.splitlines()[-1] == (
                "chat: a route has this name, which sends requests to other deployments. Nothing was changed. Fix: choose "
                "another `name` in chat/blueprint.yaml; to remove the route, run helm uninstall chat --namespace serving."
            )
        assert read_weights(connected_cluster) == {"mine": 90, "mine-v2": 10}
        assert run_cli("destroy", "--yes", folder="mine-v2").err.splitlines()[-1] == (
            "mine-v2: route chat sends it a share of its requests, which would fail. Nothing was changed. Fix: run "
            "blueprint shift chat without it, or helm uninstall chat --namespace serving."
        )
        assert main.run(["shift", "chat", "mine=100", "--gateway", "edge/public"]) == 0
        assert run_cli("destroy", "--yes", folder="mine-v2").code == 0
        capfd.readouterr()
        assert main.run(["shift", "chat", "--back"]) == 1, "to a share of what is gone"
        assert capfd.readouterr().err.splitlines()[-1].startswith(f"SHARE: mine-v2: {NO_SHARE}")
        assert read_weights(connected_cluster) == {"mine": 100}
        route = yaml.safe_load((working_folder / "rendered/chat/eks/chat.yaml").read_text())["route"]
        assert route["gateway"] == {"name": "public", "namespace": "edge", "section": ""}
    finally:
        uninstall(connected_cluster, "mine-v2", "chat")


def read_weights(cluster: ControlPlane) -> dict[str, int]:
    """The route's shares by service, each of which has a pod that is ready behind the port that the route names."""
    [rule] = cluster.read(ROUTE, "chat", NAMESPACE)["spec"]["rules"]

    def has_ready_pod(backend: dict[str, Any]) -> bool:
        labels = f"kubernetes.io/service-name={backend['name']}"
        return any(
            endpoint["conditions"]["ready"] and [port["port"] for port in item["ports"]] == [backend["port"]]
            for item in cluster.api.list_objects(ENDPOINTS, NAMESPACE, labels=labels)
            for endpoint in item["endpoints"] or ()
        )

    # Their controller hears of pods when the deployment does.
    processes.wait_until(lambda: all(map(has_ready_pod, rule["backendRefs"])), "pods behind the route", 90)
    return {backend["name"]: backend["weight"] for backend in rule["backendRefs"]}


def uninstall(cluster: ControlPlane, *releases: str) -> None:
    """Have them go with their pods."""
    words = [cluster.helm, "uninstall", *releases, *NAMESPACE_FLAGS, "--ignore-not-found"]
    environment = {**os.environ, **cluster.environment}
    subprocess.run(words, env=environment, timeout=240, check=True, capture_output=True)
    labels = f"app.kubernetes.io/instance in ({','.join(releases)}),inference/kind"
    processes.wait_until(lambda: not cluster.api.list_objects(POD, NAMESPACE, labels=labels), "the end of pods", 90)


def test_an_eviction_beyond_the_disruption_budget_is_refused(
    running_release: None, connected_cluster: ControlPlane
) -> None:
    names = [pod["metadata"]["name"] for pod in list_pods(connected_cluster)["worker"]]

    def count_evictable() -> int:
        return int(connected_cluster.read(BUDGET, "mine-worker", NAMESPACE)["status"].get("disruptionsAllowed", 0))

    processes.wait_until(lambda: count_evictable() == 1, "the budget's controller", 90)
    cordon(connected_cluster, is_on=True)
    try:
        first, second = (connected_cluster.evict(name, NAMESPACE) for name in names)
    finally:
        cordon(connected_cluster, is_on=False)
    assert first == ""
    assert "would violate the pod's disruption budget" in second


def cordon(cluster: ControlPlane, *, is_on: bool) -> None:
    """Keep new pods away from the pool's machines."""
    for node in cluster.api.list_objects(NODE, labels="fleet/pool=general"):
        cluster.patch(f"/api/v1/nodes/{node['metadata']['name']}", spec={"unschedulable": is_on})


def test_the_router_may_watch_pods_and_the_engines_have_no_permissions(
    running_release: None, connected_cluster: ControlPlane
) -> None:
    accounts = ("engines", "mine-router")
    assert {
        pod["spec"]["serviceAccountName"] for role_pods in list_pods(connected_cluster).values() for pod in role_pods
    } == set(accounts)
    default_rights = list_rights(connected_cluster, "default")
    extra_rights = {name: list_rights(connected_cluster, name) - default_rights for name in accounts}
    assert extra_rights == {"engines": set(), "mine-router": {"get list watch pods"}}


def list_rights(cluster: ControlPlane, account: str) -> set[str]:
    """What a service account may do in its namespace, a line a rule."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    path, user = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", f"system:serviceaccount:{NAMESPACE}:{account}"
    status = json.loads(cluster.request("post", path, review, user=user).data)["status"]
    return {
        " ".join([*sorted(rule["verbs"]), *(rule.get("resources") or rule["nonResourceURLs"])])
        for rule in [*status["resourceRules"], *status["nonResourceRules"]]
    }


def test_destroy_removes_all_objects_and_reports_a_missing_release(
    running_release: None, connected_cluster: ControlPlane, run_cli: RunCli
) -> None:
    assert run_cli("destroy", "--yes").code == 0
    remaining = connected_cluster.list_names(*RELEASED, SETS, SCALED, namespace=NAMESPACE)
    assert set(remaining) <= {"ServiceAccount/engines", "ServiceAccount/default", "ConfigMap/kube-root-ca.crt"}
    code, out, _ = run_cli("destroy", "--yes")
    assert (code, out) == (0, "mine: not deployed on eks\n")
    assert not Path("rendered").exists(), "else it counts in the fleet's costs"


def test_several_models_start_behind_one_router(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    uninstall(connected_cluster, "mine")
    shutil.copytree(ROOT / "blueprints" / "multi-model", working_folder / "models")
    code, out, err = run_cli("deploy", "--yes", folder="models")
    try:
        assert (code, out) == (0, "models: is up at http://models.serving.svc:8080\n"), err
        status = json.loads(run_cli("status", "--json", folder="models").out)
        assert [(member["role"], member["state"]) for member in status["members"]] == [
            ("long", "ready"), ("router", "ready"), ("small", "ready"),
        ]  # fmt: skip
    finally:
        uninstall(connected_cluster, "models")


def test_a_role_that_gives_way_leaves_its_nodes_to_a_peak_and_returns_when_that_ends(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli
) -> None:
    """The peak fills the pool. Without the setting it finds one node and is rolled back, as a test above shows."""
    uninstall(connected_cluster, "mine")
    shutil.copytree(working_folder / "mine", working_folder / "peak")
    edit(working_folder / "mine" / "blueprint.yaml", "replicas: 2", "replicas: 2, gives_way: on")
    edit(working_folder / "peak" / "blueprint.yaml", "replicas: 2", f"replicas: {GPUS}")

    def count_workers(phase: str) -> int:
        return sum(pod["status"]["phase"] == phase for pod in list_pods(connected_cluster).get("worker", []))

    try:
        assert run_cli("deploy", "--yes").code == 0
        code, out, err = run_cli("deploy", "--yes", folder="peak")
        assert (code, out) == (0, "peak: is up at http://peak.serving.svc:8080\n"), err
        processes.wait_until(lambda: count_workers("Pending") == 2, "replicas that wait", 90)
        uninstall(connected_cluster, "peak")
        processes.wait_until(lambda: count_workers("Running") == 2, "their return", 90)
    finally:
        uninstall(connected_cluster, "mine", "peak")


def test_deploy_waits_for_a_replica_over_several_machines(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such controller runs here: what it would write, this test does, once the deployment was seen to wait."""
    shutil.copytree(ROOT / "blueprints" / "distributed", working_folder / "wide")
    shutil.copy(working_folder / "wide/presets/two-machines.yaml", working_folder / "wide/blueprint.yaml")
    pool = "{types: p5.48xlarge, zones: us-west-2a, buy: {capacity-block: cr-0123456789abcdef0}, size: 2, efa: on}"
    edit(working_folder / "fleet.yaml", "pools:\n", f"add_ons: {{schedulers: on}}\npools:\n  p5: {pool}\n")
    seen_late: list[str] = []
    original = readiness.list_pending_roles
    state = {"status": {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}}

    def find_late(plan: DeploymentPlan) -> Iterator[str]:
        late_lines = list(original(plan))
        if late_lines == ["worker 0 of 1"] and not seen_late:
            seen_late.extend(late_lines)
            path = f"/apis/{SETS.api_version}/namespaces/{NAMESPACE}/leaderworkersets/wide-worker/status"
            connected_cluster.patch(path, **state)
        return iter(late_lines)

    monkeypatch.setattr(readiness, "list_pending_roles", find_late)
    code, out, err = run_cli("deploy", "--yes", folder="wide")
    try:
        assert (code, out) == (0, "wide: is up at http://wide.serving.svc:8080\n"), err
        assert seen_late
    finally:
        uninstall(connected_cluster, "wide")


@pytest.mark.parametrize(
    ("framework", "kind", "reason", "state"),
    [
        ("ray", Kind("ray.io/v1", "RayService"), "NonZeroServeEndpoints", {}),
        (
            "dynamo",
            Kind("nvidia.com/v1beta1", "DynamoGraphDeployment"),
            "all_resources_are_ready",
            {"state": "successful"},
        ),
    ],
)
def test_deploy_waits_for_an_operators_word(
    connected_cluster: ControlPlane,
    working_folder: Path,
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
    framework: str,
    kind: Kind,
    reason: str,
    state: dict[str, str],
) -> None:
    """No operator runs here: what it would write, this test does, once the deployment was seen to wait."""
    shutil.copytree(ROOT / "blueprints" / "aggregated", working_folder / "owned")
    edit(working_folder / "owned/blueprint.yaml", "pattern: aggregated", f"pattern: aggregated\nframework: {framework}")
    edit(working_folder / "fleet.yaml", "pools:\n", "add_ons: {operators: on, observability: on}\npools:\n")
    seen_late: list[str] = []
    original = readiness.list_pending_roles
    condition = {"type": "Ready", "status": "True", "reason": reason, "message": ""}
    condition["lastTransitionTime"] = "2026-11-26T00:00:00Z"

    def find_late(plan: DeploymentPlan) -> Iterator[str]:
        late_lines = list(original(plan))
        if late_lines == [f"{kind.kind} owned: not ready"] and not seen_late:
            seen_late.extend(late_lines)
            path = f"/apis/{kind.api_version}/namespaces/{NAMESPACE}/{kind.kind.lower()}s/owned/status"
            connected_cluster.patch(path, status={"observedGeneration": 1, "conditions": [condition], **state})
        return iter(late_lines)

    monkeypatch.setattr(readiness, "list_pending_roles", find_late)
    code, out, err = run_cli("deploy", "--yes", folder="owned")
    try:
        assert (code, out) == (0, "owned: is up at http://owned.serving.svc:8080\n"), err
        assert seen_late
        code, _, err = run_cli("destroy", "--yes", folder="owned")
        assert code == 0, err
        assert connected_cluster.list_names(kind, namespace=NAMESPACE) == []
    finally:
        uninstall(connected_cluster, "owned")


def test_an_operator_of_another_version_is_named_before_anything_changes(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Dynamo before 1.2 the cluster knows DynamoGraphDeployment as v1alpha1 alone."""
    shutil.copytree(ROOT / "blueprints" / "aggregated", working_folder / "graph")
    edit(working_folder / "graph/blueprint.yaml", "pattern: aggregated", "pattern: aggregated\nframework: dynamo")
    original = KubeApi.has_kind
    monkeypatch.setattr(
        KubeApi, "has_kind", lambda api, kind: kind.api_version != "nvidia.com/v1beta1" and original(api, kind)
    )
    code, _, err = run_cli("deploy", "--yes", folder="graph")
    assert (code, err.splitlines()[-1]) == (
        1,
        "graph: the cluster does not know DynamoGraphDeployment (nvidia.com/v1beta1). Nothing was changed. "
        "Fix: install the operators, in the versions that charts/inference/README.md names.",
    )
    assert "Service/graph" not in connected_cluster.list_names(Kind("v1", "Service"), namespace=NAMESPACE)


@pytest.mark.parametrize(
    ("annotations", "owner"), [({"meta.helm.sh/release-name": "a"}, "the release a"), ({}, "no release")]
)
def test_a_name_that_another_releases_object_has_is_refused_before_anything_changes(
    connected_cluster: ControlPlane, working_folder: Path, run_cli: RunCli, annotations: dict[str, str], owner: str
) -> None:
    """Objects of a role are RELEASE-ROLE: those of `a-b` with a role `c` are those of `a` with a role `b-c`."""
    shutil.copytree(ROOT / "blueprints" / "aggregated", working_folder / "a-b")
    metadata = {"name": "a-b-router", "namespace": NAMESPACE, "annotations": annotations}
    pod = {"metadata": {"labels": {"app": "other"}}, "spec": {"containers": [{"name": "other", "image": "other"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "other"}}, "template": pod}
    connected_cluster.api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    connected_cluster.api.create(deployment)
    try:
        code, _, err = run_cli("deploy", "--yes", folder="a-b")
        assert (code, err.splitlines()[-1]) == (
            1,
            f"a-b: its objects have names that are taken: Deployment a-b-router (of {owner}). Nothing was changed. Fix: "
            "choose another `name` in a-b/blueprint.yaml",
        )
    finally:
        connected_cluster.api.delete_objects([deployment], timeout_s=60)  # the next test creates it again


@pytest.fixture
def stream(working_folder: Path) -> Path:
    """A stream that operators run."""
    folder = Path(shutil.copytree(ROOT / "blueprints" / "near-real-time", working_folder / "shop"))
    (folder / "blueprint.yaml").write_text(STREAM)
    return folder


def test_deploy_waits_for_the_job_of_a_stream(
    connected_cluster: ControlPlane, stream: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators of Flink and Strimzi do not run here: what the first would write, this test does."""
    seen_late: list[str] = []
    original = readiness.list_pending_roles
    condition = {"type": "Running", "status": "True", "reason": "Running", "message": "Job status RUNNING"}

    def find_late(plan: DeploymentPlan) -> Iterator[str]:
        late_lines = list(original(plan))
        if late_lines == ["FlinkDeployment shop: not ready"] and not seen_late:
            seen_late.extend(late_lines)
            path = f"/apis/flink.apache.org/v1beta1/namespaces/{NAMESPACE}/flinkdeployments/shop/status"
            connected_cluster.patch(path, status={"observedGeneration": 1, "conditions": [condition]})
        return iter(late_lines)

    monkeypatch.setattr(readiness, "list_pending_roles", find_late)
    try:
        code, _, err = run_cli("deploy", "--yes", folder=stream.name)
        assert code == 0, err
        assert seen_late
        code, _, err = run_cli("validate", "--load-from", "here", folder=stream.name)
        assert (code, err.splitlines()[-1]) == (
            2,
            '--load-from: "here": only the fleet\'s network reaches it. Fix: leave it out.',
        )
        code, _, err = run_cli("destroy", "--yes", folder=stream.name)
        assert code == 0, err
        assert connected_cluster.list_names(FLINK, namespace=NAMESPACE) == []
    finally:
        uninstall(connected_cluster, "shop")


def test_kinds_that_the_cluster_does_not_know_are_named_before_anything_changes(
    connected_cluster: ControlPlane, stream: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = KubeApi.has_kind
    missing = "flink.apache.org/v1beta1", "kafka.strimzi.io/v1"
    monkeypatch.setattr(KubeApi, "has_kind", lambda api, kind: kind.api_version not in missing and original(api, kind))
    code, _, err = run_cli("deploy", "--yes", folder=stream.name)
    assert (code, err.splitlines()[-1]) == (
        1,
        "shop: the cluster does not know FlinkDeployment (flink.apache.org/v1beta1), Kafka (kafka.strimzi.io/v1), "
        "KafkaNodePool (kafka.strimzi.io/v1), KafkaUser (kafka.strimzi.io/v1). Nothing was changed. "
        "Fix: install the operators, in the versions that charts/streaming/README.md names.",
    )


def test_an_unreachable_cluster_is_reported_in_one_line(
    working_folder: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        program = Path(go_programs.find_or_build(go_programs.HELM))
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    code, _, err = run_cli("deploy", "--yes")
    assert code == 3
    last = err.splitlines()[-1]
    assert "Error: Kubernetes cluster unreachable" in last
    assert last.endswith(
        ". Fix: run aws eks update-kubeconfig --name demo --region us-west-2, or blueprint platform tunnel where its "
        "endpoint is private."
    )
    assert "Traceback" not in err
    for arguments in (["mine=90", "mine-v2=10"], ["--back"]):
        assert main.run(["shift", "chat", *arguments]) == 3
        last = capfd.readouterr().err.splitlines()[-1]
        assert "cluster unreachable" in last
        assert ". Fix: run aws eks update-kubeconfig --name CLUSTER, or blueprint platform tunnel where" in last


def test_a_missing_program_is_reported_with_its_installation_guide(
    working_folder: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = run_cli("deploy", "--yes")
    assert code == 3
    assert "not on this machine's PATH: helm" in err and "https://helm.sh/docs/intro/install" in err
