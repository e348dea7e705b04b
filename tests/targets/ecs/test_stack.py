"""Deploying to a fake ECS with AWS's responses; other tests run the real Terraform."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from llm_serving.aws.session import AwsSession, split
from llm_serving.operations import apply, context
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.base import READY
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import readiness, stack, tasks
from llm_serving.targets.starts import Start
from llm_serving.terraform.plan import Plan, ResourceChange
from llm_serving.terraform.state import StackState
from tests.infra.serving.conftest import FLEET, write_blueprint

SERVICES = ("aggregated-worker", "aggregated-worker-1", "aggregated-router")
ROLE_OF = {"aggregated-worker": "worker", "aggregated-worker-1": "worker", "aggregated-router": "router"}


class Pages(list[dict[str, Any]]):
    """Pages of an answer."""

    def build_full_result(self) -> dict[str, Any]:
        [page] = self
        return page


@dataclass
class Ecs:
    """A fake of a cluster's ECS and CloudWatch Logs with the tests' data."""

    applied: bool = False
    """Whether Terraform created the services."""

    failed: dict[str, str] = field(default_factory=dict)
    """Why the last deployment of an ECS service failed."""

    past: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The deployment before the last one of an ECS service, which still has a task."""

    rollout: str = "COMPLETED"
    """State of the last deployments that did not fail."""

    desired: dict[str, int] = field(default_factory=dict)
    """Tasks that an ECS service should have."""

    running: dict[str, str] = field(default_factory=dict)
    """Task definition of an ECS service, where it is not the deployed one."""

    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    polls: list[list[dict[str, Any]]] = field(default_factory=list)
    """What CloudWatch has of the log group, each time that it is asked."""

    exit_code: int = 0
    task_requests: list[dict[str, Any]] = field(default_factory=list)
    tagged: list[dict[str, Any]] = field(default_factory=list)
    """ECS services of other deployments and of earlier ones, as described with their tags."""

    clusters: Sequence[dict[str, str]] = field(default_factory=lambda: [{"status": "ACTIVE"}])
    images: tuple[str, ...] = ("fabric/router:0.1.17-15",)

    def describe_clusters(self, *, clusters: list[str]) -> dict[str, Any]:
        assert clusters == ["fabric"]
        return {"clusters": self.clusters}

    def describe_images(self, *, repositoryName: str, imageIds: list[dict[str, str]]) -> None:  # noqa: N803
        if f"{repositoryName}:{imageIds[0]['imageTag']}" not in self.images:
            raise ClientError({"Error": {"Code": "ImageNotFoundException"}}, "DescribeImages")

    def describe_services(self, *, cluster: str, services: list[str], include: Sequence[str] = ()) -> dict[str, Any]:
        assert cluster == "fabric" and len(services) <= 10
        if not self.applied:
            return {"services": [{"deployments": [], **tag} for tag in self.tagged if tag["serviceName"] in services]}
        tags = [{"key": "stack", "value": "serving-aggregated"}] if include else []
        descriptions = [
            {
                "serviceName": name,
                "status": "ACTIVE",
                "desiredCount": self.desired.get(name, 1),
                "deployments": [self._describe_deployment(name), *filter(None, [self.past.get(name)])],
                "tags": tags,
            }
            for name in services
        ]
        return {"services": descriptions}

    def update_service(self, *, cluster: str, service: str, **changes: Any) -> None:
        assert cluster == "fabric"
        if changes.pop("forceNewDeployment", False):
            self.past[service] = {**self._describe_deployment(service), "status": "ACTIVE"}
            self.failed.pop(service, None)
        if changes:
            self.desired[service] = changes.pop("desiredCount")
        assert not changes

    def _describe_deployment(self, name: str) -> dict[str, Any]:
        definition = self.running.get(name, f"arn/{ROLE_OF[name]}:2")
        number = 2 if name in self.past else 1
        deployment = {"id": f"ecs-svc/{number}", "status": "PRIMARY", "taskDefinition": definition}
        deployment["rolloutState"] = self.rollout
        if name in self.failed:
            deployment |= {"rolloutState": "FAILED", "rolloutStateReason": self.failed[name]}
        return deployment

    def get_paginator(self, call: str) -> Any:
        answer = getattr(self, f"_{call}")
        return SimpleNamespace(paginate=lambda **request: Pages(answer(**request)))

    def _describe_images(self, **_: Any) -> list[dict[str, Any]]:
        tags = [image.partition(":")[2] for image in self.images]
        return [{"imageDetails": [{"imageTags": [tag], "imagePushedAt": number} for number, tag in enumerate(tags)]}]

    def _list_tasks(self, *, cluster: str, serviceName: str, desiredStatus: str) -> list[dict[str, Any]]:  # noqa: N803
        assert cluster == "fabric"
        for coming in self.tasks.get(serviceName, []):
            coming["asked"] = coming.get("asked", 0) + 1
            if coming["asked"] > 4:  # two looks later
                coming["healthStatus"] = coming.get("later", coming["healthStatus"])
        matches = [task for task in self.tasks.get(serviceName, []) if task["desiredStatus"] == desiredStatus]
        return [{"taskArns": [task["taskArn"] for task in matches]}]

    def describe_tasks(self, *, cluster: str, tasks: list[str]) -> dict[str, Any]:
        assert cluster == "fabric" and len(tasks) <= 100
        all_tasks = [task for service_tasks in self.tasks.values() for task in service_tasks]
        probe_task = {"taskArn": "arn/ask", "lastStatus": "STOPPED", "containers": [{"exitCode": self.exit_code}]}
        return {"tasks": [candidate for candidate in (*all_tasks, probe_task) if candidate["taskArn"] in tasks]}

    def run_task(self, **request: Any) -> dict[str, Any]:
        self.task_requests.append(request)
        return {"failures": [], "tasks": [{"taskArn": "arn/ask"}]}

    def _describe_log_streams(self, *, logGroupName: str, **_: Any) -> list[dict[str, Any]]:  # noqa: N803
        assert logGroupName == "/aws/ecs/fabric/serving/aggregated"
        return [{"logStreams": [{"logStreamName": name} for name in part]} for part in split(list(self.lines), 50)]

    def _filter_log_events(self, *, startTime: int, **_: Any) -> list[dict[str, Any]]:  # noqa: N803
        known = self.polls.pop(0)
        return [{"events": [event for event in known if event["timestamp"] >= startTime]}]

    def get_log_events(self, *, logStreamName: str, limit: int = 0, **_: Any) -> dict[str, Any]:  # noqa: N803
        assert limit <= 10_000
        if logStreamName not in self.lines:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "GetLogEvents")
        lines = self.lines[logStreamName][-limit:]
        return {"events": [{"message": line, "timestamp": at * 1000} for at, line in enumerate(lines)]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Ecs:
    fake_ecs = Ecs()
    monkeypatch.setattr(AwsSession, "client", lambda *_: fake_ecs)
    monkeypatch.setattr(readiness, "_POLL_INTERVAL_S", 0.0)
    return fake_ecs


@pytest.fixture
def deployment_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentPlan:
    monkeypatch.chdir(tmp_path)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    folder = write_blueprint(tmp_path, "aggregated")
    return planning.plan(folder, fleet, target="ecs", root=tmp_path, account="123456789012")


@pytest.fixture
def terraform_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: Ecs, deployment_plan: DeploymentPlan
) -> list[str]:
    """Fake Terraform with one service to create; return its calls."""
    calls: list[str] = []
    name = "serving-aggregated"
    text = {"//": {"needs": ["ecs", "storage"]}, "variable": {"force_new_deployment": {"type": "bool"}}}
    (tmp_path / "cdk.tf.json").write_text(json.dumps(text))
    program: Any = None
    fleet_context = FleetContext(
        deployment_plan.fleet, tmp_path, {name: tmp_path}, program, deployment_plan.aws, "123456789012"
    )
    changes = {
        address: ResourceChange(address, actions)
        for address, actions in {"aws_ecs_service.worker-0": ("create",), "x.y": ("delete", "create")}.items()
    }
    outputs = {
        "ask": {"task_definition": "arn:ask", "subnets": ["subnet-1"], "group": "sg-1"},
        "definitions": {"worker": "arn/worker:2", "router": "arn/router:2"},
    }
    monkeypatch.setattr(stack.deployment_stack, "build_context", lambda *_: fleet_context)
    monkeypatch.setattr(fleet_plans, "create", lambda _: [StackPlan(name, 40, Plan({} if calls else changes))])

    def create(*_: Any) -> None:
        calls.append("apply")
        aws.applied = True

    monkeypatch.setattr(apply, "apply", create)
    monkeypatch.setattr(context, "read_states", lambda *_: {name: StackState(outputs, ("x.y",))})
    return calls


