"""What a deployment's engines cost an hour, from the catalog's dated prices. No input or output."""

from __future__ import annotations

from llm_serving.catalog import instances
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


def _price_role(role: Role, region: str) -> tuple[float, str] | None:
    """Return a role's cost an hour and its description; by the dearest type, since any of the list may run."""
    rows = [instances.find(name) for name in role.instance_types]
    prices = [(row.prices[region], row) for row in rows if region in row.prices and row.accelerators]
    if not rows or len(prices) < len(rows):
        return None
    price, row = max(prices, key=lambda entry: entry[0].usd_h)
    assert row.accelerators
    share = role.resources.accelerators / row.accelerators.count
    replicas = max(1, role.replicas.min)  # from 0, one answered
    usd_h = price.usd_h * share * role.nodes * replicas
    text = (
        f"{role.name}: {replicas} x {role.nodes * share:g} of {row.name} "
        f"at {price.usd_h:g} USD/h on demand in {region}, {price.source.date}"
    )
    return usd_h, text
