"""What a stream rents on AWS by the hour, used or not. No input or output."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.fleet import rented_cost
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units
from llm_serving.kinds.streaming.stack import CACHE_NODES, StreamStack
from llm_serving.settings.document import Conflict


def list_units(stack: StreamStack) -> Iterator[Units]:
    for service, count in (
        (stack.broker_type, stack.brokers),
        ("kafka-storage-gib", stack.brokers * stack.broker_gib),
        ("flink-kpu", stack.parallelism + 1),  # one manages the others, and has no storage
        ("flink-storage", stack.parallelism),
        (stack.cache_type, CACHE_NODES),
        ("kms-key", 1),
    ):
        yield Units(service, count, stack.name)


def find_excess(stack: StreamStack, fleet: Fleet) -> Iterator[Conflict]:
    """Yield that the fleet with this stream costs more than its spend limit, or that a price is not known."""
    types = {"broker_type": stack.broker_type, "cache_type": stack.cache_type}
    size = ("aws", "brokers"), stack.brokers
    yield from rented_cost.find_excess(fleet, list(list_units(stack)), "the stream", size, types)
