"""What every synthesized stack keeps, whatever its fleet: checked in the JSON itself before it is used.

A rule that breaks is a mistake in a construct and not in the fleet file. Each rule takes a stack as Terraform reads it
and names the places that break it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances
from llm_serving.fleet import interfaces, names
from llm_serving.fleet.groups import MAX_PROVIDERS
from llm_serving.fleet.model import Fleet
from llm_serving.settings import own_yaml
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed

MAX_TASK_BYTES = 64 * 1024
"""Of a task definition. Source: Amazon ECS service quotas, "Task definition size", 2026-11."""

Stack = Mapping[str, Any]
Violations = Iterator[str]

ACTIONS_WITHOUT_RESOURCE = tuple(own_yaml.read(Path(__file__).with_name("actions_without_resource.yaml")))
"""Beginnings of actions that AWS takes no resource for."""


def validate_stacks(document: Document[Fleet], folders: Mapping[str, Path]) -> None:
    """Raise a CheckFailed with every rule that one of the synthesized stacks in these folders breaks."""
    stacks = {name: json.loads((folder / "cdk.tf.json").read_text()) for name, folder in folders.items()}
    if violations := list(find_violations(document.value, stacks)):
        violation_lines = "\n".join(f"  {line}" for line in violations)
        raise CheckFailed(
            f"{document.path}: its stacks break rules of infra/stack_rules.py. The bug is in a construct below infra/, "
            f"not in this file; nothing was applied:\n{violation_lines}"
        )


def find_violations(fleet: Fleet, stacks: Mapping[str, Stack]) -> Violations:
    """Return what breaks a rule, as in `eks: aws_launch_template.h100-template: ...`."""
    for name, stack in stacks.items():
        for rule in RULES:
            yield from (f"{name}: {line}" for line in rule(stack))
        for fleet_rule in FLEET_RULES:
            yield from (f"{name}: {line}" for line in fleet_rule(stack, fleet))


def list_resources(stack: Stack, *types: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Addresses and settings of a stack's resources; of all types where none is named."""
    for found_type, resources_by_name in stack.get("resource", {}).items():
        if not types or found_type in types:
            yield from ((f"{found_type}.{name}", settings) for name, settings in resources_by_name.items())


