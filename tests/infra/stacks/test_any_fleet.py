"""Any fleet that can be rented synthesizes, and its stacks keep every rule; a sample of them is planned by Terraform."""

from __future__ import annotations

import json
import tempfile
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from infra import stack_rules
from llm_serving.fleet import capacity
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.rehearsal import run
from llm_serving.terraform import stack_folder
from tests.infra import strategies

SAMPLE = 3
"""How many of the fleets are planned."""


def synthesize(fleet: Fleet, out: Path) -> dict[str, Path]:
    from infra import main

    return main.synthesize(strategies.build_document(fleet), out)


slow_settings = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(900)
@settings(slow_settings, max_examples=25)
@given(fleet=strategies.rentable())
def test_any_valid_fleet_follows_every_rule(fleet: Fleet) -> None:
    with tempfile.TemporaryDirectory() as out:
        folders = synthesize(fleet, Path(out))
        stack_documents = {name: json.loads((folder / "cdk.tf.json").read_text()) for name, folder in folders.items()}
    assert set(stack_documents) == {"network", "storage", *fleet.orchestrators}
    assert list(stack_rules.find_violations(fleet, stack_documents)) == []
    # The rules are the product's own. What follows says the same again by other ways.
    # Karpenter starts its machines from a class of the cluster's, which is no resource of a stack.
    assert len(find_efa_zones(stack_documents)) == len(
        [item for item in fleet.pools.values() if item.efa and item.by != "karpenter"]
    )
    assert all(len(zones) == 1 for zones in find_efa_zones(stack_documents).values())
    assert isinstance(fleet.network, NewNetwork)
    subnets = [
        IPv4Network(item["cidr_block"]) for item in stack_documents["network"]["resource"]["aws_subnet"].values()
    ]
    assert sum(item.num_addresses for item in subnets) <= IPv4Network(fleet.network.cidr).num_addresses
    assert all(item.needed <= item.available for item in capacity.compute(fleet).subnets)
    assert "[{}]" not in json.dumps(stack_documents)


def find_efa_zones(stack_documents: dict[str, Any]) -> dict[str, set[str]]:
    """Subnets of the machines with EFA interfaces, by pool."""
    subnets_by_pool: dict[str, set[str]] = {}
    for stack in stack_documents.values():
        resources = stack.get("resource", {})
        for name, template in resources.get("aws_launch_template", {}).items():
            kinds = {interface.get("interface_type") for interface in template.get("network_interfaces", [])}
            if kinds & {"efa", "efa-only"}:
                users = {**resources.get("aws_eks_node_group", {}), **resources.get("aws_autoscaling_group", {})}
                for user in users.values():
                    if f"aws_launch_template.{name}.id" in json.dumps(user):
                        pool = template["tag_specifications"][0]["tags"]["pool"]
                        subnets = user.get("subnet_ids") or user["vpc_zone_identifier"]
                        subnets_by_pool.setdefault(pool, set()).update(subnets)
    return subnets_by_pool


@pytest.mark.terraform
def test_a_sample_of_fleets_is_planned_with_a_mocked_provider(tmp_path: Path) -> None:
    fleets: list[Fleet] = []

    @settings(slow_settings, max_examples=4 * SAMPLE, phases=[Phase.generate], database=None)
    @given(fleet=strategies.rentable())
    def add_sample(fleet: Fleet) -> None:
        fleets.append(fleet)

    add_sample()
    folders = {
        f"fleet{index}_{name}": folder
        for index, fleet in enumerate(fleets[-SAMPLE:])  # the first that Hypothesis draws are the simplest
        for name, folder in synthesize(fleet, tmp_path / f"fleet{index}").items()
    }
    planned = run.plan_mocked(folders, program=stack_folder.find_terraform(folders, tmp_path), data=tmp_path)
    assert planned.keys() == folders.keys()
    assert sum(planned.values()) > 50 * SAMPLE
