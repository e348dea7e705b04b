"""The network stack: a new VPC over the fleet's zones, or the ids of an existing one."""

from __future__ import annotations

from infra.bindings.cdktf import App
from infra.constructs import network
from infra.stacks import base
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings.document import Document

NAME = "network"
NEEDS: tuple[str, ...] = ()


def is_enabled(_fleet: Fleet) -> bool:
    """Every fleet has it."""
    return True


def add(app: App, document: Document[Fleet]) -> None:
    """Add the stack to the app. Outputs: vpc_id, private_subnet_ids (by zone)."""
    fleet = document.value
    stack = base.create_stack(app, NAME, document)
    if isinstance(fleet.network, ExistingNetwork):
        vpc = network.find_existing_vpc(stack, fleet.network)
    else:
        vpc = network.add_vpc(stack, fleet.network)
    base.add_output(stack, "vpc_id", vpc.vpc_id, "The fleet's VPC")
    base.add_output(stack, "private_subnet_ids", vpc.private_subnets, "Private subnets by zone")
