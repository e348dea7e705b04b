"""A fleet whose stacks have been applied to an embedded AWS, for deployments on ECS that the real Terraform makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.fleet import names
from llm_serving.fleet.model import Fleet
from llm_serving.operations import context
from llm_serving.rehearsal import emulator
from llm_serving.services import inputs
from llm_serving.settings.document import Document
from tests.infra import deployments

REGION = "us-west-2"

AppliedFleet = tuple[Document[Fleet], AwsSession]
"""The fleet's file, and an embedded AWS with the resources of its stacks."""


@contextmanager
def apply_fleet(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[AppliedFleet]:
    """Write the fleet's file into `folder`, work there, and run an embedded AWS with the fleet's resources."""
    monkeypatch.chdir(folder)
    deployments.synthesize_here(monkeypatch)
    Path("fleet.yaml").write_text(text)
    document = inputs.read_fleet(Path("fleet.yaml"))
    with context.use_emulator(document) as aws:
        _create_resources(str(aws.emulator), document.value)
        yield document, aws


def _create_resources(endpoint: str, fleet: Fleet) -> None:
    """What the fleet's own stacks make and a deployment looks up: network, keys, cluster, namespaces."""

    def make_client(service: str) -> Any:
        return emulator.create_client(service, endpoint, REGION)

    ec2 = make_client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    ec2.create_tags(Resources=[vpc], Tags=_format_tags(names.build_vpc_tags(fleet)))
    for number, zone in enumerate(fleet.zones):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=zone)
        tags = _format_tags(names.build_private_subnet_tags(fleet, zone))
        ec2.create_tags(Resources=[subnet["Subnet"]["SubnetId"]], Tags=tags)
    for key_name in ("ecs", "storage"):
        key = make_client("kms").create_key()["KeyMetadata"]["KeyId"]
        make_client("kms").create_alias(AliasName=f"alias/{fleet.name}-{key_name}", TargetKeyId=key)
    make_client("ecs").create_cluster(clusterName=names.format_cluster_name(fleet))
    make_client("servicediscovery").create_private_dns_namespace(Name=names.format_namespace(fleet), Vpc=vpc)


def _format_tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
