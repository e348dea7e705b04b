"""The override beside a synthesized stack, by which Terraform applies it to the embedded AWS."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings import own_yaml
from llm_serving.terraform import stack_folder, state

FILE = "rehearsal_override.tf.json"
"""Terraform reads it on top of the stack."""

_DESTRUCTIBLE = {"aws_s3_bucket": {"force_destroy": True}, "aws_ecr_repository": {"force_delete": True}}
"""On AWS a bucket or registry that is not empty is kept; a rehearsal must be able to destroy its own."""

_PROFILE = "rehearsal.aws.ini"
"""The AWS configuration beside the override: the endpoint of the embedded AWS, and nothing of the user's. The
provider's own `endpoints` block would do the same; checking that block takes 2 s of CPU, two or three times in every
run of Terraform (measured with 5.100.0: it writes the block's 280 settings out again for each of them)."""

_PROVIDER = {
    "s3_use_path_style": True,
    "secret_key": emulator.DUMMY_KEY,
    "profile": "default",
    "shared_config_files": [_PROFILE],
    "shared_credentials_files": ["/dev/null"],
    "skip_metadata_api_check": True,
    # The provider's own 25 would wait for many minutes on an embedded AWS that has ended.
    "max_retries": 3,
}
"""Settings that lead the AWS provider to the embedded AWS, and away from the user's own AWS settings."""

_BACKEND = {
    "use_path_style": True,
    "secret_key": emulator.DUMMY_KEY,
    "skip_credentials_validation": True,
    "skip_requesting_account_id": True,
    "skip_metadata_api_check": True,
    "skip_region_validation": True,
}
"""Settings that lead Terraform's S3 backend to the embedded S3, beside its endpoint."""


def write_override(
    folder: Path, fleet: Fleet, endpoint: str, *, backend: Mapping[str, Any] | None = None, keep_data: bool = False
) -> None:
    """Write the override beside a stack.

    Args:
        backend: the backend of the state; a file in the stack's folder by default.
        keep_data: keep a bucket or registry that is not empty, as on AWS.
    """
    stack = stack_folder.read_stack(folder)
    resources: dict[str, Any] = build_override(stack)
    for kind, settings in () if keep_data else _DESTRUCTIBLE.items():
        if kind in stack.get("resource", {}):
            resources[kind] = dict.fromkeys(stack["resource"][kind], settings)
    override: dict[str, Any] = {
        "terraform": {"backend": backend or {"local": {"path": state.FILE}}},
        # A fleet that names its account names one of AWS's.
        "provider": {
            "aws": {
                **_PROVIDER,
                "access_key": emulator.get_access_key(endpoint),
                **({"allowed_account_ids": [emulator.ACCOUNT]} if fleet.account else {}),
            }
        },
    }
    if resources:
        override["resource"] = resources
    lookups = stack.get("data", {})
    if isinstance(fleet.network, ExistingNetwork) and "aws_vpc" in lookups:
        override["data"] = seed_network(fleet, fleet.network, endpoint)
    if fleet.eks.cluster and "aws_eks_cluster" in lookups:
        seed_cluster(fleet, fleet.eks.cluster, endpoint)
    if "aws_ssm_parameter" in lookups:
        # The embedded AWS lacks EKS's AMIs.
        images = {name: {"name": _AMI} for name in lookups["aws_ssm_parameter"]}
        override.setdefault("data", {})["aws_ssm_parameter"] = images
    (folder / _PROFILE).write_text(f"[default]\nendpoint_url = {endpoint}\n")
    (folder / FILE).write_text(json.dumps(override, indent=2))


def build_backend(folder: Path, endpoint: str | None) -> dict[str, Any]:
    """Return the backend of a stack; for the embedded AWS, its S3, or a file in the stack's folder."""
    backend: dict[str, Any] = stack_folder.read_stack(folder)["terraform"]["backend"]
    if endpoint is None:
        return backend
    if "s3" not in backend:
        return {"local": {"path": state.FILE}}
    return {
        "s3": {
            **backend["s3"],
            "endpoints": {"s3": endpoint},
            "access_key": emulator.get_access_key(endpoint),
            **_BACKEND,
        }
    }


SynthesizedStack = Mapping[str, Any]

_DATA = own_yaml.read(Path(__file__).with_name("emulator_gaps.yaml"))

REASONS: Mapping[str, str] = _DATA["missing"]
"""Kinds of resources that the embedded AWS does not support, with the reason."""


def count_gaps(stack: SynthesizedStack) -> dict[str, int]:
    """Return the resources of a stack that are not supported, by kind."""
    resources = stack.get("resource", {})
    return {kind: len(resources[kind]) for kind in REASONS if kind in resources}


def build_override(stack: SynthesizedStack) -> dict[str, dict[str, Any]]:
    """Return the resources of an override, by kind and name, that leave out what the embedded AWS does not support.

    - `count` is 0, or `for_each` empty, for kinds that it lacks. So a stack may read an attribute of such a resource
      only by a splat (`[*]`), or depend on it (depends_on).
    - Changes are ignored in settings that it accepts and does not return.

    The mocked provider's tests cover both: there every resource is planned whole.
    """
    overrides: dict[str, dict[str, Any]] = {
        kind: {
            name: {"for_each": "${toset([])}"} if "for_each" in settings else {"count": 0}
            for name, settings in stack["resource"][kind].items()
        }
        for kind in count_gaps(stack)
    }
    for row in _DATA["ignored_changes"]:
        if ignored := dict(_build_lifecycles(stack, **row)):
            overrides[row["kind"]] = ignored
    return overrides


def _build_lifecycles(
    stack: SynthesizedStack, kind: str, settings: list[str], only_with: str = ""
) -> Iterator[tuple[str, Any]]:
    for name, resource in stack.get("resource", {}).get(kind, {}).items():
        if not only_with or only_with in resource:
            existing = resource.get("lifecycle", {}).get("ignore_changes", [])
            yield name, {"lifecycle": {"ignore_changes": [*existing, *settings]}}


_RANGE = ipaddress.IPv4Network("10.0.0.0/16")
_TAG_KEY = "stand-in"
_AMI = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


def seed_network(fleet: Fleet, network: ExistingNetwork, endpoint: str) -> dict[str, Any]:
    """Create a VPC with one subnet in each zone, once; return the part of an override with their ids."""
    ec2 = emulator.create_client("ec2", endpoint, fleet.region)
    tag = {"Key": _TAG_KEY, "Value": network.vpc}
    tags = [{"ResourceType": "vpc", "Tags": [tag]}]
    vpc_ids = [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if tag in vpc.get("Tags", [])]
    vpc = vpc_ids[0] if vpc_ids else ec2.create_vpc(CidrBlock=str(_RANGE), TagSpecifications=tags)["Vpc"]["VpcId"]
    subnets = {
        subnet["AvailabilityZone"]: subnet["SubnetId"]
        for subnet in ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    }
    for zone, cidr in zip(fleet.zones, _RANGE.subnets(prefixlen_diff=3), strict=False):
        if zone not in subnets:
            response = ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=str(cidr))
            subnets[zone] = response["Subnet"]["SubnetId"]
    return {
        "aws_vpc": {"vpc": {"id": vpc}},
        "aws_subnet": {f"private-{zone}": {"id": subnets[zone]} for zone in fleet.zones},
    }


def seed_cluster(fleet: Fleet, name: str, endpoint: str) -> None:
    """Create the cluster of EKS that the fleet file names, once."""
    eks = emulator.create_client("eks", endpoint, fleet.region)
    if name not in eks.list_clusters()["clusters"]:
        role = f"arn:aws:iam::{emulator.ACCOUNT}:role/{_TAG_KEY}"
        eks.create_cluster(name=name, roleArn=role, resourcesVpcConfig={}, tags={_TAG_KEY: name})
