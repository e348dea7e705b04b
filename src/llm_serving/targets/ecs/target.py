"""The target ecs: the stack serving-NAME, applied by Terraform; the services' own state says whether it answers.

An engine's container is healthy once it has answered a completion, so a service that is steady has answered; at the end
a task in the VPC asks the router as a client would. What fails is rolled back by ECS to what ran before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import console, processes
from llm_serving.aws import session as clients
from llm_serving.aws.session import Aws
from llm_serving.fleet import names
from llm_serving.operations import add_ons as addons
from llm_serving.operations import apply, context
from llm_serving.operations import plans as fleet_plans
from llm_serving.operations.context import Site
from llm_serving.operations.plans import StackPlan
from llm_serving.rehearsal import stacks
from llm_serving.settings.errors import AnswerIsNo, Unavailable
from llm_serving.targets import tunnel
from llm_serving.targets.ecs import manifest
from llm_serving.targets.ecs.manifest import Service, Serving
from llm_serving.targets.on_aws import plan as plans
from llm_serving.targets.on_aws.plan import Plan
from llm_serving.targets.replica_status import READY, Member
from llm_serving.terraform import runner

FILE = "ecs.yaml"
"""What a blueprint is rendered to."""

EMULATED = "the embedded AWS keeps task definitions and services, and runs no task: nothing answers"

_MACHINES_S = manifest.MACHINES_S

_SESSION = {
    "aws": "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager.html",
}
"""What a session calls, and where it is to be had."""

Note = Callable[[str], None]

_ASK_S = 300
_EVERY_S = 10.0
_LAST_LINES = 20
_TOUCHED = re.compile(r"^  # (\S+) (?:will|must) be (.*?)(?:, as requested)?$", re.MULTILINE)


@dataclass(frozen=True)
class _Found:
    """A deployment as its rendered file has it, and the services of each of its roles."""

    fleet: Any
    serving: Serving

    @property
    def services(self) -> Iterator[tuple[Service, str]]:
        """Each ECS service by its name."""
        for service in self.serving.services:
            yield from ((service, name) for name in self.names_of(service))

    def names_of(self, service: Service) -> list[str]:
        """The ECS services of one: a choice of its pool each."""
        choices = manifest.choices(self.fleet, service)
        return [manifest.name_of(self.serving, service, choice) for choice in choices]


def difference(plan: Plan) -> str:
    """What deploying would change, by Terraform's own plan; empty where nothing.

    Raises:
        InputError: the rendered file was edited by hand.
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed.
    """
    file = plans.write(plan)
    with _alone(plan) as data:
        made = _site(plan, file, data)
        try:
            [stack] = fleet_plans.make(made)
            return _said(made, stack)
        finally:
            apply.forget_plans(made)


def deploy(plan: Plan, agree: Callable[[str], None], *, force: bool = False) -> bool:
    """Brings the stack to what the plan says, and waits until it answers; False where nothing is to be changed.

    Args:
        agree: shown what will change; raises where the user does not want it.
        force: overwrite a rendered file that was edited by hand.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        AnswerIsNo: an image is missing, or it did not come to answer; what ran before runs again.
        CommandFailed: Terraform failed; the same command goes on.
    """
    file = plans.write(plan, force=force)
    with _alone(plan) as data:
        made = _site(plan, file, data)
        [stack] = fleet_plans.make(made)
        changes = _said(made, stack)
        if not changes:
            apply.forget_plans(made)
            return False
        if not made.endpoint:
            _require_images(plan)
        agree(changes)
        apply.apply(made, [stack])
        if made.endpoint:
            console.err.print(f"  {EMULATED}", markup=False)
            return True
        found, aws = _found(plan), Aws(plan.fleet.value.region)
        outputs = context.states(made)[stack.name].outputs
        _wake(aws, found)
        limit = _MACHINES_S + max(one.fetch_s + one.probe.deadline_s for one in found.serving.engines if one.probe)
        with console.step(f"Wait for {plan.deployment.name}'s answers (at most {limit / 60:.0f} min)") as step:
            _wait_steady(aws, found, outputs["definitions"], limit, lambda text: setattr(step, "note", text))
        with console.step("Ask it, as a client would"):
            _ask(aws, found, outputs["ask"])
    return True


def members(plan: Plan) -> list[Member]:
    """The deployment's tasks, by role and name.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    found, ecs = _found(plan), Aws(plan.fleet.value.region).client("ecs")
    with clients.refusals():
        tasks = [
            _member(service, task) for service, name in found.services for task in _tasks(ecs, found, name, "RUNNING")
        ]
    return sorted(tasks, key=lambda one: (one.role, one.name))


