"""The network stack: a VPC over the fleet's zones, or the ids of one that is there."""

from __future__ import annotations

from typing import Any

from infra.constructs import vpc
from infra.constructs.account import account
from infra.constructs.flow_logs import flow_logs
from infra.stacks import stack as stacks
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.settings.document import Document

NAME = "network"


def add(app: Any, document: Document[Fleet]) -> None:
    """Adds the stack to the app. Outputs: vpc_id, private_subnet_ids (by zone)."""
    fleet = document.value
    stack = stacks.new(app, NAME, document)
    if isinstance(fleet.network, ExistingNetwork):
        network = vpc.existing(stack, fleet, fleet.network)
    else:
        here = account(stack, fleet)
        network = vpc.new(stack, fleet, fleet.network, here)
        flow_logs(stack, fleet=fleet.name, vpc_id=network.vpc_id, kept_s=fleet.network.flow_logs, account=here)
    stacks.output(stack, "vpc_id", network.vpc_id, "The fleet's VPC")
    stacks.output(stack, "private_subnet_ids", network.private_subnets, "Private subnets by zone")
