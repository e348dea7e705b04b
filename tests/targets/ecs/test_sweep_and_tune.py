"""`blueprint sweep` and `blueprint tune` on ECS: the real Terraform, and tasks of the embedded AWS for each load.

moto runs no tasks. So each load's containers are processes on the image's own files, a server with known delays stands
in for the engines, and the replicas of a deployment are those that its ECS services ask for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llm_serving import program
from llm_serving.catalog.own_image import LOAD_DRIVER
from llm_serving.cli import main
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs.target import EcsTarget
from llm_serving.workflows import tune
from tests.infra.serving.conftest import FLEET
from tests.targets.ecs import networks
from tests.targets.ecs import test_load_tasks as tasks
from tests.targets.ecs.applied_fleet import REGION, AppliedFleet, apply_fleet
from tests.targets.on_aws import measured_replicas
from tests.targets.on_aws.measured_replicas import ReplicaLoader
from tests.validation.remote import containers
from tests.validation.remote.containers import ProcessContainers

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppliedFleet]:
    """The fleet, whose registry has the image of load drivers, and in the working directory the blueprint `mine`."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("fleet")
        with apply_fleet(folder, patch, FLEET) as (document, aws):
            endpoint = str(aws.emulator)
            for name, value in emulator.build_client_env(endpoint, REGION).items():
                patch.setenv(name, value)
            measured_replicas.write_blueprint(folder)
            measured_replicas.create_results_bucket(endpoint, document.value)
            ecr, repository = aws.client("ecr"), f"{document.value.name}/{LOAD_DRIVER.name}"
            ecr.create_repository(repositoryName=repository)
            image = json.dumps({"mediaType": "application/vnd.oci.image.manifest.v1+json"})
            ecr.put_image(repositoryName=repository, imageManifest=image, imageTag=LOAD_DRIVER.tag)
            yield document, aws


class Load(NamedTuple):
    """What one load had in ECS while it was sent."""

    drivers: int
    running: list[str]
    definitions: list[str]


def list_running(fleet: AppliedFleet) -> list[str]:
    return [task["taskArn"] for task in tasks.describe_tasks(fleet[1]) if task["desiredStatus"] == "RUNNING"]


def list_definitions(fleet: AppliedFleet, name: str) -> list[str]:
    """The task definitions of a deployment's loads, in any state."""
    ecs, family = fleet[1].client("ecs"), f"{fleet[0].value.name}-{name}-load"
    return [
        arn
        for status in ("ACTIVE", "INACTIVE")
        for arn in ecs.list_task_definitions(familyPrefix=family, status=status)["taskDefinitionArns"]
    ]


def list_services(fleet: AppliedFleet, name: str) -> dict[str, int]:
    """The desired count of each ECS service of a deployment, by its name without the deployment's."""
    ecs, prefix = fleet[1].client("ecs"), f"{name}-"
    arns = ecs.list_services(cluster=fleet[0].value.name)["serviceArns"]
    services = ecs.describe_services(cluster=fleet[0].value.name, services=arns)["services"] if arns else []
    return {
        service["serviceName"].removeprefix(prefix): service["desiredCount"]
        for service in services
        if service["serviceName"].startswith(prefix)
    }


def count_workers(fleet: AppliedFleet, name: str) -> int:
    return sum(count for service, count in list_services(fleet, name).items() if service.startswith("worker"))


@pytest.fixture
def loads(applied: AppliedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """Run what the tasks of each load would run; return the loads."""
    standing_in = ProcessContainers(containers.copy_package(tmp_path / "image"), tmp_path / "containers.log")
    sent: list[Load] = []

    @contextlib.contextmanager
    def launch(_: EcsTarget, plan: DeploymentPlan, urls: Sequence[str], __: int) -> Iterator[ProcessContainers]:
        with tasks.run_tasks(plan, standing_in, urls) as started:
            sent.append(Load(len(urls), list_running(applied), list_definitions(applied, "mine")))
            yield started

    monkeypatch.setattr(EcsTarget, "launch_drivers", launch)
    return sent


def test_each_load_of_a_sweep_is_a_set_of_tasks_of_its_own(
    applied: AppliedFleet, loads: list[Load], capsys: pytest.CaptureFixture[str]
) -> None:
    ec2 = applied[1].client("ec2")
    [vpc] = [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
    networks.create_group(ec2, "fabric", vpc, "fabric-mine-driver")
    result = measured_replicas.sweep(EcsTarget, lambda name: count_workers(applied, name), capsys)
    assert len(loads) >= len(result["points"]), "one that shows nothing is sent again"
    started = [arn for load in loads for arn in load.running]
    assert len(started) == len(set(started)), "those of the load before have been stopped"
    for load in loads:
        assert (len(load.running), len(load.definitions)) == (load.drivers, 1), "they are there while it is sent"
    assert list_running(applied) == [] and list_definitions(applied, "mine") == []


def read_state() -> dict[str, Any]:
    """The newest tuning's."""
    state: dict[str, Any] = json.loads(max(Path("runs/mine").glob("tune-*/tune.json")).read_text())
    return state


def test_configurations_replace_one_another_and_an_interruption_leaves_none(
    applied: AppliedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ReplicaLoader(lambda name: count_workers(applied, name))
    monkeypatch.setattr(tune, "Loader", loader)
    loader.interrupted_at = 1
    command = ["tune", "mine", "--target", "ecs", "--over", "roles.worker.replicas=2,1", "--yes"]
    assert main.run(command) == program.INTERRUPTED
    assert set(loader.seen[:-1]) == {2} and loader.seen[-1] == 1, "the second has one task where the first had two"
    assert list_services(applied, "mine-tune") == {}, "nothing is left"
    state = read_state()
    first, second = state["trials"]
    assert first["state"] == "kept" and first["kept"]["load"] == 8
    assert first["usd_h"] == 2 * second["usd_h"] > 0
    assert min(first["seconds"], second["seconds"]) > 0, "each was deployed for a time"
    spent = [trial["instances_usd_h"] * trial["seconds"] / 3600 for trial in (first, second)]
    assert state["usd"] == pytest.approx(sum(spent), abs=1e-4)


def test_what_cannot_be_removed_is_named_with_the_command_that_removes_it(
    applied: AppliedFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "Loader", ReplicaLoader(lambda name: count_workers(applied, name)))
    reason = "AWS refused DeleteService: ThrottlingException: Rate exceeded"

    def refuse(_: DeploymentPlan) -> bool:
        raise Unavailable(reason)

    with monkeypatch.context() as patch:
        patch.setattr(EcsTarget, "remove", staticmethod(refuse))
        assert main.run(["tune", "mine", "--target", "ecs", "--over", "roles.worker.replicas=1", "--yes"]) == 1
    command = measured_replicas.read_fix(capsys.readouterr().err, reason)
    assert count_workers(applied, "mine-tune") == 1
    assert main.run(command) == 0
    assert list_services(applied, "mine-tune") == {}