def build_task(
    name: str, status: str, health: str = "UNKNOWN", desired: str = "RUNNING", **overrides: Any
) -> dict[str, Any]:
    arn = f"arn:aws:ecs:us-west-2:123456789012:task/fabric/{name}"
    document = {"taskArn": arn, "lastStatus": status, "healthStatus": health, "desiredStatus": desired}
    return {**document, "taskDefinitionArn": "arn/worker:2", **overrides}


def build_running_tasks(**overrides: Any) -> dict[str, list[dict[str, Any]]]:
    """Tasks of a deployment that answers: on the second choice one, where the first had no machine for it."""
    routers = [build_task(name, "RUNNING", "HEALTHY", taskDefinitionArn="arn/router:2") for name in ("b1", "b2")]
    return {
        "aggregated-worker": [build_task("a1", "RUNNING", "HEALTHY"), build_task("a2", "PROVISIONING")],
        "aggregated-worker-1": [build_task("a3", "RUNNING", **{"later": "HEALTHY", **overrides})],
        "aggregated-router": routers,
    }


def test_deploy_shows_changes_waits_for_all_services_and_sends_a_test_request(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    aws.tasks = build_running_tasks()
    messages: list[str] = []
    assert stack.deploy(deployment_plan, messages.append) is True
    assert messages == ["serving-aggregated: +2 ~0 -1\n  created: aws_ecs_service.worker-0\n  replaced: x.y"]
    assert terraform_calls == ["apply"]
    assert aws.tasks["aggregated-worker-1"][0]["asked"] > 4, "it waited for the last task's answer"
    [request] = aws.task_requests
    assert (request["taskDefinition"], request["launchType"]) == ("arn:ask", "FARGATE")
    assert stack.deploy(deployment_plan, messages.append) is False, "nothing is left to change"


@pytest.mark.parametrize("desired", [0, 3])
def test_deploy_wakes_a_role_scaled_to_zero_for_its_test_request(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], desired: int
) -> None:
    file = deployment_plan.folder / "blueprint.yaml"
    file.write_text(file.read_text().replace("replicas: 2..6", "replicas: 0..6"))
    deployment_plan = planning.plan(
        deployment_plan.folder,
        deployment_plan.fleet.path,
        target="ecs",
        root=deployment_plan.directory.root,
        account="123456789012",
    )
    aws.desired["aggregated-worker"] = desired
    aws.tasks = {
        **build_running_tasks(),
        "aggregated-worker": [],
        "aggregated-worker-1": [build_task("a3", "RUNNING", later="HEALTHY")],
    }
    assert stack.deploy(deployment_plan, lambda _: None) is True
    assert aws.desired == {"aggregated-worker": max(1, desired)}
    assert aws.tasks["aggregated-worker-1"][0]["asked"] > 4, "it waited for the first replica's answer"


