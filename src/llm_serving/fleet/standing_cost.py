"""What a fleet costs an hour while it does nothing: control plane, system nodes, NAT gateways, endpoints, keys.

What its deployments rent of AWS beside instances, such as brokers, comes from their kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llm_serving.catalog import account_needs, eks, instances, services
from llm_serving.catalog.instances import Source
from llm_serving.fleet import endpoints
from llm_serving.fleet.model import Fleet, NewNetwork
from llm_serving.fleet.system_group import build_system_group

_REFERENCE_REGION = "us-east-1"
"""Region whose prices stand in for those that are not known: AWS's cheapest."""


@dataclass(frozen=True)
class StandingItem:
    """Some units of one thing that costs whether instances run or not."""

    name: str
    count: int
    unit_usd_h: float
    source: Source

    is_regional_price: bool
    """Whether the price is the region's own, and not that of us-east-1."""

    @property
    def usd_h(self) -> float:
        """US dollars an hour for all of them."""
        return self.count * self.unit_usd_h


@dataclass(frozen=True)
class Units:
    """Units of one service that a deployment rents."""

    service: str
    """Its name in `services.yaml`, which may not have it."""

    count: int
    deployment: str


def price_units(fleet: Fleet, units: Iterable[Units]) -> tuple[StandingItem, ...]:
    """Return what deployments rent, as far as prices are known."""
    return tuple(
        _price_item(fleet, f"{entry.service} for {entry.deployment}", entry.count, entry.service)
        for entry in units
        if entry.service in services.load()
    )


def list_unpriced(units: Iterable[Units]) -> tuple[str, ...]:
    """Return the services whose price is not known, each once."""
    return tuple(dict.fromkeys(entry.service for entry in units if entry.service not in services.load()))


def list_items(fleet: Fleet) -> tuple[StandingItem, ...]:
    """Return what the fleet pays for from the apply on. Load balancers come with what is deployed, and are left out."""
    return tuple(item for item in _list_items(fleet) if item.count)


def _list_items(fleet: Fleet) -> Iterator[StandingItem]:
    if fleet.creates_eks:
        service_name = "eks-cluster-extended" if eks.is_extended(fleet.eks.version) else "eks-cluster"
        yield _price_item(fleet, "EKS control plane", 1, service_name)
        yield from _price_system_nodes(fleet)
    own_network = fleet.network if isinstance(fleet.network, NewNetwork) else None
    nat_count = len(fleet.zones) if own_network and own_network.nat else 0
    yield _price_item(fleet, "NAT gateways", nat_count, "nat-gateway")
    yield _price_item(fleet, "public addresses", nat_count, "public-ipv4-address")
    yield _price_item(
        fleet, "endpoints in zones", len(endpoints.list_own(fleet)) * len(fleet.zones), "interface-endpoint"
    )
    # One for buckets and images, one for flow logs, one for each cluster.
    clusters = fleet.creates_eks + ("ecs" in fleet.orchestrators)
    log_keys = 1 if own_network and own_network.flow_logs else 0
    yield _price_item(fleet, "KMS keys", 1 + log_keys + clusters, "kms-key")
    for kind, needs in account_needs.load_all().items():
        for service_name, count in needs.standing.items():
            yield _price_item(fleet, f"{service_name} for {kind}", count, service_name)


def _price_item(fleet: Fleet, name: str, count: int, service_name: str) -> StandingItem:
    service = services.load()[service_name]
    return StandingItem(name, count, service.usd_h, service.source, service.is_known_in(fleet.region))


def _price_system_nodes(fleet: Fleet) -> Iterator[StandingItem]:
    """None where not even the reference region has a price."""
    group = build_system_group(fleet)
    prices = instances.load()[group.types[0]].prices if group.types[0] in instances.load() else {}
    price = prices.get(fleet.region) or prices.get(_REFERENCE_REGION)
    if price:
        name = f"system nodes ({group.types[0]})"
        yield StandingItem(name, group.min_size, price.usd_h, price.source, fleet.region in prices)
