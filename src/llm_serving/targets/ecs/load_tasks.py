"""The load drivers of a validation on ECS: a Fargate task for each process, apart from the engines' instances.

The task definition is registered for one load and deleted after it, since its image is that of this very code. So is
the secret with the URLs of the tasks' inputs: whoever may describe a task reads its command. A task has no role of its
own. The serving stack has its security group, which routers and engines let in.

A kind whose deployments answer no requests brings a program of its own: its stack has the group, and the role of the
task.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_serving import console, processes
from llm_serving.aws import s3, session
from llm_serving.aws.preflight import identity
from llm_serving.fleet import names
from llm_serving.fleet.ecs_services import format_driver_group_name, format_load_secrets, format_log_group
from llm_serving.operations import ecs_tasks
from llm_serving.services.load_program import ARCHIVE_FILE, LoadProgram
from llm_serving.settings import own_yaml
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import images, remote_files
from llm_serving.validation.remote.messages import INPUTS_VARIABLE, pack_urls

NAME = "load-driver"

_FILE = Path(__file__).with_name("load_tasks.yaml")

_INPUT_VARIABLE, _ARCHIVE_VARIABLE = "BLUEPRINT_LOAD_INPUT", "BLUEPRINT_LOAD_ARCHIVE"
"""Where a program's container finds the URLs of its input and of its archive."""

_START = f"""\
set -eu
curl --fail --silent --show-error --retry 5 --output {ARCHIVE_FILE} "${_ARCHIVE_VARIABLE}"
printf %s "${_INPUT_VARIABLE}" >/tmp/load-input
unset {_ARCHIVE_VARIABLE} {_INPUT_VARIABLE}
exec "$@" /tmp/load-input
"""
"""Shell that becomes the program of its arguments."""


@contextlib.contextmanager
def run(plan: DeploymentPlan, urls: Sequence[str], program: LoadProgram | None = None) -> Iterator[LoadTasks]:
    """Run a task for each input's URL, and stop them and delete their definition after the block.

    Args:
        program: what the tasks run; the image of load drivers if None.

    Raises:
        CheckFailed: ECS starts no task; with its reason.
        Unavailable: AWS refuses, or the deployment has no security group for load drivers.
    """
    with session.translate_errors():
        network = _find_network(plan, program.security_groups if program else ())
        variables = _sign_program(plan, program, *urls) if program else {INPUTS_VARIABLE: pack_urls(urls)}
        with _store_inputs(plan, variables) as inputs:
            client, started = plan.aws.client("ecs"), list[str]()
            cluster = names.format_cluster_name(plan.fleet.value)
            parameters = build_definition(plan, inputs, variables, program)
            definition = client.register_task_definition(**parameters)["taskDefinition"]["taskDefinitionArn"]
            request = {"taskDefinition": definition, "launchType": "FARGATE", "networkConfiguration": network}
            try:
                for index in range(len(urls)):
                    command = list(program.command) if program else [str(index)]
                    overrides = {"containerOverrides": [{"name": NAME, "command": command}]}
                    started.append(ecs_tasks.start(client, cluster=cluster, overrides=overrides, **request))
                yield LoadTasks(client, cluster, started)
            finally:
                _remove_tasks(client, cluster, started, definition)


def _sign_program(plan: DeploymentPlan, program: LoadProgram, url: str) -> dict[str, str]:
    """Return the URLs of a program's input and of its archive."""
    folder, _, name = program.archive.rpartition("/")
    if name not in s3.Bucket(s3.parse_location(f"{folder}/"), env=plan.aws.variables).list_sizes():
        reason = "is not there: what is deployed was built from other code"
        raise Unavailable(f"{program.archive} {reason}. Fix: run blueprint deploy.")
    [archive] = remote_files.sign_files(plan.aws, f"{folder}/", [name]).values()
    return {_INPUT_VARIABLE: url, _ARCHIVE_VARIABLE: archive}


@contextlib.contextmanager
def _store_inputs(plan: DeploymentPlan, variables: Mapping[str, str]) -> Iterator[str]:
    """Keep variables of the tasks in a secret, which is deleted after the block; return its ARN."""
    client = plan.aws.client("secretsmanager")
    # The deployment's execution role may read what lies there, and no other secret.
    name = f"{format_load_secrets(plan.fleet.value, plan.deployment.name)}{secrets.token_hex(8)}"
    tags = [{"Key": "fleet", "Value": plan.fleet.value.name}]
    secret = client.create_secret(Name=name, SecretString=json.dumps(variables), Tags=tags)["ARN"]
    try:
        yield secret
    finally:
        with processes.ignore_signals():
            _remove(client, "secretsmanager delete-secret", SecretId=secret, ForceDeleteWithoutRecovery=True)


def _remove_tasks(client: Any, cluster: str, tasks: Sequence[str], definition: str) -> None:
    """Stop the tasks and delete their definition: each, whatever becomes of the others; name what is left."""
    with processes.ignore_signals():  # a second one would leave tasks that cost
        for task in tasks:
            _remove(client, "ecs stop-task", cluster=cluster, task=task, reason="the load ended")
        _remove(client, "ecs deregister-task-definition", taskDefinition=definition)
        _remove(client, "ecs delete-task-definitions", taskDefinitions=[definition])


