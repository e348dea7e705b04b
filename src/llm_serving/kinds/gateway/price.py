"""What a gateway rents on AWS by the hour, used or not. No input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.fleet import rented_cost
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.gateway.stack import CACHE_NODES, GatewayStack
from llm_serving.services import rendered
from llm_serving.services.service import Service
from llm_serving.settings.document import Conflict


def list_units(stack: GatewayStack, services: Sequence[Service]) -> Iterator[Units]:
    """Yield what the stack rents; pods run on nodes that the fleet pays for, tasks on Fargate."""
    yield Units(stack.database_type, 1, stack.name)  # a price of two zones
    yield Units("rds-storage-gib", stack.database_gib, stack.name)
    yield Units(stack.cache_type, CACHE_NODES, stack.name)
    yield Units("kms-key", 1, stack.name)
    yield from rendered.list_fargate(stack.orchestrator, services, stack.name)
    if stack.load_balancer:
        yield Units("application-load-balancer", 1, stack.name)


def find_excess(stack: GatewayStack, units: Sequence[Units], fleet: Fleet) -> Iterator[Conflict]:
    """Yield that the fleet with this gateway costs more than its spend limit, or that a price is not known."""
    types = {"database_type": stack.database_type, "cache_type": stack.cache_type}
    size = ("aws", "database_type"), stack.database_type
    yield from rented_cost.find_excess(fleet, units, "the gateway", size, types)
