"""What every synthesized stack keeps, whatever its fleet: held against the JSON itself before it is handed on.

A rule that breaks is a mistake in a construct and not in the fleet file. Each rule takes a stack as Terraform reads it
and names the places that break it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path
from typing import Any

from llm_serving.catalog import instances
from llm_serving.fleet import interfaces
from llm_serving.fleet.groups import MOST_PROVIDERS
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import AnswerIsNo

Stack = Mapping[str, Any]
Found = Iterator[str]

WITHOUT_RESOURCE = (
    "autoscaling:Describe",
    "ec2:Describe",
    "ec2:Get",
    "elasticloadbalancing:Describe",
    "fsx:Describe",
    # A password for all registries of the account.
    "ecr:GetAuthorizationToken",
    # Who asks is told which of AWS's endpoints to call.
    "ecs:DiscoverPollEndpoint",
    "ecs:DescribeTaskDefinition",
    "ecs:ListServices",
    # Takes a container instance, and none that names a service.
    "ecs:ListTasks",
    # Session Manager's channels to the machine that asks.
    "ssm:UpdateInstanceInformation",
    "ssmmessages:",
    "pricing:GetProducts",
    "acm:ListCertificates",
    # Takes a certificate, but who looks for one by its domain knows no ARN yet.
    "acm:DescribeCertificate",
)
"""Beginnings of actions that AWS takes no resource for. Source: service authorization reference, 2026-11."""


def require(document: Document[Fleet], folders: Mapping[str, Path]) -> None:
    """Lets synthesized stacks pass.

    Args:
        folders: each stack's folder, by its name.

    Raises:
        AnswerIsNo: with every rule that one of them breaks.
    """
    stacks = {name: json.loads((folder / "cdk.tf.json").read_text()) for name, folder in folders.items()}
    if found := list(broken(document.value, stacks)):
        listed = "\n".join(f"  {line}" for line in found)
        raise AnswerIsNo(
            f"{document.path}: the stacks made from it break rules that every stack keeps. The mistake is in a "
            f"construct, not in the file; do not apply them:\n{listed}"
        )


def broken(fleet: Fleet, stacks: Mapping[str, Stack]) -> Found:
    """What breaks a rule, as in `eks: aws_launch_template.h100-template: ...`."""
    for name, stack in stacks.items():
        for rule in RULES:
            yield from (f"{name}: {line}" for line in rule(stack))
        for of_fleet in RULES_OF_A_FLEET:
            yield from (f"{name}: {line}" for line in of_fleet(stack, fleet))


def resources(stack: Stack, kind: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Addresses and settings of a stack's resources."""
    for found, named in stack.get("resource", {}).items():
        if not kind or found == kind:
            yield from ((f"{found}.{name}", settings) for name, settings in named.items())


def statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy, with the resource that it stands in."""
    for address, settings in resources(stack):
        for name in ("policy", "assume_role_policy"):
            text = settings.get(name)
            if isinstance(text, str) and text.startswith('{"Version"'):
                yield from ((address, statement) for statement in json.loads(text)["Statement"])


def empty_structs(stack: Stack) -> Found:
    """Lists that hold a struct without a value: CDKTF makes that of a dict with snake_case keys, without a word."""
    return (f"{path.lstrip('.')} is empty" for path in _empty(stack, ""))


def _empty(node: Any, path: str) -> Found:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _empty(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            if isinstance(value, Mapping) and all(held is None for held in value.values()):
                yield f"{path}[{index}]"
            yield from _empty(value, f"{path}[{index}]")


def wildcards(stack: Stack) -> Found:
    """Statements that allow every action of a service, or anybody.

    One is meant: a key's policy hands the key to the account's IAM policies (`kms:*` for the account's root).
    """
    for address, statement in _allowing(stack):
        principal = statement.get("Principal")
        delegation = address.startswith("aws_kms_key.") and str(principal).endswith(":root'}")
        actions = _listed(statement["Action"])
        if any(action == "*" or action.endswith(":*") for action in actions) and not delegation:
            yield f"{address} allows {actions}"
        if principal in ("*", {"AWS": "*"}):
            yield f"{address} allows everybody"


def broad(stack: Stack) -> Found:
    """Roles' statements that allow on every resource what takes a resource."""
    for address, statement in _allowing(stack):
        if "*" in _listed(statement.get("Resource", [])) and not address.startswith("aws_kms_key."):
            wide = sorted(one for one in _listed(statement["Action"]) if not one.startswith(WITHOUT_RESOURCE))
            if wide:
                yield f"{address} allows {wide} on every resource"


def open_doors(stack: Stack) -> Found:
    """Security group rules that let the internet in."""
    for address, settings in resources(stack):
        if not address.startswith(("aws_security_group.", "aws_default_security_group.", "aws_vpc_security_group_")):
            continue
        if "egress_rule" in address:
            continue
        flat = json.dumps([settings.get("ingress", []), settings.get("cidr_ipv4"), settings.get("cidr_ipv6")])
        if "0.0.0.0/0" in flat or "::/0" in flat:
            yield f"{address} lets the internet in"


def open_machines(stack: Stack) -> Found:
    """Launch templates whose machines answer without a token, hand their role to containers, or write in the clear."""
    for address, settings in resources(stack, "aws_launch_template"):
        options = settings.get("metadata_options", {})
        if options.get("http_tokens") != "required" or options.get("http_put_response_hop_limit") != 1:
            yield f"{address} gives its role's keys to more than the machine itself"
        volumes = [one.get("ebs", {}) for one in settings.get("block_device_mappings", [])]
        if not volumes or any(str(one.get("encrypted")).lower() != "true" for one in volumes):
            yield f"{address} has a volume that is not encrypted"


def over_zones(stack: Stack) -> Found:
    """Groups of EFA machines that may stand in several zones."""
    for address, settings in [*resources(stack, "aws_eks_node_group"), *resources(stack, "aws_autoscaling_group")]:
        subnets = settings.get("subnet_ids") or settings.get("vpc_zone_identifier") or []
        text = json.dumps(settings)
        efa = any(f"${{{template}." in text for template, made in _templates(stack) if _with_efa(made))
        if efa and len(set(subnets)) != 1:
            yield f"{address} has EFA and stands in {len(set(subnets))} zones"


def self_rules(stack: Stack) -> Found:
    """EFA machines none of whose security groups lets through, in and out, everything of its own."""
    for direction in ("ingress", "egress"):
        open_to_itself = {
            rule["security_group_id"]
            for _, rule in resources(stack, f"aws_vpc_security_group_{direction}_rule")
            if rule["security_group_id"] == rule.get("referenced_security_group_id") and rule["ip_protocol"] == "-1"
        }
        for address, made in _templates(stack):
            fabric = [one for one in made.get("network_interfaces", []) if _efa(one)]
            if any(open_to_itself.isdisjoint(one.get("security_groups", [])) for one in fabric):
                yield f"{address}: an EFA interface has no group with an {direction} rule for the group itself"


def too_many_providers(stack: Stack) -> Found:
    """Capacity provider strategies with more providers than ECS takes."""
    for address, made in resources(stack, "aws_ecs_cluster_capacity_providers"):
        count = len(made.get("default_capacity_provider_strategy", []))
        if count > MOST_PROVIDERS:
            yield f"{address} has {count} providers in its default strategy, and ECS takes {MOST_PROVIDERS}"
    for address, made in resources(stack, "aws_ecs_service"):
        count = len(made.get("capacity_provider_strategy", []))
        if count > MOST_PROVIDERS:
            yield f"{address} has a strategy of {count}, and ECS takes {MOST_PROVIDERS}"
    for pool, services in stack.get("output", {}).get("strategies", {}).get("value", {}).items():
        for service in services:
            if len(service) > MOST_PROVIDERS:
                yield f"output.strategies: {pool} has a strategy of {len(service)}, and ECS takes {MOST_PROVIDERS}"


def overlapping(stack: Stack) -> Found:
    """Subnets that overlap, or lie outside their VPC."""
    made = {address: IPv4Network(one["cidr_block"]) for address, one in resources(stack, "aws_subnet")}
    for (first, one), (second, other) in combinations(made.items(), 2):
        if one.overlaps(other):
            yield f"{first} and {second} overlap"
    for _, vpc in resources(stack, "aws_vpc"):
        outside = [address for address, one in made.items() if not one.subnet_of(IPv4Network(vpc["cidr_block"]))]
        yield from (f"{address} is outside the VPC" for address in outside)


def wrong_interfaces(stack: Stack, fleet: Fleet) -> Found:
    """Launch templates that ask for other interfaces than the catalogue's layout of their type."""
    for address, made in _templates(stack):
        pool = fleet.pools.get(made["tag_specifications"][0]["tags"]["pool"])
        asked = [
            (one.get("network_card_index"), one.get("device_index"), one.get("interface_type"))
            for one in made.get("network_interfaces", [])
        ]
        wanted = []
        if pool and pool.efa:
            row = instances.find(made["instance_type"], instances.load())
            wanted = [(one.card, one.device, one.kind) for one in interfaces.of(row, efa=True, layout=pool.efa_layout)]
        if asked != wanted:
            yield f"{address} asks for the interfaces {asked}, and the layout of its type is {wanted}"


def untagged(stack: Stack, fleet: Fleet) -> Found:
    """What does not carry the fleet's tags: by the provider, and where the provider's do not reach."""
    wanted = {**fleet.tags, "fleet": fleet.name}.items()
    for provider in stack["provider"]["aws"]:
        if not wanted <= {k: v for tags in provider.get("default_tags", []) for k, v in tags["tags"].items()}.items():
            yield "provider.aws does not tag with the fleet's tags"
    for address, made in resources(stack, "aws_autoscaling_group"):
        if not wanted <= {tag["key"]: tag["value"] for tag in made["tag"] if tag["propagate_at_launch"]}.items():
            yield f"{address} does not hand the fleet's tags to its machines"
    for address, made in _templates(stack):
        if any(not wanted <= one["tags"].items() for one in made["tag_specifications"]):
            yield f"{address} does not tag what EC2 makes from it"


def unheard(stack: Stack, fleet: Fleet) -> Found:
    """Alarms that call nobody although the fleet names a topic."""
    if fleet.alarms_to:
        for address, made in resources(stack, "aws_cloudwatch_metric_alarm"):
            if not made.get("alarm_actions"):
                yield f"{address} calls nobody, and alarms_to is {fleet.alarms_to}"


RULES: tuple[Callable[[Stack], Found], ...] = (
    empty_structs,
    wildcards,
    broad,
    open_doors,
    open_machines,
    over_zones,
    self_rules,
    too_many_providers,
    overlapping,
)
RULES_OF_A_FLEET: tuple[Callable[[Stack, Fleet], Found], ...] = (wrong_interfaces, untagged, unheard)


def _allowing(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((address, one) for address, one in statements(stack) if one["Effect"] == "Allow")


def _templates(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    return resources(stack, "aws_launch_template")


def _with_efa(template: Mapping[str, Any]) -> bool:
    return any(_efa(one) for one in template.get("network_interfaces", []))


def _efa(interface: Mapping[str, Any]) -> bool:
    return interface.get("interface_type") in ("efa", "efa-only")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