def logs(plan: Plan, role: str | None, *, lines: int, follow: bool) -> None:
    """Shows what the tasks write, each line with its role and task.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    found, client = _found(plan), Aws(plan.fleet.value.region).client("logs")
    since = 0
    with clients.refusals():
        for said in _last(client, found, role, lines):
            console.out.print(said, markup=False)
        while follow:
            since = since or int(time.time() * 1000)
            time.sleep(2)
            for event in _events(client, found, role, since):
                since = max(since, event["timestamp"] + 1)
                console.out.print(_line(event["logStreamName"], event["message"]), markup=False)


def reachable(plan: Plan) -> AbstractContextManager[str]:
    """A URL of the deployment on this machine, by a session of Systems Manager to a router's task: good for a trial,
    not for load tests of thousands of requests a second.

    Raises:
        Unavailable: the AWS command line or its session plugin is missing, or no router's task runs.
    """
    addons.require_tools(_SESSION)
    found, aws = _found(plan), Aws(plan.fleet.value.region)
    cluster = names.cluster(found.fleet)
    services = [name for service, name in found.services if service.role == plan.deployment.router.name]
    with clients.refusals():
        tasks = [task for name in services for task in _tasks(aws.client("ecs"), found, name, "RUNNING")]
    running = [
        (_short(task["taskArn"]), container["runtimeId"])
        for task in tasks
        for container in task["containers"]
        if container["name"] == plan.deployment.router.name and container.get("runtimeId")
    ]
    if not running:
        raise Unavailable(f"{plan.deployment.name}: no task of its router runs")
    task, container = running[0]
    port = plan.deployment.router.processes[0].port
    words = ["aws", "ssm", "start-session", "--region", aws.region, "--target", f"ecs:{cluster}_{task}_{container}"]
    words += ["--document-name", "AWS-StartPortForwardingSession", "--parameters"]
    return tunnel.through(
        lambda near: [*words, f"portNumber={port},localPortNumber={near}"], plan.run.logs / "tunnel.log"
    )


def destroy(plan: Plan) -> bool:
    """Removes the stack and waits until its tasks are gone; False where there was none.

    Raises:
        Unavailable: Terraform is missing, or AWS cannot be asked.
        CommandFailed: Terraform failed; the same command goes on.
    """
    with _alone(plan) as data:
        made = _site(plan, _rendered(plan), data)
        if not any(state.resources for state in context.states(made).values()):
            return False
        with console.step(f"Remove {plan.deployment.name} from {made.at}"):
            words = ("destroy", "-auto-approve", "-input=false")
            runner.run(made.program, made.folders, words, timeout_s=apply.LIMIT_S, grace_s=apply.GRACE_S)
    return True


@contextmanager
def _alone(plan: Plan) -> Iterator[Path]:
    """The deployment's own folder, held by this command alone; whoever called it may hold the fleet's.

    Raises:
        Unavailable: another command is at work on it.
    """
    data = context.data_of(plan.fleet.value) / f"serving-{plan.deployment.name}"
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with processes.locked(data / ".busy", f"another command is at work on {plan.deployment.name} from here"):
        yield data


def _site(plan: Plan, file: Path, data: Path) -> Site:
    """The deployment's stack, synthesized and ready for Terraform."""
    from llm_serving.aws.preflight import identity

    account = identity.whoami(Aws(plan.fleet.value.region)).account
    endpoint = context.endpoint_here()
    out = data / "cdktf.out" if endpoint else plan.run.root / "cdktf.out"
    with console.step(f"Synthesize the stack of {console.near(file)}") as step:
        from infra import main  # starts Node: only where something is synthesized

        folders = main.synthesize_serving(plan.fleet, out, file)
        step.note = ", ".join(console.near(folder / "cdk.tf.json") for folder in folders.values())
    program = stacks.find_terraform(folders, data, embedded=endpoint is not None)
    made = Site(plan.fleet, data, folders, program, endpoint, account)
    context.connect(made)
    return made


