"""The baseline of a disaggregated blueprint: the same accelerators, model, traffic and SLO without the split.

Only against it does a measurement show whether prefill is worth a separate role. Pure.
"""

from __future__ import annotations

from typing import Any

import yaml

from llm_serving.kinds.serving import patterns
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import WORKER
from llm_serving.kinds.serving.roles import EngineRole, format_bounds
from llm_serving.settings import yaml_source
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Bounds

HEADER = """\
# The {pattern} baseline of {name}: as many accelerators of the same pool, the same model, traffic and SLO.
# Created by `blueprint baseline`; validate both, one after the other, and compare their reports.
"""


def render(blueprint: Document[Blueprint]) -> str:
    """Return the blueprint.yaml of the baseline.

    Raises:
        InputError: the blueprint's pattern has no baseline, or no baseline has as many accelerators of one pool.
    """
    pattern = get_pattern(blueprint)
    settings = blueprint.value
    prefill, decode = settings.roles.prefill, settings.roles.decode
    assert prefill and decode, "a pattern with a baseline has both"
    if prefill.pool != decode.pool:
        reason = f"prefill runs in the pool {prefill.pool}: a baseline's replicas are all alike, and so are their nodes"
        key_path, fix = ["roles", "decode", "pool"], f"set pool: {prefill.pool}"
        raise InputError([blueprint.build_mistake(key_path, decode.pool, reason, fix)])
    replica_role = _select_role(blueprint, prefill, decode)
    document: dict[str, Any] = yaml_source.read(blueprint.path).data
    role = "decode" if replica_role is decode else "prefill"
    total = _count_accelerators(prefill, decode)
    replicas = Bounds(total.min // replica_role.accelerators, total.max // replica_role.accelerators)
    worker = {**document["roles"][role], "replicas": format_bounds(replicas)}
    worker.pop("scale", None)  # a measure of one half's load says little about both
    roles = {"worker": worker, **{key: value for key, value in document["roles"].items() if key == "router"}}
    changes = {"pattern": pattern, "roles": roles}
    if "tuning" in document:
        changes["tuning"] = {key: value for key, value in document["tuning"].items() if key != "kv_transfer"}
    name_change = {"name": f"{document['name']}-baseline"} if "name" in document else {}
    rendered = yaml.safe_dump(
        {**document, **changes, **name_change}, sort_keys=False, default_flow_style=None, width=100
    )
    return HEADER.format(pattern=pattern, name=blueprint.path.resolve().parent.name) + rendered


def get_pattern(blueprint: Document[Blueprint]) -> str:
    """Return the pattern of the blueprint's baseline.

    Raises:
        InputError: the blueprint's pattern has none.
    """
    pattern = blueprint.value.pattern_row
    if pattern.baseline and blueprint.value.is_disaggregated:
        # Experts over data-parallel ranks are for replicas of several nodes.
        is_wide = any(role.expert and role.data > 1 for role in blueprint.value.roles.engine_roles.values())
        return (patterns.find_multi_node((WORKER,)) if is_wide else "") or pattern.baseline
    others = [name for name, other in patterns.load_patterns().items() if other.baseline]
    reason = "the pattern has no baseline: nothing is split that could run together"
    fix = f"name the folder of a blueprint with pattern: {' or '.join(others)}"
    raise InputError([blueprint.build_mistake(["pattern"], pattern.name, reason, fix)])


def _select_role(blueprint: Document[Blueprint], prefill: EngineRole, decode: EngineRole) -> EngineRole:
    """Return the role that the baseline's replicas are like: decode, which is larger, or prefill if that divides."""
    for role in (decode, prefill):
        if all(total % role.accelerators == 0 for total in _count_accelerators(prefill, decode)):
            return role
    total = _count_accelerators(prefill, decode).max
    reason = (
        f"{total} accelerators of prefill and decode together make no whole number of replicas of "
        f"{decode.accelerators} or {prefill.accelerators}"
    )
    fix = f"set replicas or accelerators whose sum is a multiple of {decode.accelerators}"
    value = format_bounds(prefill.replicas)
    raise InputError([blueprint.build_mistake(["roles", "prefill", "replicas"], value, reason, fix)])


def _count_accelerators(prefill: EngineRole, decode: EngineRole) -> Bounds:
    min_count, max_count = (
        sum(role.accelerators * count for role, count in ((prefill, first), (decode, second)))
        for first, second in zip(prefill.replicas, decode.replicas, strict=True)
    )
    return Bounds(min_count, max_count)
