"""The aggregated twin of a disaggregated blueprint: the same accelerators, model, traffic and SLO.

Whether prefill is worth a role of its own shows against nothing else. Pure.
"""

from __future__ import annotations

from typing import Any

import yaml

from llm_serving.settings import yaml_source
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError
from llm_serving.settings.units import Bounds
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.placement import plain
from llm_serving.workloads.serving.roles import Engine

HEADER = """\
# The aggregated twin of {name}: as many accelerators of the same pool, the same model, traffic and SLO.
# Made by `blueprint twin`; validate both, one after the other, and compare their reports.
"""


def text(blueprint: Document[Blueprint]) -> str:
    """The blueprint.yaml of the twin.

    Raises:
        InputError: the blueprint is not disaggregated, or no aggregated one has as many accelerators of one pool.
    """
    wanted = blueprint.value
    prefill, decode = wanted.roles.prefill, wanted.roles.decode
    if prefill is None or decode is None:
        why = "a twin is what prefill and decode are measured against, and they stand together here"
        raise InputError(
            [blueprint.mistake(["pattern"], wanted.pattern, why, "the folder of a disaggregated blueprint")]
        )
    if prefill.pool != decode.pool:
        why = f"prefill stands in the pool {prefill.pool}: a twin's replicas are all alike, and so are their machines"
        raise InputError([blueprint.mistake(["roles", "decode", "pool"], decode.pool, why, f"pool: {prefill.pool}")])
    like = _like(blueprint, prefill, decode)
    written: dict[str, Any] = yaml_source.read(blueprint.path).data
    role = "decode" if like is decode else "prefill"
    worker = {**written["roles"][role], "replicas": plain(_replicas(prefill, decode, like))}
    worker.pop("scale", None)  # a measure of one half's load says little about both
    roles = {"worker": worker, **{key: value for key, value in written["roles"].items() if key == "router"}}
    changed = {"pattern": "aggregated", "roles": roles, **_tuning(written)}
    named = {"name": f"{written['name']}-twin"} if "name" in written else {}
    made = yaml.safe_dump({**written, **changed, **named}, sort_keys=False, default_flow_style=None, width=100)
    return HEADER.format(name=blueprint.path.resolve().parent.name) + made


def _like(blueprint: Document[Blueprint], prefill: Engine, decode: Engine) -> Engine:
    """The role that the twin's replicas are like: decode, whose memory is larger, or prefill where that divides."""
    for like in (decode, prefill):
        if all(total % like.accelerators == 0 for total in _accelerators(prefill, decode)):
            return like
    total = _accelerators(prefill, decode).most
    why = (
        f"{total} accelerators of prefill and decode together make no whole number of replicas of "
        f"{decode.accelerators} or {prefill.accelerators}"
    )
    write = f"replicas or accelerators whose sum is a multiple of {decode.accelerators}"
    value = plain(prefill.replicas)
    raise InputError([blueprint.mistake(["roles", "prefill", "replicas"], value, why, write)])


def _accelerators(prefill: Engine, decode: Engine) -> Bounds:
    least, most = (
        sum(role.accelerators * count for role, count in ((prefill, first), (decode, second)))
        for first, second in zip(prefill.replicas, decode.replicas, strict=True)
    )
    return Bounds(least, most)


def _replicas(prefill: Engine, decode: Engine, like: Engine) -> Bounds:
    total = _accelerators(prefill, decode)
    return Bounds(total.least // like.accelerators, total.most // like.accelerators)


def _tuning(written: dict[str, Any]) -> dict[str, Any]:
    """The settings of the engine but for the hand-over, which the twin has none of."""
    if "tuning" not in written:
        return {}
    return {"tuning": {key: value for key, value in written["tuning"].items() if key != "kv_transfer"}}