def list_statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy, with the address of its resource."""
    for address, settings in list_resources(stack):
        for name in ("policy", "assume_role_policy"):
            text = settings.get(name)
            if isinstance(text, str) and text.startswith('{"Version"'):
                yield from ((address, statement) for statement in json.loads(text)["Statement"])


def check_empty_structs(stack: Stack) -> Violations:
    """List that hold a struct without a value: CDKTF makes that of a dict with snake_case keys, without a word."""
    reason = (
        "CDKTF writes a dict with snake_case keys as an empty struct. Fix: use the struct's class, or camelCase keys"
    )
    for path, node in _list_values(stack):
        if path.endswith("]") and isinstance(node, Mapping) and all(value is None for value in node.values()):
            yield f"{path}: empty: {reason}."


_QUOTED_REFERENCE = re.compile(r'"((?:data\.)?aws_\w+\.[\w-]+\.\w[\w.\[\]]*)"')
"""Text that looks like a reference and is none: inside an expression CDKTF writes a token bare."""


def check_quoted_references(stack: Stack) -> Violations:
    """List references that Terraform reads as text, because they stand in quotes inside an expression."""
    reason = "Terraform takes it for text. Fix: write ${...} in the quotes, as format_reference does"
    for path, text in _list_values(stack):
        for reference in _QUOTED_REFERENCE.findall(text) if isinstance(text, str) else ():
            yield f"{path}: {reference}: {reason}."


def _list_values(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a value and all within it, each with its path, such as `resource.aws_lb.one.subnets[0]`."""
    yield path, node
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _list_values(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _list_values(value, f"{path}[{index}]")


def check_wildcards(stack: Stack) -> Violations:
    """Find the statements that allow every action of a service, or anybody.

    One is meant: a key's policy hands the key to the account's IAM policies (`kms:*` for the account's root).
    """
    for address, statement in _list_allow_statements(stack):
        principal = statement.get("Principal")
        delegation = address.startswith("aws_kms_key.") and str(principal).endswith(":root'}")
        actions = _ensure_list(statement["Action"])
        if any(action == "*" or action.endswith(":*") for action in actions) and not delegation:
            reason = "a wildcard allows every action of a service. Fix: list the actions that its program calls"
            yield f"{address}: Action {actions}: {reason}."
        if principal in ("*", {"AWS": "*"}):
            yield f"{address}: Principal {principal}: it allows every AWS account. Fix: name only the caller."


def check_broad_statements(stack: Stack) -> Violations:
    """Roles' statements that allow on every resource what takes a resource."""
    for address, statement in _list_allow_statements(stack):
        if "*" in _ensure_list(statement.get("Resource", [])) and not address.startswith("aws_kms_key."):
            broad_actions = sorted(
                action
                for action in _ensure_list(statement["Action"])
                if not action.startswith(ACTIONS_WITHOUT_RESOURCE)
            )
            if broad_actions:
                yield f"{address}: Resource * for {broad_actions}: each takes a resource. Fix: name its ARN."


def check_queue_senders(stack: Stack) -> Violations:
    """Queues that a service of AWS fills for whoever asks it, in any account.

    Source: IAM user guide, "The confused deputy problem", 2026-11.
    """
    for address, statement in _list_allow_statements(stack):
        is_sent_to = "sqs:SendMessage" in _ensure_list(statement["Action"])
        is_limited = "aws:SourceArn" in json.dumps(statement.get("Condition", {}))
        if is_sent_to and "Service" in statement.get("Principal", {}) and not is_limited:
            reason = "other accounts' rules fill it too. Fix: a condition on aws:SourceArn"
            yield f"{address}: Principal {statement['Principal']['Service']}: {reason}."


def check_open_ingress(stack: Stack) -> Violations:
    """Security group rules that let the internet in."""
    groups = ("aws_security_group", "aws_default_security_group", "aws_vpc_security_group_ingress_rule")
    for address, settings in list_resources(stack, *groups):
        sources = json.dumps([settings.get("ingress", []), settings.get("cidr_ipv4"), settings.get("cidr_ipv6")])
        if "0.0.0.0/0" in sources or "::/0" in sources:
            yield f"{address}: open to any address: the internet could reach it. Fix: use a security group as source."


_GROUP_DESCRIPTION = re.compile(r"[A-Za-z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}")
"""Of a security group or its rule. Source: EC2 API reference, CreateSecurityGroup and IpRange, 2026-11."""


def check_group_descriptions(stack: Stack) -> Violations:
    """Find descriptions of security groups and of their rules that EC2 refuses."""
    for address, settings in list_resources(stack):
        description = settings.get("description") or ""
        if "security_group" in address.partition(".")[0] and not _GROUP_DESCRIPTION.fullmatch(description):
            yield f"{address}: description {description!r}: EC2 refuses it. Fix: use letters, digits and spaces."


def check_launch_templates(stack: Stack) -> Violations:
    """Launch templates whose instances answer without a token, hand their role to containers, or write in the clear."""
    for address, settings in list_resources(stack, "aws_launch_template"):
        options = settings.get("metadata_options", {})
        tokens, hops = options.get("http_tokens"), options.get("http_put_response_hop_limit")
        if (tokens, hops) != ("required", 1):
            reason = "containers could read the credentials of the instance's role. Fix: required, and 1"
            yield f"{address}: http_tokens {tokens} and http_put_response_hop_limit {hops}: {reason}."
        volumes = [volume.get("ebs", {}) for volume in settings.get("block_device_mappings", [])]
        if not volumes or any(str(volume.get("encrypted")).lower() != "true" for volume in volumes):
            yield f"{address}: a volume in plain text: its snapshots would be too. Fix: encrypted = true."


def check_efa_zones(stack: Stack) -> Violations:
    """Find groups of EFA instances that span several zones."""
    efa_templates = [name for name, template in _list_templates(stack) if any(_list_efa(template))]
    for address, settings in list_resources(stack, "aws_eks_node_group", "aws_autoscaling_group"):
        subnets = settings.get("subnet_ids") or settings.get("vpc_zone_identifier") or []
        text = json.dumps(settings)
        efa = any(f"${{{template}." in text for template in efa_templates)
        if efa and len(set(subnets)) != 1:
            yield f"{address}: {len(set(subnets))} zones: EFA works within one zone. Fix: keep one subnet."


def check_efa_rules(stack: Stack) -> Violations:
    """EFA instances without a security group that allows all traffic within itself, in and out."""
    for direction, phrase in (("ingress", "ingress from"), ("egress", "egress to")):
        self_referencing_groups = {
            rule["security_group_id"]
            for _, rule in list_resources(stack, f"aws_vpc_security_group_{direction}_rule")
            if rule["security_group_id"] == rule.get("referenced_security_group_id") and rule["ip_protocol"] == "-1"
        }
        for address, template in _list_templates(stack):
            groups = [interface.get("security_groups", []) for interface in _list_efa(template)]
            if any(map(self_referencing_groups.isdisjoint, groups)):
                reason = "EFA needs all traffic within one security group. Fix: add a rule -1 that references the group"
                yield f"{address}: an EFA interface without {phrase} its own group: {reason}."


def check_provider_counts(stack: Stack) -> Violations:
    """Capacity provider strategies with more providers than ECS takes."""
    keys = {
        "aws_ecs_cluster_capacity_providers": "default_capacity_provider_strategy",
        "aws_ecs_service": "capacity_provider_strategy",
    }
    strategies = [
        (address, settings.get(key, []))
        for kind, key in keys.items()
        for address, settings in list_resources(stack, kind)
    ]
    for pool, services in stack.get("output", {}).get("strategies", {}).get("value", {}).items():
        strategies += [(f"output.strategies.{pool}", service) for service in services]
    for address, strategy in strategies:
        if len(strategy) > MAX_PROVIDERS:
            reason = f"ECS takes at most {MAX_PROVIDERS}. Fix: use fewer providers"
            yield f"{address}: {len(strategy)} capacity providers: {reason}."


def check_task_sizes(stack: Stack) -> Violations:
    """Task definitions larger than ECS takes."""
    for address, settings in list_resources(stack, "aws_ecs_task_definition"):
        size = len(settings["container_definitions"].encode())
        if size > MAX_TASK_BYTES:
            reason = f"ECS takes at most {MAX_TASK_BYTES:,}. Fix: shorten the containers' commands and environment"
            yield f"{address}: {size:,} bytes: {reason}."


def check_subnet_ranges(stack: Stack) -> Violations:
    """Subnets that overlap, or are outside their VPC."""
    subnets = {address: IPv4Network(subnet["cidr_block"]) for address, subnet in list_resources(stack, "aws_subnet")}
    for (first, subnet), (second, other_subnet) in combinations(subnets.items(), 2):
        if subnet.overlaps(other_subnet):
            yield f"{first}: {subnet}: it overlaps {second}, {other_subnet}. Fix: use a range of its own."
    for _, vpc in list_resources(stack, "aws_vpc"):
        for address, subnet in subnets.items():
            if not subnet.subnet_of(IPv4Network(vpc["cidr_block"])):
                yield f"{address}: {subnet}: it is outside the VPC. Fix: use a range within {vpc['cidr_block']}."


def check_interfaces(stack: Stack, fleet: Fleet) -> Violations:
    """Launch templates whose network interfaces differ from the catalog's layout of their type."""
    for address, template in _list_templates(stack):
        pool = fleet.pools.get(template["tag_specifications"][0]["tags"]["pool"])
        actual = [
            (interface.get("network_card_index"), interface.get("device_index"), interface.get("interface_type"))
            for interface in template.get("network_interfaces", [])
        ]
        expected = []
        if pool and pool.efa:
            row = instances.find(template["instance_type"])
            expected = [
                (interface.card, interface.device, interface.kind)
                for interface in interfaces.list_requested(
                    row, efa=True, layout=pool.efa_layout, task_interfaces=fleet.get_orchestrator(pool) == "ecs"
                )
            ]
        if actual != expected:
            yield f"{address}: interfaces {actual}: the instance type has another layout. Fix: {expected}."


def check_tags(stack: Stack, fleet: Fleet) -> Violations:
    """Find what does not carry the fleet's tags: by the provider, and where the provider's do not reach."""
    expected = names.build_tags(fleet).items()
    for provider in stack["provider"]["aws"]:
        default_tags: dict[str, str] = {}
        for block in provider.get("default_tags", []):
            default_tags |= block["tags"]
        if not expected <= default_tags.items():
            yield "provider.aws: default_tags without the fleet's tags. Fix: names.build_tags."
    for address, settings in list_resources(stack, "aws_autoscaling_group"):
        if not expected <= {tag["key"]: tag["value"] for tag in settings["tag"] if tag["propagate_at_launch"]}.items():
            yield f"{address}: tags that leave the fleet's off its instances. Fix: propagate_at_launch."
    for address, settings in _list_templates(stack):
        if any(not expected <= specification["tags"].items() for specification in settings["tag_specifications"]):
            yield f"{address}: tag_specifications without the fleet's tags. Fix: names.build_tags."


def check_alarm_actions(stack: Stack, fleet: Fleet) -> Violations:
    """Alarms that call nobody although the fleet names a topic."""
    if fleet.alarms_to:
        for address, settings in list_resources(stack, "aws_cloudwatch_metric_alarm"):
            if not settings.get("alarm_actions"):
                yield f"{address}: no alarm_actions: nobody would be notified. Fix: {fleet.alarms_to}."


def check_boundaries(stack: Stack, fleet: Fleet) -> Violations:
    """Roles without the fleet's permissions boundary."""
    for address, settings in list_resources(stack, "aws_iam_role"):
        if settings.get("permissions_boundary") != fleet.permissions_boundary:
            yield f"{address}: not the fleet's permissions_boundary. Fix: iam.add_role."


def check_neighbors(stack: Stack, fleet: Fleet) -> Violations:
    """List what reaches into another fleet, whose name begins with this one's: that of `ml-dev` with that of `ml`."""
    for address, statement in _list_allow_statements(stack):
        owner = statement.get("Condition", {}).get("StringEquals", {}).get("aws:ResourceTag/fleet")
        for resource in _ensure_list(statement.get("Resource", [])):
            if re.search(rf"[:/]{fleet.name}-[^:/]*\*", resource) and owner != fleet.name:
                reason = f"it allows things of a fleet {fleet.name}-dev. Fix: a condition on aws:ResourceTag/fleet"
                yield f"{address}: Resource {resource}: {reason}, or the names."
    for address, settings in list_resources(stack, "aws_cloudwatch_event_rule"):
        if re.search(rf'{{"(prefix|wildcard)": "{fleet.name}-', settings.get("event_pattern") or ""):
            yield f"{address}: it matches events of a fleet {fleet.name}-dev. Fix: the names."


RULES: tuple[Callable[[Stack], Violations], ...] = (
    check_empty_structs,
    check_quoted_references,
    check_wildcards,
    check_broad_statements,
    check_queue_senders,
    check_open_ingress,
    check_group_descriptions,
    check_launch_templates,
    check_efa_zones,
    check_efa_rules,
    check_provider_counts,
    check_task_sizes,
    check_subnet_ranges,
)
FLEET_RULES: tuple[Callable[[Stack, Fleet], Violations], ...] = (
    check_interfaces,
    check_tags,
    check_alarm_actions,
    check_boundaries,
    check_neighbors,
)


def _list_allow_statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the statements that grant something; an endpoint's policy only narrows what identities may do."""
    return (
        (address, statement)
        for address, statement in list_statements(stack)
        if statement["Effect"] == "Allow" and not address.startswith("aws_vpc_endpoint.")
    )


def _list_templates(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    return list_resources(stack, "aws_launch_template")


def _list_efa(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for interface in template.get("network_interfaces", []):
        if interface.get("interface_type") in ("efa", "efa-only"):
            yield interface


def _ensure_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
