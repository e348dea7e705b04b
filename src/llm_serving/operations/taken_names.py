"""Names that a plan would take from another fleet or stack: a fleet `ml-dev` with a deployment `a` has names of a fleet
`ml` with a deployment `dev-a`, and a batch `a-b` with a team `c` those of a batch `a` with a team `b-c`.

AWS refuses most names that are taken, and Terraform ends with its reason. Not so those below: PutMetricAlarm and
PutRule replace what has the name, CreateQueue returns a queue with equal attributes, and `log_groups` takes over what
exists. Each later apply of either stack would undo the other's, and a destroy end both. Nor does EC2 refuse a second
VPC of the same tags, between which no stack of either fleet could choose.

Sources: CloudWatch API reference, PutMetricAlarm; EventBridge, PutRule; SQS, CreateQueue; 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_serving.aws import session
from llm_serving.fleet import names
from llm_serving.fleet.checks import join_words
from llm_serving.operations import log_groups
from llm_serving.operations.context import FleetContext
from llm_serving.operations.plans import StackPlan
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform import stack_folder

Tags = Mapping[str, str]


def require_free(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that nothing of another fleet or stack has a name of what the plans make.

    Raises:
        CheckFailed: something has; names all of it, with its owner and the fix.
        Unavailable: AWS refuses, or does not answer.
    """
    _require_only_network(context, stack_plans)
    taken_names = [line for plan in stack_plans for line in _list_taken(context, plan)]
    if taken_names:
        raise CheckFailed(
            f"{context.document.path}: names of the plan are taken: {join_words(taken_names)}. Nothing of it was "
            "changed. Fix: choose another `name` of the deployment or the fleet"
        )


def _require_only_network(context: FleetContext, stack_plans: Sequence[StackPlan]) -> None:
    """Require that no VPC has the tags by which stacks look up the one that a plan makes."""
    changes = [change for plan in stack_plans for change in plan.plan.select("aws_vpc").values()]
    if any(change.actions == ("create",) for change in changes):
        require_no_network(context)


def require_no_network(context: FleetContext) -> None:
    """Require that no fleet of the name has a VPC of its own, of which the state of this one has nothing.

    Raises:
        CheckFailed: one has.
        Unavailable: AWS refuses, or does not answer.
    """
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in names.build_vpc_tags(context.fleet).items()]
    with session.translate_errors():
        vpcs = session.list_all(context.aws.client("ec2"), "describe_vpcs", "Vpcs", Filters=filters)
    if vpcs:
        ids = join_words(vpc["VpcId"] for vpc in vpcs)
        reason = f"{ids} in this account and region is a fleet's of this name, and not in the state of this one"
        fix = "choose another name, or run this with the state of that fleet; one that an apply left over that was "
        fix += "killed, delete in the VPC console, which deletes its subnets too"
        mistake = context.document.build_mistake(("name",), context.fleet.name, reason, fix)
        raise CheckFailed(f"{mistake} Nothing was changed")


def _list_taken(context: FleetContext, plan: StackPlan) -> Iterator[str]:
    addresses = [
        address for address, change in plan.plan.resources.items() if "create" in change.actions or change.is_import
    ]
    if not any(address.partition(".")[0] in _READERS for address in addresses):
        return
    resources = stack_folder.read_stack(context.folders[plan.name])["resource"]
    for address in addresses:
        kind, _, key = address.partition(".")
        name = resources[kind][key].get("name", "") if kind in _READERS and key in resources[kind] else ""
        if not name or "${" in name:
            continue
        service, read = _READERS[kind]
        with session.translate_errors():
            tags = read(context.aws.client(service), name)
        owner = {"fleet": tags.get("fleet", context.fleet.name), "stack": tags.get("stack", plan.name)}
        if owner != {"fleet": context.fleet.name, "stack": plan.name}:
            yield f"{name} (of {owner['stack']}, fleet {owner['fleet']})"


def _read_alarm(cloudwatch: Any, name: str) -> Tags:
    for alarm in cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"]:
        return _convert_tags(cloudwatch.list_tags_for_resource(ResourceARN=alarm["AlarmArn"])["Tags"])
    return {}


def _read_rule(events: Any, name: str) -> Tags:
    for rule in session.list_all(events, "list_rules", "Rules", NamePrefix=name):
        if rule["Name"] == name:
            return _convert_tags(events.list_tags_for_resource(ResourceARN=rule["Arn"])["Tags"])
    return {}


def _read_queue(sqs: Any, name: str) -> Tags:
    for url in sqs.list_queues(QueueNamePrefix=name).get("QueueUrls", []):
        if url.rpartition("/")[2] == name:
            tags: Tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
            return tags
    return {}


def _read_log_group(logs: Any, name: str) -> Tags:
    arn = log_groups.find_arn(logs, name)
    tags: Tags = logs.list_tags_for_resource(resourceArn=arn)["tags"] if arn else {}
    return tags


def _convert_tags(rows: Sequence[Mapping[str, str]]) -> Tags:
    return {row["Key"]: row["Value"] for row in rows}


_READERS: Mapping[str, tuple[str, Callable[[Any, str], Tags]]] = {
    "aws_cloudwatch_metric_alarm": ("cloudwatch", _read_alarm),
    "aws_cloudwatch_event_rule": ("events", _read_rule),
    "aws_sqs_queue": ("sqs", _read_queue),
    log_groups.KIND: ("logs", _read_log_group),
}
"""The service of each kind, and what reads the tags of one by its name; none where there is none, or it has none."""
