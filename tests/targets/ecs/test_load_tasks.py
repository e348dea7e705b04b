"""A load from inside the VPC: moto's ECS takes the task definition and the tasks, and what they would run runs.

moto runs no containers. So the entry point of the image, with each task's own arguments as ECS has them, is run as a
process on the image's own files.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.catalog import own_image
from llm_serving.fleet import names
from llm_serving.kinds.serving.validation import validate as run
from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import load_tasks, tasks
from llm_serving.targets.ecs.load_tasks import LoadTasks
from llm_serving.validation.base import LoadSource
from llm_serving.validation.remote import play as remote_play
from llm_serving.validation.remote.play import RemoteDrivers
from tests import known_server
from tests.infra.serving.conftest import FLEET, write_blueprint
from tests.targets.ecs import networks
from tests.validation.conftest import build_deployment, build_options
from tests.validation.remote import containers
from tests.validation.remote.containers import ProcessContainers

BUCKET = "fabric-results"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsSession]:
    """The VPC and the cluster of the fleet, without a deployment."""
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as endpoint:
        session = emulator.open_session(endpoint, "us-west-2")
        # As the groups of `ml` with `dev-a`, and of `ml-dev` with `a`.
        networks.create(session, "cotton", ("us-west-2a",), ["fabric-aggregated-driver"])
        [group] = networks.create(session, "fabric", ("us-west-2a", "us-west-2b"), ["fabric-aggregated-driver"])
        location = {"LocationConstraint": "us-west-2"}
        session.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=location)
        session.group = group  # type: ignore[attr-defined]
        yield session


@pytest.fixture
def plan(aws: AwsSession, tmp_path: Path) -> DeploymentPlan:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    folder = write_blueprint(tmp_path, "aggregated")
    return planning.plan(folder, fleet, target="ecs", root=tmp_path, aws=aws, account=emulator.ACCOUNT)


def describe_tasks(aws: AwsSession, cluster: str = "fabric") -> list[dict[str, Any]]:
    """All tasks. Their desired status is what was asked for; moto calls each one's last status STOPPED at once."""
    ecs = aws.client("ecs")
    arns = [arn for status in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(cluster=cluster, desiredStatus=status)["taskArns"]]  # fmt: skip
    return list(ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"]) if arns else []


def read_variables(aws: AwsSession, container: dict[str, Any]) -> dict[str, str]:
    """The variables of a container that are keys of a secret's JSON."""
    variables = {}
    for row in container["secrets"]:
        arn, key = row["valueFrom"].removesuffix("::").rsplit(":", 1)
        text = aws.client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
        variables[row["name"]] = json.loads(text)[key]
    return variables


@contextlib.contextmanager
def run_tasks(plan: DeploymentPlan, standing_in: ProcessContainers, urls: Sequence[str]) -> Iterator[ProcessContainers]:
    """Start the tasks, and run what their containers would run."""
    with load_tasks.run(plan, urls):
        tasks = [task for task in describe_tasks(plan.aws) if task["desiredStatus"] == "RUNNING"]
        assert not [url for url in urls if url in json.dumps(tasks, default=str)], "whoever describes a task reads it"
        arguments = [word for task in tasks for word in task["overrides"]["containerOverrides"][0]["command"]]
        definition = plan.aws.client("ecs").describe_task_definition(taskDefinition=tasks[0]["taskDefinitionArn"])
        [container] = definition["taskDefinition"]["containerDefinitions"]
        # What ECS does with `secrets` at the start of a task, by the role whose policy names them.
        variables = read_variables(plan.aws, container)
        with standing_in.launch(arguments, variables) as started:
            yield started


def test_the_tasks_send_one_load_and_are_stopped(
    aws: AwsSession, plan: DeploymentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_play, "POLL_S", 0.2)
    standing_in = ProcessContainers(containers.copy_package(tmp_path / "image"), tmp_path / "containers.log")
    definitions: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def launch(urls: Sequence[str]) -> Iterator[ProcessContainers]:
        with run_tasks(plan, standing_in, urls) as started:
            tasks = describe_tasks(aws)
            assert {(task["launchType"], task["desiredStatus"]) for task in tasks} == {("FARGATE", "RUNNING")}
            assert len(tasks) == len(urls) == 2
            definition = aws.client("ecs").describe_task_definition(taskDefinition=tasks[0]["taskDefinitionArn"])
            definitions.append(definition["taskDefinition"])
            yield started

    drivers = RemoteDrivers(aws, BUCKET, launch, 240)
    source = LoadSource("From tasks.", play=drivers.play, max_processes=4)
    with known_server.run_server() as url:
        traffic = {"arrivals": "20/s", "requests": 40, "input_tokens": 20, "output_tokens": 4}
        deployment = build_deployment(url, traffic, {"ttft_ms": {"p50": 20_000}})
        report, _ = run.validate(deployment, build_options(tmp_path, load_source=source))
    assert report.requests.model_dump() == {"total": 40, "failed": 0, "by_error": {}, "planned": 40}
    assert report.missed == []
    assert {task["desiredStatus"] for task in describe_tasks(aws)} == {"STOPPED"}
    assert aws.client("secretsmanager").list_secrets(IncludePlannedDeletion=True)["SecretList"] == []
    [definition] = definitions
    listed = aws.client("ecs").list_task_definitions(familyPrefix=definition["family"], status="ACTIVE")
    assert listed["taskDefinitionArns"] == []


def test_the_definition_has_this_codes_image_no_role_and_the_deployments_log(plan: DeploymentPlan) -> None:
    definition = load_tasks.build_definition(plan, "arn:of:the:secret", ["BLUEPRINT_LOAD_INPUTS"])
    assert definition["containerDefinitions"][0]["secrets"] == [
        {"name": "BLUEPRINT_LOAD_INPUTS", "valueFrom": "arn:of:the:secret:BLUEPRINT_LOAD_INPUTS::"}
    ]
    [container] = definition["containerDefinitions"]
    assert container["image"] == own_image.LOAD_DRIVER.format_image(
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/fabric"
    )
    assert "taskRoleArn" not in definition
    purpose = names.format_deployment_purpose("aggregated", "start")
    assert definition["executionRoleArn"] == f"arn:aws:iam::123456789012:role/fabric-us-west-2-{purpose}"
    assert container["logConfiguration"]["options"]["awslogs-group"] == "/aws/ecs/fabric/serving/aggregated"
    assert container["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}


def test_tasks_run_in_the_private_subnets_with_the_drivers_security_group(
    aws: AwsSession, plan: DeploymentPlan
) -> None:
    settings = load_tasks._find_network(plan)["awsvpcConfiguration"]
    assert settings["securityGroups"] == [aws.group]  # type: ignore[attr-defined]
    assert len(settings["subnets"]) == 2
    assert settings["assignPublicIp"] == "DISABLED"


def test_a_deployment_without_the_security_group_is_refused_with_the_fix(plan: DeploymentPlan) -> None:
    other = SimpleNamespace(
        fleet=plan.fleet, aws=plan.aws, deployment=plan.deployment.model_copy(update={"name": "older"})
    )
    with pytest.raises(Unavailable) as error, load_tasks.run(other, ["http://x"]):  # type: ignore[arg-type]
        raise AssertionError("nothing is to start")
    assert str(error.value) == (
        "the security group fabric-older-driver does not exist: the deployment is older than load drivers on ECS, or "
        "gone. Fix: run blueprint deploy, or --load-from here"
    )


@pytest.fixture
def scripted() -> Iterator[tuple[Any, Stubber]]:
    """ECS with a script of answers, held against botocore's model of the API."""
    session = AwsSession("us-east-1", {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"})
    client = session.client("ecs")
    with Stubber(client) as stub:
        yield client, stub


def test_tasks_and_their_definition_are_removed(
    scripted: tuple[Any, Stubber], capsys: pytest.CaptureFixture[str]
) -> None:
    client, stub = scripted
    for task in ("a", "b"):
        stub.add_response("stop_task", {}, {"cluster": "fabric", "task": task, "reason": "the load ended"})
    stub.add_response("deregister_task_definition", {}, {"taskDefinition": "load:1"})
    stub.add_response("delete_task_definitions", {}, {"taskDefinitions": ["load:1"]})
    load_tasks._remove_tasks(client, "fabric", ["a", "b"], "load:1")
    stub.assert_no_pending_responses()
    assert capsys.readouterr().err == ""


def test_what_is_not_removed_is_named_with_its_command_and_the_rest_is_removed(
    scripted: tuple[Any, Stubber], capsys: pytest.CaptureFixture[str]
) -> None:
    client, stub = scripted
    request = {"cluster": "fabric", "reason": "the load ended"}
    stub.add_client_error("stop_task", "ThrottlingException", "Rate exceeded", expected_params={**request, "task": "a"})
    stub.add_response("stop_task", {}, {**request, "task": "b"})
    stub.add_response("deregister_task_definition", {}, {"taskDefinition": "load:1"})
    failure = {"arn": "load:1", "reason": "it is in use"}
    stub.add_response("delete_task_definitions", {"failures": [failure]}, {"taskDefinitions": ["load:1"]})
    load_tasks._remove_tasks(client, "fabric", ["a", "b"], "load:1")
    stub.assert_no_pending_responses()
    refusal = "An error occurred (ThrottlingException) when calling the StopTask operation: Rate exceeded"
    assert capsys.readouterr().err.splitlines() == [
        f"Part of the load's tasks was not removed: {refusal}",
        "Fix: run aws ecs stop-task --cluster fabric --task a --reason 'the load ended' --region us-east-1",
        "Part of the load's tasks was not removed: it is in use",
        """Fix: run aws ecs delete-task-definitions --task-definitions '["load:1"]' --region us-east-1""",
    ]


def test_an_interruption_of_the_removal_leaves_no_task() -> None:
    calls: list[str] = []

    class Client:
        def __getattr__(self, name: str) -> Any:
            def call(**request: Any) -> dict[str, Any]:
                signal.raise_signal(signal.SIGINT)
                calls.append(f"{name} {request.get('task', '')}".strip())
                return {}

            return call

    with pytest.raises(KeyboardInterrupt):
        Client().stop_task(task="a")  # the negative control
    load_tasks._remove_tasks(Client(), "fabric", ["a", "b"], "load:1")
    assert calls == ["stop_task a", "stop_task b", "deregister_task_definition", "delete_task_definitions"]


def test_a_task_that_stopped_early_is_named_with_ecs_reasons(scripted: tuple[Any, Stubber]) -> None:
    client, stub = scripted
    states: list[dict[str, Any]] = [
        {"taskArn": "arn/task/a", "lastStatus": "STOPPED", "containers": [{"exitCode": 0}]},
        {
            "taskArn": "arn/task/b",
            "lastStatus": "STOPPED",
            "stoppedReason": "Task failed to start",
            "containers": [{"reason": "CannotPullContainerError: not found"}],
        },
    ]
    tasks = LoadTasks(client, "fabric", ["a", "b"])
    stub.add_client_error("describe_tasks", "ThrottlingException")
    assert tasks.find_failure() is None, "the load goes on"
    for count in (1, 2, 2):
        stub.add_response("describe_tasks", {"tasks": states[:count]})
    assert tasks.find_failure() is None, "a driver that ended well"
    assert tasks.find_failure() == "b: Task failed to start CannotPullContainerError: not found"
    assert tasks.describe() == "2 stopped"


def test_a_task_that_ecs_does_not_start_is_reported_and_the_others_stop(
    aws: AwsSession, plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = load_tasks.ecs_tasks.start
    before = {task["taskArn"] for task in describe_tasks(aws)}

    def start_one(client: Any, **request: Any) -> str:
        if request["overrides"]["containerOverrides"][0]["command"] == ["1"]:
            raise CheckFailed("ECS started no task of load:1: RESOURCE:FARGATE")
        return start(client, **request)

    monkeypatch.setattr(load_tasks.ecs_tasks, "start", start_one)
    with pytest.raises(CheckFailed, match="RESOURCE:FARGATE"), load_tasks.run(plan, ["http://x/0", "http://x/1"]):
        raise AssertionError("not all drivers run")
    [task] = [task for task in describe_tasks(aws) if task["taskArn"] not in before]
    assert task["desiredStatus"] == "STOPPED"


def test_metrics_pages_are_those_of_running_tasks_of_the_blueprints_roles_by_their_addresses(
    plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_tasks(_: Any, service: Service, status: str) -> list[dict[str, Any]]:
        assert status == "RUNNING"
        details = [{"name": "privateIPv4Address", "value": "10.0.0.7"}]
        attachments = [{"type": "ElasticNetworkInterface", "details": details}]
        return [
            {"taskArn": f"arn/{service.name}-t", "attachments": attachments},
            {"taskArn": "arn/new", "attachments": []},
        ]

    monkeypatch.setattr(tasks.EcsDeployment, "list_tasks", list_tasks)
    former = Service(name="former", role="former", command=("true",), metrics_path="/metrics")
    running = [(former, task) for task in list_tasks(None, former, "RUNNING")]
    list_running = tasks.EcsDeployment.list_running
    monkeypatch.setattr(tasks.EcsDeployment, "list_running", lambda self: [*list_running(self), *running])
    pages = {(page.name, page.role, page.url) for page in tasks.list_metrics_pages(plan)}
    assert ("router-t", "router", "http://10.0.0.7:9090/metrics") in pages
    assert ("worker-t", "worker", "http://10.0.0.7:8000/metrics") in pages
    assert not {name for name, _, _ in pages} & {"new", "former-t"}, "without an address, and of no role any more"