def _require_images(plan: Plan) -> None:
    """Sees that the fleet's registry has the images that are to come from there.

    Raises:
        AnswerIsNo: one is not there; a task would wait for it until the deployment is given up.
    """
    from botocore.exceptions import ClientError

    own = f"{plan.deployment.place.registry}/"
    ecr = Aws(plan.fleet.value.region).client("ecr")
    for image in dict.fromkeys(service.image for service in _found(plan).serving.services):
        if not image.startswith(own):
            continue
        name, _, tag = image.removeprefix(own).partition(":")
        with clients.refusals():
            try:
                repository = f"{plan.fleet.value.name}/{name}"
                ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
            except ClientError as error:
                if clients.code(error) not in ("ImageNotFoundException", "RepositoryNotFoundException"):
                    raise
                raise AnswerIsNo(
                    f"the image {image} is not in the fleet's registry. Nothing was changed; name {name} in "
                    f"storage.repositories of {plan.fleet.path}, apply the stack storage, and run "
                    f"images/build {name} --fleet {plan.fleet.path}"
                ) from None


def _found(plan: Plan) -> _Found:
    return _Found(plan.fleet.value, manifest.read(_rendered(plan), plan.fleet).value)


def _rendered(plan: Plan) -> Path:
    """What was deployed, as it lies there; rendered now where it does not."""
    file = plan.rendered / FILE
    return file if file.is_file() else plans.write(plan)


def _said(made: Site, stack: StackPlan) -> str:
    """Terraform's plan, a line a resource."""
    if stack.empty:
        return ""
    log = (made.folders[stack.name] / "plan.log").read_text(encoding="utf-8")
    lines = [f"  {what}: {address}" for address, what in _TOUCHED.findall(log)]
    return "\n".join([f"{stack.name}: {fleet_plans.short(stack)}", *lines])


def _wake(aws: Aws, found: _Found) -> None:
    """Brings a replica of each role that sleeps: what was deployed must answer. It sleeps again when nobody asks it."""
    ecs, cluster = aws.client("ecs"), names.cluster(found.fleet)
    for service in found.serving.sleepers:
        first = found.names_of(service)[0]
        with clients.refusals():
            [said] = ecs.describe_services(cluster=cluster, services=[first])["services"]
            if said["desiredCount"] == 0:
                ecs.update_service(cluster=cluster, service=first, desiredCount=service.first)


def _wait_steady(aws: Aws, found: _Found, definitions: Mapping[str, str], limit_s: float, note: Note) -> None:
    """Waits until every service has the tasks that it should, of what was deployed, and each has answered.

    Which of a pool's choices they are found on does not matter: where the first has no machines, another one serves.

    Raises:
        AnswerIsNo: one failed and was rolled back, or is not there in time; with its reason and last lines.
    """
    ecs, end = aws.client("ecs"), time.monotonic() + limit_s
    while True:
        late = []
        for service in found.serving.services:
            with clients.refusals():
                failed = _failed(ecs, found, service, definitions[service.name])
                ready = _ready_tasks(ecs, found, service, definitions[service.name])
            if failed:
                raise AnswerIsNo(_why(aws, found, service, failed, "ECS has rolled it back to what ran before"))
            late += [(service, ready)] if ready < service.first else []
        note(", ".join(f"{service.name} {ready} of {service.first}" for service, ready in late) or "done")
        if not late:
            return
        if time.monotonic() > end:
            still = "it still tries; `blueprint logs` follows it"
            raise AnswerIsNo(_why(aws, found, late[0][0], "not in time", still))
        time.sleep(_EVERY_S)


def _failed(ecs: Any, found: _Found, service: Service, definition: str) -> str:
    """Why a service's deployment was given up; empty where it was not."""
    described = ecs.describe_services(cluster=names.cluster(found.fleet), services=found.names_of(service))
    for one in described["services"]:
        for row in one["deployments"]:
            if row.get("rolloutState") == "FAILED":
                return row.get("rolloutStateReason") or "its deployment failed"
            if row["status"] == "PRIMARY" and row["taskDefinition"] != definition:
                return f"its deployment was given up, and {_short(row['taskDefinition'])} runs again"
    return ""


def _ready_tasks(ecs: Any, found: _Found, service: Service, definition: str) -> int:
    tasks = [task for name in found.names_of(service) for task in _tasks(ecs, found, name, "RUNNING")]
    return sum(_is_ready(service, task) for task in tasks if task["taskDefinitionArn"] == definition)


def _why(aws: Aws, found: _Found, service: Service, reason: str, then: str) -> str:
    """What is known of a service that does not answer: why its last tasks ended, and what they wrote."""
    said = [f"{service.name} does not answer: {reason}; {then}"]
    try:
        with clients.refusals():
            ecs = aws.client("ecs")
            stopped = [task for name in found.names_of(service) for task in _tasks(ecs, found, name, "STOPPED")]
            said += [f"  {_short(task['taskArn'])}: {task.get('stoppedReason', '')}" for task in stopped[:3]]
            said += list(_last(aws.client("logs"), found, service.role, _LAST_LINES))
    except Unavailable as error:
        said.append(f"its log cannot be read: {error}")
    return "\n".join(said)


