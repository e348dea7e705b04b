"""What a stream rents on AWS by the hour, used or not. No input or output."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.catalog import instances
from llm_serving.fleet import cost
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units, list_unpriced, price_units
from llm_serving.kinds.streaming.stack import CACHE_NODES, StreamStack
from llm_serving.settings.document import Conflict


def list_units(stack: StreamStack) -> Iterator[Units]:
    """Yield what the stack rents."""
    for service, count in (
        (stack.broker_type, stack.brokers),
        ("kafka-storage-gib", stack.brokers * stack.broker_gib),
        ("flink-kpu", stack.parallelism + 1),  # one manages the others
        (stack.cache_type, CACHE_NODES),
        ("kms-key", 1),
    ):
        yield Units(service, count, stack.name)


def describe(stack: StreamStack, fleet: Fleet) -> str:
    """Describe the cost of an hour in one line."""
    units = list(list_units(stack))
    items, unpriced = price_units(fleet, units), list_unpriced(units)
    where = "" if all(item.is_regional_price for item in items) else " at us-east-1's prices"
    dates = join_words(sorted({item.source.date for item in items}))
    least, unknown = ("at least ", f"; no price for {join_words(unpriced)}") if unpriced else ("", "")
    return f"{least}{sum(item.usd_h for item in items):,.2f} USD/h{where} of {dates}, without traffic{unknown}"


def find_excess(stack: StreamStack, fleet: Fleet) -> Iterator[Conflict]:
    """Yield that the fleet with this stream costs more than its spend limit, or that a price is not known."""
    limit = fleet.spend_limit
    if limit is None:
        return
    units = list(list_units(stack))
    costs = cost.estimate(fleet, instances.load(), units)
    if costs.max_usd_h > limit:
        usd_h = sum(item.usd_h for item in price_units(fleet, units))
        reason = f"the stream costs {usd_h:,.2f} USD/h, with the fleet at full size {costs.max_usd_h:,.2f}"
        fix = f"raise spend_limit of the fleet {fleet.name}, {limit:.10g} USD/h, or use fewer or smaller parts"
        yield Conflict(("aws", "brokers"), reason, fix, stack.brokers)
    for field, value in (("broker_type", stack.broker_type), ("cache_type", stack.cache_type)):
        if value in costs.unpriced:
            reason = "its price is not known, so the fleet's spend limit cannot be checked"
            fix = f"use another type, or remove spend_limit of the fleet {fleet.name}"
            yield Conflict(("aws", field), reason, fix, value)