def test_a_second_command_on_a_deployment_is_refused(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    def destroy_meanwhile(_: str) -> None:
        with pytest.raises(Unavailable, match="another command is running on aggregated"):
            stack.destroy(deployment_plan)

    aws.tasks = build_running_tasks(later="HEALTHY")
    assert stack.deploy(deployment_plan, destroy_meanwhile) is True


@pytest.mark.parametrize("clusters", [[], [{"status": "INACTIVE"}]], ids=["never applied", "destroyed"])
def test_a_deployment_before_its_fleet_is_refused_with_the_command(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], clusters: list[dict[str, str]]
) -> None:
    aws.clusters = clusters
    for command in (stack.diff, lambda plan: stack.deploy(plan, pytest.fail)):
        with pytest.raises(Unavailable) as error:
            command(deployment_plan)
        assert str(error.value) == (
            "the ECS cluster fabric is not in us-west-2 of the account 123456789012. Nothing was changed. Fix: run "
            "`blueprint fleet apply --fleet fleet.yaml` first."
        )
    assert terraform_calls == []


def test_a_declined_deploy_changes_nothing_and_keeps_no_plan(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], tmp_path: Path
) -> None:
    saved_plan = tmp_path / fleet_plans.FILE

    def refuse(_: str) -> None:
        saved_plan.touch()
        raise CheckFailed("nothing was changed")

    with pytest.raises(CheckFailed):
        stack.deploy(deployment_plan, refuse)
    assert terraform_calls == []
    assert not saved_plan.exists()


