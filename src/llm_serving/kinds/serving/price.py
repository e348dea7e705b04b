"""What a deployment's engines cost an hour, from the catalog's dated prices. No input or output."""

from __future__ import annotations

import math
from collections import defaultdict

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance, Price
from llm_serving.kinds.serving.deployment import Role, ServingDeployment


def price_deployment(deployment: ServingDeployment) -> tuple[float, str] | None:
    """Return what a deployment's engines cost an hour, and how that is reckoned; None where a price is unknown."""
    environment = deployment.environment
    if environment.conventions.is_local:
        return None
    priced = [_price_role(role, environment.region) for role in deployment.engine_roles]
    prices = [entry for entry in priced if entry is not None]
    if not prices or len(prices) < len(priced):
        return None
    return sum(usd_h for usd_h, _ in prices), "; ".join(text for _, text in prices)


def price_replica(role: Role, region: str) -> float | None:
    """Return what a replica of a role costs an hour; None where a price is unknown."""
    priced = _price_role(role, region)
    return priced and priced[0] / max(1, role.replicas.min)


def price_instances(deployment: ServingDeployment) -> float | None:
    """Return what the engines' instances cost an hour as wholes, shared by no others; None where that is unknown."""
    if deployment.environment.conventions.is_local:
        return None
    counts, prices = defaultdict[tuple[str, str], float](float), dict[tuple[str, str], float]()
    for role in deployment.engine_roles:
        dearest = _find_dearest(role, deployment.environment.region)
        if dearest is None:
            return None
        price, row = dearest
        assert row.accelerators
        replicas_each = row.accelerators.count // max(1, role.resources.accelerators)
        counts[role.pool, row.name] += role.nodes * max(1, role.replicas.min) / replicas_each
        prices[role.pool, row.name] = price.usd_h
    return sum(math.ceil(count) * prices[key] for key, count in counts.items()) or None


def _price_role(role: Role, region: str) -> tuple[float, str] | None:
    dearest = _find_dearest(role, region)
    if dearest is None:
        return None
    price, row = dearest
    assert row.accelerators
    share = role.resources.accelerators / row.accelerators.count
    replicas = max(1, role.replicas.min)  # from 0, one answered
    usd_h = price.usd_h * share * role.nodes * replicas
    text = (
        f"{role.name}: {replicas} x {role.nodes * share:g} of {row.name} "
        f"at {price.usd_h:g} USD/h on demand in {region}, {price.source.date}"
    )
    return usd_h, text


def _find_dearest(role: Role, region: str) -> tuple[Price, Instance] | None:
    """Return the dearest of a role's types with its price, since any of the list may run; None where one is unknown."""
    rows = [instances.find(name) for name in role.instance_types]
    prices = [(row.prices[region], row) for row in rows if region in row.prices and row.accelerators]
    return max(prices, key=lambda entry: entry[0].usd_h) if rows and len(prices) == len(rows) else None
