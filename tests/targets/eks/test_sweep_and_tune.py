"""`blueprint sweep` and `blueprint tune` on EKS: a real control plane, a Job for each load, the embedded S3.

Nodes are simulated, and nothing routes services: a server with known delays stands in for the engines. It answers as
many requests at once as pods of the deployment are ready.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes, program
from llm_serving.cli import main
from llm_serving.fleet.loading import load_fleet
from llm_serving.operations.kube_api import POD
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.eks import readiness, release
from llm_serving.targets.eks.target import EksTarget
from llm_serving.targets.on_aws import images
from llm_serving.workflows import tune
from tests.control_plane import machines
from tests.control_plane.control_plane import NODE, ControlPlane
from tests.targets.eks import test_load_job as jobs
from tests.targets.on_aws import measured_replicas
from tests.targets.on_aws.measured_replicas import ReplicaLoader
from tests.validation.remote import containers
from tests.validation.remote.containers import ProcessContainers

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an AWS with the fleet's bucket for results."""
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as endpoint:
        measured_replicas.create_results_bucket(endpoint, load_fleet(ROOT / "fleet.yaml").value)
        yield endpoint


@pytest.fixture
def cluster(
    control_plane: ControlPlane, aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlPlane]:
    """The cluster of fleet.yaml, which the working directory's blueprint `mine` can be deployed to."""
    monkeypatch.chdir(tmp_path)
    measured_replicas.write_blueprint(tmp_path)
    shutil.copy(ROOT / "fleet.yaml", tmp_path)
    for name, value in {
        **control_plane.environment,
        "AWS_ENDPOINT_URL": aws,
        "AWS_ACCESS_KEY_ID": emulator.get_access_key(aws),
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(readiness, "_POLL_INTERVAL_S", 0.4)
    monkeypatch.setattr(images, "require_images", lambda *_: None)
    nodes = [
        machines.build_plain("plain"),
        *machines.build_for_pool(load_fleet(Path("fleet.yaml")).value, "general", 2),
    ]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}
    control_plane.api.apply([*nodes, namespace])
    yield control_plane
    control_plane.api.delete_all(NODE, timeout_s=60)


@pytest.fixture
def launched(cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run what the pods of each Job would run; return the Jobs' pods."""
    package = containers.copy_package(tmp_path / "image")
    pods: list[str] = []

    @contextlib.contextmanager
    def launch(_: EksTarget, plan: DeploymentPlan, urls: Sequence[str], __: int) -> Iterator[ProcessContainers]:
        secrets = tmp_path / f"secrets-{len(pods)}"
        secrets.mkdir()
        with jobs.run_pods(cluster, plan, package, secrets, urls) as started:
            pods.extend(pod["metadata"]["name"] for pod in jobs.list_pods(cluster))
            yield started

    monkeypatch.setattr(EksTarget, "launch_drivers", launch)
    return pods


def list_engines(cluster: ControlPlane, name: str) -> list[dict[str, Any]]:
    labels = f"app.kubernetes.io/instance={name},inference/kind=engine"
    return cluster.api.list_objects(POD, "serving", labels=labels)


def count_ready(cluster: ControlPlane, name: str) -> int:
    """Count those that are not to end: a pod may stay ready for a while after its deletion."""
    engines = list_engines(cluster, name)
    return sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in engines)


def is_ready(pod: dict[str, Any]) -> bool:
    return {"type": "Ready", "status": "True"}.items() <= {
        key: value
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "Ready"
        for key, value in condition.items()
    }.items()


def test_each_load_of_a_sweep_is_a_job_of_its_own(
    cluster: ControlPlane, launched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured_replicas.sweep(EksTarget, lambda name: count_ready(cluster, name), capsys)
    jobs_of_loads = {pod.rpartition("-load-")[2][:8] for pod in launched}
    assert len(jobs_of_loads) >= len(result["points"]), "one that shows nothing is sent again"
    processes.wait_until(lambda: not jobs.list_belongings(cluster), "the end of all Jobs", 90)


def test_configurations_replace_one_another_in_the_cluster_and_an_interruption_leaves_none(
    cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = ReplicaLoader(lambda name: count_ready(cluster, name))
    monkeypatch.setattr(tune, "Loader", loader)
    command = ["tune", "mine", "--target", "eks", "--over", "roles.worker.replicas=2,1", "--yes", "--json"]
    loader.interrupted_at = 2
    assert main.run(command) == program.INTERRUPTED
    assert loader.seen == [2] and list_engines(cluster, "mine-tune") == []
    loader.interrupted_at = 0
    assert main.run(command) == 0, capsys.readouterr().err
    state = json.loads(capsys.readouterr().out)
    assert [trial["state"] for trial in state["trials"]] == ["kept", "dropped"]
    assert state["trials"][0]["kept"]["load"] == 8 and state["usd"] > 0
    assert set(loader.seen[1:-1]) == {2} and loader.seen[-1] == 1, "the second has one pod where the first had two"
    assert list_engines(cluster, "mine-tune") == [], "nothing is left"


def test_what_cannot_be_removed_is_named_with_the_command_that_removes_it(
    cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "Loader", ReplicaLoader(lambda name: count_ready(cluster, name)))
    remove = release.destroy

    def fail(_: DeploymentPlan) -> bool:
        raise Unavailable("helm uninstall mine-tune: the cluster does not answer")

    monkeypatch.setattr(release, "destroy", fail)
    command = ["tune", "mine", "--target", "eks", "--over", "roles.worker.replicas=1", "--yes"]
    assert main.run(command) == 1
    fix = measured_replicas.read_fix(capsys.readouterr().err, "helm uninstall mine-tune: the cluster does not answer")
    assert len(list_engines(cluster, "mine-tune")) == 1
    monkeypatch.setattr(release, "destroy", remove)
    assert main.run(fix) == 0
    assert list_engines(cluster, "mine-tune") == []
