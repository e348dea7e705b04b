"""What a stack presumes of another by its name alone: nothing else in Terraform ties the two together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.infra.deployments import ACCOUNT, Stack

Name = tuple[str, str]
"""Kind and name, such as `("log group", "/aws/ecs/demo/chat")`."""

_IMAGE = re.compile(r"\.dkr\.ecr\.[\w.-]+/([\w./-]+)[:@]")
_CLUSTER = re.compile(r":cluster/([\w-]+)")

_BOTH = {
    "aws_kms_alias": "key alias",
    "aws_service_discovery_http_namespace": "namespace",
    "aws_ecs_cluster": "cluster",
    "aws_eks_cluster": "cluster",
    "aws_s3_bucket": "bucket",
    "aws_sqs_queue": "queue",
    "aws_vpc": "vpc",
    "aws_subnet": "subnet",
}

_DATA = {**_BOTH, "aws_service_discovery_dns_namespace": "namespace"}
"""Kind by type of a data source."""

_RESOURCES = {
    **_BOTH,
    "aws_service_discovery_private_dns_namespace": "namespace",
    "aws_ecr_repository": "repository",
    "aws_ecr_pull_through_cache_rule": "repository",
    "aws_cloudwatch_log_group": "log group",
}
"""Kind by type of a resource."""


def list_presumed(stack: Stack) -> Iterator[Name]:
    """Yield what a stack names and does not refer to."""
    for data_type, kind in _DATA.items():
        for settings in stack.get("data", {}).get(data_type, {}).values():
            if name := _read_name(settings):
                yield kind, name
    resources = stack.get("resource", {})
    for service in resources.get("aws_ecs_service", {}).values():
        strategy = service.get("capacity_provider_strategy", [])
        yield from (("capacity provider", item["capacity_provider"]) for item in strategy)
        yield from (("cluster", name) for name in _CLUSTER.findall(service["cluster"]))
    for task in resources.get("aws_ecs_task_definition", {}).values():
        for container in json.loads(task["container_definitions"]):
            yield from (("repository", name) for name in _IMAGE.findall(container["image"]))
            if group := container.get("logConfiguration", {}).get("options", {}).get("awslogs-group"):
                yield "log group", group
    for association in resources.get("aws_eks_pod_identity_association", {}).values():
        if "$" not in association["cluster_name"]:
            yield "cluster", association["cluster_name"]


def list_created(stack: Stack) -> Iterator[Name]:
    """Yield what a stack creates, by the name that others know it by."""
    resources = stack.get("resource", {})
    for resource_type, kind in _RESOURCES.items():
        for settings in resources.get(resource_type, {}).values():
            if name := _read_name(settings):
                yield kind, name
    providers = resources.get("aws_ecs_capacity_provider", {})
    for association in resources.get("aws_ecs_cluster_capacity_providers", {}).values():
        for provider in association["capacity_providers"]:
            name = re.fullmatch(r"\$\{aws_ecs_capacity_provider\.([\w-]+)\.name\}", provider)
            yield "capacity provider", providers[name[1]]["name"] if name else provider


def find_missing(stacks: Mapping[str, Stack]) -> list[str]:
    """Return what a stack presumes and none of them creates."""
    created = {name for stack in stacks.values() for name in list_created(stack)}
    prefixes = {name for kind, name in created if kind == "repository"}
    return [
        f'{owner}: {kind} "{name}"'
        for owner, stack in stacks.items()
        for kind, name in sorted(set(list_presumed(stack)))
        if (kind, name) not in created
        and not name.startswith("${")  # a reference, which Terraform itself checks
        and not (kind == "repository" and any(name.startswith(f"{prefix}/") for prefix in prefixes))
    ]


def _read_name(settings: Mapping[str, Any]) -> str | None:
    name = settings.get("name") or settings.get("bucket") or settings.get("ecr_repository_prefix")
    name = name or settings.get("tags", {}).get("Name")
    return name.replace("${data.aws_caller_identity.account.account_id}", ACCOUNT) if name else None