def _remove(client: Any, command: str, **parameters: Any) -> None:
    """Remove a part of the load by a call that is a command of the AWS CLI too; where it fails, print that."""
    operation = command.partition(" ")[2].replace("-", "_")
    if reason := _find_refusal(functools.partial(getattr(client, operation), **parameters)):
        options = session.format_options(parameters)
        words = console.quote_command(["aws", *command.split(), *options, "--region", client.meta.region_name])
        console.err.print(f"Part of the load's tasks was not removed: {reason}\nFix: run {words}", markup=False)


def _find_refusal(call: Callable[[], dict[str, Any]]) -> str | None:
    """Return why a call did not do its work, also where ECS says so in an answer without an error."""
    try:
        failures = call().get("failures") or []
    except session.get_error_types() as error:
        return str(error)
    return ", ".join(failure.get("reason", "no reason") for failure in failures) or None


class LoadTasks:
    """Tasks that were started."""

    def __init__(self, client: Any, cluster: str, tasks: Sequence[str]) -> None:
        self._client, self._cluster, self._tasks = client, cluster, tasks

    def describe(self) -> str:
        """Say how far the tasks are, in ECS' words."""
        states = Counter(task["lastStatus"].lower() for task in self._list_tasks())
        return ", ".join(f"{count} {state}" for state, count in states.items()) or "no tasks yet"

    def find_failure(self) -> str | None:
        """Return why a task stopped that should not have; None if none did."""
        for task in self._list_tasks():
            codes = [container.get("exitCode") for container in task.get("containers", ())]
            if task["lastStatus"] == "STOPPED" and codes != [0]:
                reasons = [container.get("reason", "") for container in task.get("containers", ())]
                words = " ".join(filter(None, (task.get("stoppedReason", "no reason"), *reasons)))
                return f"{task['taskArn'].rpartition('/')[2]}: {words}"
        return None

    def _list_tasks(self) -> list[dict[str, Any]]:
        with contextlib.suppress(*session.get_error_types()):  # ECS may answer the next time, and the load goes on
            return ecs_tasks.describe_tasks(self._client, self._cluster, self._tasks)
        return []


def build_definition(
    plan: DeploymentPlan, inputs: str, variables: Iterable[str], program: LoadProgram | None = None
) -> dict[str, Any]:
    """Build RegisterTaskDefinition's parameters.

    Args:
        inputs: ARN of the secret with the tasks' variables.
        variables: their names, which are the keys of its JSON.
        program: what the tasks run; the image of load drivers if None.
    """
    fleet, deployment, templates = plan.fleet.value, plan.deployment, own_yaml.read(_FILE)
    values = {
        "family": f"{fleet.name}-{deployment.name}-load",
        "fleet": fleet.name,
        "region": fleet.region,
        "name": NAME,
        "image": program.image if program else images.format_load_driver(plan),
        "execution_role": _format_role(plan, "start"),
        "log_group": format_log_group(fleet, deployment.kind, deployment.name),
        # A key of a secret's JSON. Source: ECS developer guide, "Pass Secrets Manager secrets through Amazon ECS
        # environment variables", 2026-11; on Fargate from platform version 1.4.0.
        "secrets": [{"name": name, "valueFrom": f"{inputs}:{name}::"} for name in variables],
        "start": _START,
    }
    task: dict[str, Any] = own_yaml.fill_values(templates["task"], values)
    if program:
        task["taskRoleArn"] = _format_role(plan, program.role)
        task["containerDefinitions"][0] |= own_yaml.fill_values(templates["program"], values)
    return task


def _format_role(plan: DeploymentPlan, part: str) -> str:
    fleet, caller = plan.fleet.value, identity.fetch_identity(plan.aws)
    purpose = names.format_deployment_purpose(plan.deployment.name, part)
    role = names.format_role_name(fleet.name, fleet.region, purpose)
    return f"arn:{caller.arn.split(':')[1]}:iam::{caller.account}:role/{role}"


def _find_network(plan: DeploymentPlan, further_groups: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fleet's private subnets, and the stack's security groups: that of load drivers, and further ones."""
    fleet, ec2 = plan.fleet.value, plan.aws.client("ec2")
    security_groups = []
    for name in (format_driver_group_name(fleet, plan.deployment.name), *further_groups):
        security_group = ecs_tasks.find_security_group(ec2, fleet, name)
        if security_group is None:
            alternative = "" if further_groups else ", or --load-from here"
            raise Unavailable(
                f"the security group {name} does not exist: the deployment is older than load drivers on ECS, or gone. "
                f"Fix: run blueprint deploy{alternative}"
            )
        security_groups.append(security_group)
    subnets = ecs_tasks.find_private_subnets(ec2, fleet, fleet.zones)
    settings = {"subnets": subnets, "securityGroups": security_groups, "assignPublicIp": "DISABLED"}
    return {"awsvpcConfiguration": settings}