def _ask(aws: Aws, found: _Found, ask: dict[str, Any]) -> None:
    """Has a task in the VPC ask the router for a completion.

    Raises:
        AnswerIsNo: no answer came; with what the task said.
    """
    ecs, cluster = aws.client("ecs"), names.cluster(found.fleet)
    network = {"subnets": ask["subnets"], "securityGroups": [ask["group"]], "assignPublicIp": "DISABLED"}
    with clients.refusals():
        started = ecs.run_task(
            cluster=cluster,
            taskDefinition=ask["task_definition"],
            launchType="FARGATE",
            networkConfiguration={"awsvpcConfiguration": network},
        )
        if started["failures"]:
            raise AnswerIsNo(f"the question could not be asked: {started['failures'][0].get('reason')}")
        arn, end = started["tasks"][0]["taskArn"], time.monotonic() + _ASK_S
        while time.monotonic() < end:
            [task] = ecs.describe_tasks(cluster=cluster, tasks=[arn])["tasks"]
            if task["lastStatus"] == "STOPPED":
                break
            time.sleep(_EVERY_S / 2)
        if task["containers"][0].get("exitCode") != 0:
            said = "\n".join(_last(aws.client("logs"), found, "ask", _LAST_LINES))
            raise AnswerIsNo(f"the router gave no answer: {task.get('stoppedReason', 'not in time')}\n{said}")


def _tasks(ecs: Any, found: _Found, name: str, status: str) -> list[dict[str, Any]]:
    """Tasks of an ECS service; none where there is no such service or cluster."""
    from botocore.exceptions import ClientError

    cluster = names.cluster(found.fleet)
    try:
        pages = ecs.get_paginator("list_tasks").paginate(cluster=cluster, serviceName=name, desiredStatus=status)
        arns = [arn for page in pages for arn in page["taskArns"]]
    except ClientError as error:
        if clients.code(error) in ("ServiceNotFoundException", "ClusterNotFoundException"):
            return []
        raise
    batches = [arns[first : first + 100] for first in range(0, len(arns), 100)]
    return [task for some in batches for task in ecs.describe_tasks(cluster=cluster, tasks=some)["tasks"]]


def _member(service: Service, task: dict[str, Any]) -> Member:
    why = "no answer yet" if task["lastStatus"] == "RUNNING" else task["lastStatus"].lower()
    return Member(
        name=_short(task["taskArn"]),
        role=service.role,
        state=READY if _is_ready(service, task) else why,
        restarts=0,
        machine=_short(task.get("containerInstanceArn", "")) or task.get("launchType", "").lower(),
    )


def _is_ready(service: Service, task: dict[str, Any]) -> bool:
    """Whether a task has answered; that it runs, where it is not asked."""
    healthy = task.get("healthStatus") == "HEALTHY" or service.probe is None
    return bool(task["lastStatus"] == "RUNNING" and healthy)


def _last(client: Any, found: _Found, role: str | None, lines: int) -> Iterator[str]:
    """The last lines of the streams that were written to last."""
    from botocore.exceptions import ClientError

    group = manifest.log_group(found.fleet, found.serving.name)
    try:
        streams = client.describe_log_streams(logGroupName=group, orderBy="LastEventTime", descending=True)
    except ClientError as error:
        if clients.code(error) == "ResourceNotFoundException":
            return
        raise
    mine = [one["logStreamName"] for one in streams["logStreams"]]
    for stream in [one for one in mine if role is None or one.startswith(f"{role}/")][:3]:
        events = client.get_log_events(logGroupName=group, logStreamName=stream, limit=max(1, lines))["events"]
        yield from (_line(stream, event["message"]) for event in events[:lines])


def _events(client: Any, found: _Found, role: str | None, since: int) -> Iterator[dict[str, Any]]:
    group = manifest.log_group(found.fleet, found.serving.name)
    prefix = {"logStreamNamePrefix": f"{role}/"} if role else {}
    for page in client.get_paginator("filter_log_events").paginate(logGroupName=group, startTime=since, **prefix):
        yield from page["events"]


def _line(stream: str, message: str) -> str:
    """Streams are named ROLE/CONTAINER/TASK."""
    role, _, rest = stream.partition("/")
    return f"{role} {_short(rest)[:8]} | {message.rstrip()}"


def _short(arn: str) -> str:
    return arn.rpartition("/")[2]
