"""A load from inside the cluster: a real control plane takes and schedules the Job, and what its pods would run runs.

Nodes are simulated and run no containers. So each pod's command line, as the API server has it, is run as a process, with
the pod's environment and Secret, on the image's own files.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import own_image
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.kinds.serving.validation import validate as run
from llm_serving.operations.kube_api import POD
from llm_serving.rehearsal import emulator
from llm_serving.services.load_program import LoadProgram, MountedSecret
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import load_job
from llm_serving.targets.eks.load_job import LoadJob
from llm_serving.validation.base import LoadSource
from llm_serving.validation.remote import play as remote_play
from llm_serving.validation.remote.play import RemoteDrivers
from tests import known_server
from tests.control_plane import machines
from tests.control_plane.control_plane import ACCOUNT, JOB, NETWORK_POLICY, NODE, SECRET, ControlPlane
from tests.validation.conftest import build_deployment, build_options
from tests.validation.remote import containers
from tests.validation.remote.containers import ProcessContainers

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "serving"
LABELS = "app.kubernetes.io/component=load-driver"
BUCKET = "demo-results"

pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def plan(control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentPlan:
    """The pattern's plan for a cluster that the kubeconfig leads to."""
    for name, value in control_plane.environment.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(ROOT / "blueprints" / "aggregated", tmp_path / "mine")
    session = AwsSession("us-west-2").with_kubeconfig(control_plane.kubeconfig)
    return planning.plan(
        tmp_path / "mine", ROOT / "fleet.yaml", target="eks", root=tmp_path, aws=session, account="123456789012"
    )


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Three nodes, one of which runs an engine of the deployment; of earlier Jobs nothing is left."""
    engine = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "mine-worker",
            "namespace": "serving",
            "labels": {"app.kubernetes.io/instance": "mine", "inference/kind": "engine"},
        },
        "spec": {"nodeName": "plain-0", "containers": [{"name": "engine", "image": "vllm:0"}]},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}
    nodes = [machines.build_plain(f"plain-{number}") for number in range(3)]
    control_plane.api.apply([*nodes, namespace])
    processes.wait_until(lambda: bool(control_plane.api.find(ACCOUNT, "default", NAMESPACE)), "account", 90)
    control_plane.api.apply([engine])
    processes.wait_until(lambda: not list_belongings(control_plane), "the end of all that earlier Jobs owned", 90)
    processes.wait_until(lambda: all(is_ready(control_plane, node) for node in nodes), "the nodes", 90)
    yield control_plane
    control_plane.remove(engine, *nodes)


def is_ready(cluster: ControlPlane, node: dict[str, Any]) -> bool:
    """Whether a node is ready, and has lost the taint of one that is not yet."""
    current = cluster.read(NODE, node["metadata"]["name"])
    conditions = {condition["type"]: condition["status"] for condition in current["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "taints" not in current["spec"]


def list_pods(cluster: ControlPlane) -> list[dict[str, Any]]:
    pods = cluster.api.list_objects(POD, NAMESPACE, labels=LABELS)
    return sorted(pods, key=lambda pod: str(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def wait_for_nodes(cluster: ControlPlane, count: int) -> list[dict[str, Any]]:
    """The pods, once the scheduler has given each a node."""

    def is_scheduled() -> bool:
        pods = list_pods(cluster)
        return len(pods) == count and all("nodeName" in pod["spec"] for pod in pods)

    processes.wait_until(is_scheduled, "the scheduler", 90)
    return list_pods(cluster)


def list_belongings(cluster: ControlPlane) -> list[str]:
    return cluster.list_names(JOB, POD, SECRET, NETWORK_POLICY, namespace=NAMESPACE, labels=LABELS)


def read_argument(cluster: ControlPlane, pod: dict[str, Any], folder: Path) -> str:
    """What kubelet would pass to the image's entry point, with the Secret mounted below `folder`."""
    [container] = pod["spec"]["containers"]
    index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
    [variable] = [entry for entry in container["env"] if entry["name"] == "JOB_COMPLETION_INDEX"]
    assert "job-completion-index" in variable["valueFrom"]["fieldRef"]["fieldPath"]
    [argument] = container["args"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    [volume] = [entry for entry in pod["spec"]["volumes"] if entry["name"] == "inputs"]
    secret = cluster.read(SECRET, volume["secret"]["secretName"], NAMESPACE)
    for name, value in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    path = Path(argument.replace("$(JOB_COMPLETION_INDEX)", index))
    return str(folder / path.relative_to(mounts["inputs"]))


@contextlib.contextmanager
def run_pods(
    cluster: ControlPlane, plan: DeploymentPlan, package: Path, folder: Path, urls: Sequence[str]
) -> Iterator[ProcessContainers]:
    """Create the Job, and run what its pods would run once they have a node."""
    standing_in = ProcessContainers(package, folder / "containers.log")
    with load_job.run(plan, urls, limit_s=600):
        pods = wait_for_nodes(cluster, len(urls))
        processes.wait_until(
            lambda: any(name.startswith("Secret/") for name in list_belongings(cluster)), "the Secret", 90
        )
        with standing_in.launch([read_argument(cluster, pod, folder) for pod in pods]) as started:
            yield started


def test_the_jobs_pods_send_one_load_and_leave_nothing(
    cluster: ControlPlane, plan: DeploymentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_play, "POLL_S", 0.2)
    package = containers.copy_package(tmp_path / "image")
    secrets = tmp_path / "secret"
    secrets.mkdir()
    with emulator.start(tmp_path / "aws", bare=True) as endpoint, known_server.run_server() as url:
        aws = emulator.open_session(endpoint, "us-east-1")
        aws.client("s3").create_bucket(Bucket=BUCKET)
        drivers = RemoteDrivers(aws, BUCKET, lambda urls: run_pods(cluster, plan, package, secrets, urls), 240)
        source = LoadSource("From the Job.", play=drivers.play, max_processes=4)
        traffic = {"arrivals": "20/s", "requests": 40, "input_tokens": 20, "output_tokens": 4}
        deployment: ServingDeployment = build_deployment(url, traffic, {"ttft_ms": {"p50": 20_000}})
        report, _ = run.validate(deployment, build_options(tmp_path, load_source=source))
    assert report.requests.model_dump() == {"total": 40, "failed": 0, "by_error": {}, "planned": 40}
    assert report.missed == []
    processes.wait_until(lambda: not list_belongings(cluster), "the end of the Job and all that it owns", 90)


def test_the_api_server_takes_every_object_without_a_warning(cluster: ControlPlane, plan: DeploymentPlan) -> None:
    job = load_job.build_job(plan, "mine-load-x", 2, limit_s=600)
    belongings = load_job.build_belongings(plan, "mine-load-x", "0" * 8, ["http://x"])
    assert cluster.find_errors([job, *belongings]) == []
    job["spec"]["template"]["spec"]["topologySpreadConstraints"][0]["maxSkew"] = 0
    assert cluster.find_errors([job]), "the check can fail"


def test_pods_go_to_different_nodes_apart_from_the_engines(
    cluster: ControlPlane, plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_job = load_job.build_job

    def build_lasting_job(*values: Any, **named: Any) -> dict[str, Any]:
        """The scheduler counts a pod as its neighbour's for as long as it runs."""
        job = build_job(*values, **named)
        job["spec"]["template"]["metadata"]["annotations"]["play"] = "stay"
        return job

    monkeypatch.setattr(load_job, "build_job", build_lasting_job)
    cluster.wait_for_scheduler(["plain-1", "plain-2"])
    with load_job.run(plan, ["http://x/0", "http://x/1"], limit_s=600):
        pods = wait_for_nodes(cluster, 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"plain-1", "plain-2"}


def test_pods_have_no_token_no_capability_and_the_image_of_this_code(plan: DeploymentPlan) -> None:
    spec = load_job.build_job(plan, "mine-load-x", 2, limit_s=600)["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["image"] == own_image.LOAD_DRIVER.format_image("123456789012.dkr.ecr.us-west-2.amazonaws.com/demo")
    assert spec["automountServiceAccountToken"] is False and "serviceAccountName" not in spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip


def test_a_pod_without_a_node_is_described_by_the_scheduler(control_plane: ControlPlane, plan: DeploymentPlan) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}
    control_plane.api.apply([namespace])
    with load_job.run(plan, ["http://x"], limit_s=600) as job:
        processes.wait_until(lambda: "no nodes available" in job.describe(), "the scheduler's reason", 90)
        assert job.find_failure() is None


def test_a_secret_that_a_program_needs_and_that_is_not_there_is_named_before_anything_starts(
    cluster: ControlPlane, plan: DeploymentPlan
) -> None:
    program = LoadProgram("registry.example/p:1", ("p",), secrets={"/login/file": MountedSecret("mine-login", "key")})
    with pytest.raises(Unavailable) as error, load_job.run(plan, ["http://x"], limit_s=600, program=program):
        raise AssertionError("nothing is to start")
    assert str(error.value) == (
        "the Secret mine-login does not exist: the deployment is older than its load driver, or no operator has made it. "
        "Fix: run blueprint deploy."
    )
    assert list_belongings(cluster) == []
    metadata = {"name": "mine-login", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"key": "of the user"}}
    cluster.api.apply([secret])
    try:
        with load_job.run(plan, ["http://x"], limit_s=600, program=program):
            [pod] = wait_for_nodes(cluster, 1)
    finally:
        cluster.api.delete_objects([secret], timeout_s=60)
    [container] = pod["spec"]["containers"]
    assert (container["image"], container["command"]) == ("registry.example/p:1", ["p"])
    assert container["args"][0].startswith("/etc/load-driver/")
    processes.wait_until(lambda: not list_belongings(cluster), "the end of the Job and all that it owns", 90)


def test_a_failed_pod_is_named_with_the_end_of_its_log(
    cluster: ControlPlane, plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    build: Callable[..., dict[str, Any]] = load_job.build_job

    def build_failing(*arguments: Any, **options: Any) -> dict[str, Any]:
        job = build(*arguments, **options)
        job["spec"]["template"]["metadata"]["annotations"]["play"] = "fail"
        return job

    monkeypatch.setattr(load_job, "build_job", build_failing)
    cluster.pods_log.write_text("2026-11-23T00:00:00.000000000Z stdout F the load's input is gone\n")
    with load_job.run(plan, ["http://x"], limit_s=600) as job:
        wait: LoadJob = job
        processes.wait_until(lambda: wait.find_failure() is not None, "the failure", 90)
        assert re.fullmatch(r"mine-load-\w+-0-\w+: it failed\nthe load's input is gone", wait.find_failure() or "")


def test_a_job_whose_creator_was_killed_takes_everything_with_it(cluster: ControlPlane, plan: DeploymentPlan) -> None:
    with pytest.raises(subprocess.TimeoutExpired), load_job.run(plan, ["http://x"], limit_s=600):
        wait_for_nodes(cluster, 1)
        [job] = cluster.api.list_objects(JOB, NAMESPACE, labels=LABELS)
        assert job["spec"]["ttlSecondsAfterFinished"] == 300
        # What the controller of finished Jobs does then.
        cluster.api.delete(JOB, job["metadata"]["name"], NAMESPACE)
        processes.wait_until(lambda: not list_belongings(cluster), "all that the Job owns", 90)
        raise subprocess.TimeoutExpired("job", 0)
