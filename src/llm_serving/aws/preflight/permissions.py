"""IAM actions that applying a fleet takes, by part of the fleet, and those of each kind of work."""

from __future__ import annotations

from collections.abc import Mapping

from llm_serving.catalog import account_needs
from llm_serving.fleet.model import Fleet, NewNetwork, Reservation


def list_actions_by_part(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """Return the actions by part of the fleet, each once."""
    parts: dict[str, list[str]] = {}
    if isinstance(fleet.network, NewNetwork):
        parts["network"] = _join(new_network=True, nat=fleet.network.nat, flow_logs=bool(fleet.network.flow_logs))
    alarms = bool(fleet.alarms_to)
    parts["storage"] = _join(
        storage=True, image_cache=bool(fleet.image_cache), budget=bool(fleet.budget_to), alarms=alarms, rules=alarms
    )
    if fleet.state != "local":
        parts["state"] = _join(state=True)
    if any(map(fleet.starts_instances, fleet.pools.values())):
        parts["instances"] = _join(machines=True, **_find_reservations(fleet))
    if fleet.creates_eks:
        parts["EKS"] = _join(eks=True, log_bucket=fleet.logs.to == "s3")
    elif fleet.eks.cluster:
        parts["EKS"] = _join(existing_cluster=True, rules=alarms)
    if "ecs" in fleet.orchestrators:
        parts["ECS"] = _join(ecs=True, dashboards=bool(fleet.add_ons.observability))
    return {part: tuple(dict.fromkeys(actions)) for part, actions in parts.items()}


def _join(**is_needed: bool) -> list[str]:
    permissions = account_needs.load_fleet().permissions
    return [action for name, needed in is_needed.items() if needed for action in permissions[name]]


def list_actions_by_kind(fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
    """Return the actions that deploying each kind of work takes beside those of the fleet, by the kind's name."""
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, needs in account_needs.load_all().items():
        actions: list[str] = []
        for orchestrator in sorted(fleet.orchestrators):
            actions += needs.permissions.get(orchestrator, ())
        if actions:
            kinds[kind] = tuple(dict.fromkeys(actions))
    return kinds


def _find_reservations(fleet: Fleet) -> dict[str, bool]:
    pools = fleet.pools.values()
    options = [option for pool in pools for option in pool.buy]
    return {
        "reservations": any(isinstance(option, Reservation) and not option.capacity_block for option in options),
        "reserve": any(pool.reserve_count for pool in pools),
        "placement": any(pool.placement_group == "cluster" for pool in pools),
    }