def test_a_name_that_another_deployments_service_has_is_refused_before_anything_changes(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    def tag(name: str, owner: str, status: str = "ACTIVE") -> dict[str, Any]:
        return {"serviceName": name, "status": status, "tags": [{"key": "stack", "value": owner}]}

    own, gone = tag("aggregated-router", "serving-aggregated"), tag("aggregated-worker-1", "serving-a", "INACTIVE")
    aws.tagged = [own, gone, tag("aggregated-worker", "serving-a")]
    with pytest.raises(CheckFailed) as refused:
        stack.deploy(deployment_plan, lambda _: None)
    assert str(refused.value) == (
        "aggregated: its ECS services have names that are taken: aggregated-worker (of serving-a). Nothing was changed. "
        f"Fix: choose another `name` in {deployment_plan.blueprint.path}"
    )
    assert terraform_calls == []
    aws.tagged, aws.tasks = [own, gone], build_running_tasks(later="HEALTHY")
    assert stack.deploy(deployment_plan, lambda _: None) is True, "the negative control"


def test_a_role_with_the_name_of_anothers_second_choice_is_refused(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    file = deployment_plan.folder / "blueprint.yaml"
    file.write_text(file.read_text().replace("  router:", "  workers: {worker-1: {pool: general}}\n  router:"))
    root, fleet = deployment_plan.directory.root, deployment_plan.fleet.path
    plan = planning.plan(deployment_plan.folder, fleet, target="ecs", root=root, account="123456789012")
    with pytest.raises(CheckFailed) as refused:
        stack.deploy(plan, lambda _: None)
    assert str(refused.value) == (
        "aggregated: two of its ECS services would be aggregated-worker-1: the second choice of a pool adds -1 to a role's "
        "name. Nothing was changed. Fix: give the other role another name"
    )
    assert terraform_calls == []


def test_a_missing_image_is_reported_before_anything_changes(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    aws.images = ("fabric/router:0.1.16",)
    with pytest.raises(CheckFailed, match=r"fabric/router:0\.1\.17-15 is not in the fleet's registry") as error:
        stack.deploy(deployment_plan, lambda _: None)
    assert "whose newest, 0.1.16, was built from another version" in str(error.value)
    assert "images/build router --fleet" in str(error.value)
    assert terraform_calls == []


def test_a_role_that_fails_is_named_with_its_reason_and_last_lines(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    reason = "ECS deployment circuit breaker: tasks failed to start."
    aws.failed["aggregated-worker"] = reason
    aws.tasks["aggregated-worker"] = [
        build_task("a1", "STOPPED", desired="STOPPED", stoppedReason="Task failed container health checks")
    ]
    aws.lines = {"worker/worker/a1": ["loading", "CUDA out of memory"], "router/router/b2": ["all well"]}
    with pytest.raises(CheckFailed) as error:
        stack.deploy(deployment_plan, lambda _: None)
    assert str(error.value) == (
        f"worker is not ready: {reason}; ECS rolled it back to what ran before; if nothing did, it starts no more tasks "
        "until you deploy again\n"
        "  a1: Task failed container health checks\n"
        "worker a1 | loading\n"
        "worker a1 | CUDA out of memory"
    )
    assert aws.task_requests == [], "nobody is asked who does not run"


def test_a_deploy_that_ecs_gave_up_starts_again_though_no_plan_shows_it(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    aws.failed["aggregated-worker"] = "ECS deployment circuit breaker: tasks failed to start."
    aws.tasks = {"aggregated-router": build_running_tasks()["aggregated-router"]}
    with pytest.raises(CheckFailed):
        stack.deploy(deployment_plan, lambda _: None)
    aws.tasks, messages = build_running_tasks(), list[str]()
    assert stack.deploy(deployment_plan, messages.append) is True
    assert messages == [
        "no change, but ECS gave up an earlier deploy; its tasks will be started again:\n"
        "  aggregated-worker: ECS deployment circuit breaker: tasks failed to start."
    ]
    assert aws.past.keys() == {"aggregated-worker"}, "the others are left as they are"
    assert terraform_calls == ["apply"]
    assert len(aws.task_requests) == 1, "it was waited for and asked"
    assert stack.deploy(deployment_plan, messages.append) is False, "the negative control"
    assert (len(messages), len(aws.task_requests)) == (1, 1)


def test_a_deploy_that_was_interrupted_is_waited_for(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.rollout, aws.tasks = "IN_PROGRESS", build_running_tasks()
    terraform_calls.append("apply")
    aws.applied = True
    messages: list[str] = []
    assert stack.deploy(deployment_plan, messages.append) is False
    assert messages == [], "nothing is changed"
    assert len(aws.task_requests) == 1
    aws.tasks = {}
    monkeypatch.setattr(planning, "INSTANCE_START_S", -10_000)
    with pytest.raises(CheckFailed, match="worker is not ready: timed out"):
        stack.deploy(deployment_plan, messages.append)


def test_a_rollback_between_polls_is_not_a_success(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    aws.tasks = build_running_tasks()
    aws.running["aggregated-router"] = "arn:aws:ecs:us-west-2:123456789012:task-definition/fabric-aggregated-router:1"
    with pytest.raises(CheckFailed, match=r"router is not ready: ECS rolled back to \S*router:1"):
        stack.deploy(deployment_plan, lambda _: None)


def test_tasks_of_the_previous_definition_do_not_count(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "INSTANCE_START_S", -10_000)
    aws.tasks = build_running_tasks(taskDefinitionArn="arn/worker:1")
    with pytest.raises(CheckFailed, match="worker is not ready: timed out"):
        stack.deploy(deployment_plan, lambda _: None)


def test_services_that_miss_their_deadline_are_reported(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "INSTANCE_START_S", -10_000)
    aws.tasks = build_running_tasks()
    aws.tasks["aggregated-router"].pop()
    with pytest.raises(CheckFailed, match="is not ready: timed out; ECS keeps trying"):
        stack.deploy(deployment_plan, lambda _: None)


def test_a_router_without_an_answer_fails_the_deploy(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str]
) -> None:
    aws.tasks = build_running_tasks()
    aws.exit_code = 1
    aws.lines = {"ask/ask/c3": ["urllib.error.HTTPError: HTTP Error 503"]}
    with pytest.raises(CheckFailed, match="the test request failed") as error:
        stack.deploy(deployment_plan, lambda _: None)
    assert "ask c3 | urllib.error.HTTPError: HTTP Error 503" in str(error.value)


def test_a_task_is_ready_once_it_has_answered(aws: Ecs, deployment_plan: DeploymentPlan) -> None:
    machine = "arn:aws:ecs:us-west-2:123456789012:container-instance/fabric/m1"
    aws.tasks = {
        "aggregated-worker": [
            build_task("a1", "RUNNING", "HEALTHY", containerInstanceArn=machine),
            build_task("a2", "RUNNING", containerInstanceArn=machine),
        ],
        "aggregated-worker-1": [build_task("a3", "PROVISIONING")],
        "aggregated-router": [build_task("b1", "RUNNING", "HEALTHY", launchType="FARGATE")],
    }
    members = [
        (member.role, member.name, member.state, member.machine) for member in tasks.list_replicas(deployment_plan)
    ]
    assert members == [
        ("router", "b1", READY, "fargate"),
        ("worker", "a1", READY, "m1"),
        ("worker", "a2", "not healthy yet", "m1"),
        ("worker", "a3", "provisioning", ""),
    ]


def test_a_service_without_a_task_that_ecs_should_run_is_not_ready(aws: Ecs, deployment_plan: DeploymentPlan) -> None:
    def list_states() -> list[tuple[str, str]]:
        return [(member.name, member.state) for member in tasks.list_replicas(deployment_plan)]

    assert list_states() == [], "it is not deployed"
    aws.applied = True
    assert list_states() == [("router", "no task"), ("worker", "no task")]
    aws.tasks = {"aggregated-router": build_running_tasks()["aggregated-router"]}
    aws.failed = {"aggregated-worker": "tasks failed to start"}
    assert list_states() == [("b1", READY), ("b2", READY), ("worker", "tasks failed to start")]


@pytest.mark.parametrize("write", [str, lambda line: json.dumps({"message": line})], ids=["text", "json"])
def test_a_start_has_its_pull_its_load_its_compiling_and_its_first_answer(
    aws: Ecs, deployment_plan: DeploymentPlan, write: Callable[[str], str]
) -> None:
    at = {
        name: datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        for name, seconds in {"createdAt": -178, "pullStartedAt": -170, "pullStoppedAt": -123}.items()
    }
    aws.tasks = {
        "aggregated-worker": [build_task("a1", "RUNNING", "HEALTHY", **at), build_task("a2", "PENDING")],
        "aggregated-router": [build_task("b1", "RUNNING", "HEALTHY", **at)],
    }
    aws.lines = {
        "worker/worker/a1": [
            'INFO:     127.0.0.1:50768 - "GET /health HTTP/1.1" 200 OK',
            "(EngineCore pid=8) Overall time to stream 15.0 GiB of all files to cpu: 4.88s, 3.1 GiB/s",
            "(EngineCore pid=8) init engine (profile, create kv cache, warmup model) took 18.30 s",
            'INFO:     127.0.0.1:50768 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable',
            'INFO:     127.0.0.1:50768 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            'INFO:     127.0.0.1:50768 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        ]
    }
    aws.lines = {name: [write(line) for line in lines] for name, lines in aws.lines.items()}
    assert tasks.list_starts(deployment_plan) == [
        Start("b1", "router", 47, None, None, None),
        Start("a1", "worker", 47, 4.88, 18.3, 182),
        Start("a2", "worker", None, None, None, None),
    ]


def test_what_runs_without_a_state_here_is_not_called_missing(
    aws: Ecs, deployment_plan: DeploymentPlan, terraform_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "read_states", lambda *_: {})
    assert stack.destroy(deployment_plan) is False
    aws.applied = True
    with pytest.raises(CheckFailed, match="aggregated-router run on ECS, and the state here has nothing of them"):
        stack.destroy(deployment_plan)


def test_the_last_lines_of_one_role_are_shown(
    aws: Ecs, deployment_plan: DeploymentPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.lines = {"worker/worker/a1": ["one", "two", "three"], "router/router/b1": ["routed"]}
    tasks.show_logs(deployment_plan, "worker", lines=2, follow=False)
    assert capsys.readouterr().out.splitlines() == ["worker a1 | two", "worker a1 | three"]
    tasks.show_logs(deployment_plan, None, lines=1, follow=False)
    assert capsys.readouterr().out.splitlines() == ["worker a1 | three", "router b1 | routed"]
    with pytest.raises(CheckFailed) as refused:
        tasks.show_logs(deployment_plan, "wroker", lines=1, follow=False)
    assert str(refused.value) == (
        f"{deployment_plan.deployment.name}: no logs of wroker on ecs. Fix: use one of worker, router, or run blueprint deploy."
    )


def test_the_log_of_a_role_is_found_behind_the_logs_of_a_load_from_64_drivers(
    aws: Ecs, deployment_plan: DeploymentPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.lines = {f"load-driver/load-driver/{number}": ["sent"] for number in range(64)} | {"router/router/b1": ["hi"]}
    tasks.show_logs(deployment_plan, "router", lines=20_000, follow=False)
    assert capsys.readouterr().out == "router b1 | hi\n"


def test_lines_that_cloudwatch_has_late_are_followed_too_and_each_is_shown_once(
    aws: Ecs, deployment_plan: DeploymentPlan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time() * 1000)
    events = {
        name: {"eventId": name, "logStreamName": f"worker/worker/{name[:2]}", "message": name, "timestamp": now + at}
        for name, at in {"a1 old": -900, "a1 first": 3000, "a1 same moment": 3000, "a2 late": 1000, "a3": -900}.items()
    }
    old, first, same_moment, late, sent_before = events.values()
    # What has come by the beginning is among the last lines; what was sent before and comes later is not.
    aws.polls = [[old], [old, first], [old, sent_before, late, first, same_moment], [*events.values()]]
    monkeypatch.setattr(tasks, "_POLL_INTERVAL_S", 0.0)
    with pytest.raises(IndexError):  # asked once more
        tasks.show_logs(deployment_plan, None, lines=0, follow=True)
    assert capsys.readouterr().out.splitlines() == [
        "worker a1 | a1 first",
        "worker a3 | a3",
        "worker a2 | a2 late",
        "worker a1 | a1 same moment",
    ]


def test_the_tasks_of_a_role_are_those_in_which_commands_run(
    aws: Ecs, deployment_plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.tasks = build_running_tasks()
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tasks.addons, "require_tools", lambda _: None)
    monkeypatch.setattr(tasks.container_command, "run", lambda *words, limit_s: str(calls.append((*words, limit_s))))
    containers = tasks.list_containers(deployment_plan, "worker")
    assert [(entry.name, entry.answers) for entry in containers] == [("a1", True), ("a2", True), ("a3", True)]
    containers[0].run(["true"], "line", limit_s=5)
    assert [call[1:] for call in calls] == [("fabric", "a1", "worker", ["true"], "line", 5)]


@pytest.mark.parametrize("is_stuck", [False, True])
def test_each_task_that_an_upgrade_replaces_has_the_time_of_a_start(
    monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    """Ten of them take six times as long as one start may; of a version that does not start, the first is the last."""
    elapsed_s, counts = [0.0], list(range(1, 11))

    def count_ready(*_: object) -> int:
        elapsed_s[0] += 60.0
        return 1 if is_stuck else counts.pop(0)

    clock = SimpleNamespace(monotonic=lambda: elapsed_s[0], sleep=lambda _: None)
    monkeypatch.setattr(readiness, "time", clock)
    monkeypatch.setattr(readiness, "_find_failure", lambda *_: "")
    monkeypatch.setattr(readiness, "_count_ready_tasks", count_ready)
    monkeypatch.setattr(readiness, "_describe_failure", lambda *words: words[2])
    monkeypatch.setattr(readiness.planning, "compute_start_s", lambda _: 100)
    worker = SimpleNamespace(name="worker", replicas=SimpleNamespace(min=10))
    deployed: Any = SimpleNamespace(rendered=SimpleNamespace(name="mine", services=[worker]))
    with pytest.raises(CheckFailed, match="timed out") if is_stuck else contextlib.nullcontext():
        readiness.wait_until_steady(deployed, {"worker": "worker:2"}, past=())
    assert is_stuck or not counts


def test_a_role_with_more_choices_than_ecs_describes_at_once_is_waited_for(
    aws: Ecs, deployment_plan: DeploymentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning.write_rendered(deployment_plan)
    deployed = tasks.read_deployed(deployment_plan)
    choices = [f"aggregated-worker-{number}" for number in range(12)]
    monkeypatch.setattr(tasks.EcsDeployment, "list_service_names", lambda *_: choices)
    for name in choices:
        monkeypatch.setitem(ROLE_OF, name, "worker")
    aws.applied, aws.failed = True, {choices[-1]: "tasks failed to start"}
    assert readiness._find_failure(deployed, deployed.rendered.entry, "arn/worker:2", ()) == "tasks failed to start"
