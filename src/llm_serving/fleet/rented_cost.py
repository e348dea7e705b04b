"""What a deployment rents beside instances costs, in words and against the fleet's spend limit. No input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llm_serving.fleet import cost
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.standing_cost import Units, list_unpriced, price_units
from llm_serving.settings.document import Conflict
from llm_serving.settings.yaml_source import KeyPath


def describe(fleet: Fleet, units: Sequence[Units]) -> str:
    items, unpriced = price_units(fleet, units), list_unpriced(units)
    where = "" if all(item.is_regional_price for item in items) else " at us-east-1's prices"
    dates = join_words(sorted({item.source.date for item in items}))
    least, unknown = ("at least ", f"; no price for {join_words(unpriced)}") if unpriced else ("", "")
    return f"{least}{sum(item.usd_h for item in items):,.2f} USD/h{where} of {dates}, without traffic{unknown}"


def find_excess(
    fleet: Fleet,
    units: Sequence[Units],
    title: str,
    size: tuple[KeyPath, Any],
    types: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Conflict]:
    """Yield that the fleet with a deployment costs more than its spend limit, or that a price is not known.

    Args:
        title: what the deployment is, such as `the stream`.
        size: the field of the blueprint that decides most of the cost, and its value.
        types: values of the fields of `aws` that name types.
    """
    limit = fleet.spend_limit
    if limit is None or not units:
        return
    costs = cost.estimate(fleet, units)
    if costs.max_usd_h > limit:
        usd_h = sum(item.usd_h for item in price_units(fleet, units))
        reason = f"{title} costs {usd_h:,.2f} USD/h, with the fleet at full size {costs.max_usd_h:,.2f}"
        fix = f"raise spend_limit of the fleet {fleet.name}, {limit:.10g} USD/h, or use fewer or smaller parts"
        yield Conflict(size[0], reason, fix, size[1])
    for field, value in types.items():
        if value in costs.unpriced:
            reason = "its price is not known, so the fleet's spend limit cannot be checked"
            fix = f"use another type, or remove spend_limit of the fleet {fleet.name}"
            yield Conflict(("aws", field), reason, fix, value)
