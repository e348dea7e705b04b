"""Checks of a fleet against the catalog and AWS's limits, before anything is spent.

Reading `fleet.yaml` (`fleet.model`) rejects what contradicts itself; these compare it with EC2's data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from llm_serving.catalog import instances
from llm_serving.catalog.instances import Instance
from llm_serving.fleet import aws_limits, capacity, cost, groups
from llm_serving.fleet.model import Fleet, Reservation
from llm_serving.settings.document import Document
from llm_serving.settings.errors import Mistake

Mistakes = Iterator[Mistake]


def find_mistakes(document: Document[Fleet]) -> list[Mistake]:
    """Return all mistakes in file order; empty if the fleet can be rented.

    Where the catalog has no answer for the fleet's region, nothing is claimed about what that region offers.
    """
    mistakes = list(_check_spend_limit(document))
    for name, pool in document.value.pools.items():
        rows = instances.select_known(pool.types)
        mistakes += _check_types_known(document, name)
        mistakes += _check_types_offered(document, name, rows)
        mistakes += _check_efa(document, name, rows)
        mistakes += _check_purchases(document, name, rows)
        mistakes += _check_same_hardware(document, name, rows)
        mistakes += _check_nvme(document, name, rows)
        mistakes += _check_volume_speed(document, name, rows)
        mistakes += _check_closed_network(document, name, rows)
        mistakes += _check_spare(document, name, rows)
        mistakes += _check_labels(document, name)
    mistakes += [*capacity.find_mistakes(document), *aws_limits.find_mistakes(document)]
    return sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))


def _check_types_known(document: Document[Fleet], name: str) -> Mistakes:
    for index, type_name in enumerate(document.value.pools[name].types):
        if type_name not in instances.load():
            key_path = ("pools", name, "types", index)
            reason = "the catalog has no such instance type"
            yield document.build_mistake(key_path, type_name, reason, f"use {instances.suggest_names(type_name)}")


def _check_types_offered(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    """Return the types that none of the pool's zones offers; else zones that offer none of the pool's types."""
    fleet, pool = document.value, document.value.pools[name]
    if not any(fleet.region in row.zones for row in instances.load().values()):
        return
    zones = fleet.get_zones(pool)
    lacking = [row for row in rows if not set(zones) & set(row.zones.get(fleet.region, ()))]
    for row in lacking:
        offered = row.zones.get(fleet.region, ())
        reason = (
            f"{fleet.region} offers it in {join_words(offered)} only, and the pool takes {join_words(zones)}"
            if offered
            else f"{fleet.region} does not offer it; {join_words(row.zones)} would"
        )
        fix = f"set zones: [{', '.join(offered)}]" if offered else f"use another type than {row.name}"
        key_path = ("pools", name, "types", pool.types.index(row.name))
        yield document.build_mistake(key_path, row.name, reason, f"{fix}, or {_suggest_refresh(fleet)}")
    if len(rows) == len(pool.types) and not lacking:
        yield from _check_empty_zones(document, name, rows)


def _check_empty_zones(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    fleet, pool = document.value, document.value.pools[name]
    offered = {zone for row in rows for zone in row.zones[fleet.region]}
    zones = fleet.get_zones(pool)
    empty = [zone for zone in zones if zone not in offered]
    if not empty:
        return
    reason = f"{join_words(empty)} {'offers' if len(empty) == 1 else 'offer'} none of the pool's types"
    fix = (
        f"set zones: [{', '.join(zone for zone in zones if zone in offered)}] in the pool, or {_suggest_refresh(fleet)}"
    )
    if pool.zones:
        yield document.build_mistake(("pools", name, "zones", pool.zones.index(empty[0])), empty[0], reason, fix)
    else:
        reason = f"the pool takes all of the fleet's zones, and {reason}"
        yield document.build_mistake(("pools", name, "types"), list(pool.types), reason, fix)


def _check_closed_network(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    """Refuse NVIDIA's images, which are on nvcr.io: ECR's pull-through cache does not take it."""
    fleet, pool = document.value, document.value.pools[name]
    has_gpus = any(row.accelerators and row.accelerators.kind == "gpu" for row in rows)
    if not (fleet.is_closed and has_gpus and fleet.get_orchestrator(pool) == "eks"):
        return
    if pool.os != "bottlerocket":
        reason = "NVIDIA's device plugin is pulled from nvcr.io, which no node reaches without NAT gateways"
        yield document.build_mistake(
            ("pools", name, "os"), pool.os, reason, "set os: bottlerocket, which has it, or nat: on"
        )
    if fleet.add_ons.observability:
        reason = f"dcgm-exporter for the pool {name} is pulled from nvcr.io, which no node reaches without NAT gateways"
        yield document.build_mistake(("add_ons", "observability"), True, reason, "set observability: off, or nat: on")


def _check_spare(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    """Refuse spare nodes on EKS that no pod can hold as a whole."""
    fleet, pool = document.value, document.value.pools[name]
    if pool.spare and fleet.get_orchestrator(pool) == "eks" and not all(row.accelerators for row in rows):
        reason = "on EKS pods hold spare nodes by their accelerators, and these types have none"
        fix = f"remove spare, or set size: {min(pool.spare, pool.size.max)}..{pool.size.max}"
        yield document.build_mistake(("pools", name, "spare"), pool.spare, reason, fix)


MAX_LABEL_KEYS = {"node-group": 63, "capacity-provider": 128}
"""Characters of a label's key, by what starts the instances; its value has one at least. Karpenter's may have any.

Sources: botocore 1.44.5, eks, labelKey and labelValue; ECS API reference, Attribute, 2026-11.
"""

MAX_TASK_LABELS = 5
"""Of the ten attributes of a container instance three are its group's labels, and two those that
`infra.functions.gpu_repair` sets. Source: ECS API reference, PutAttributes, 2026-11."""


def _check_labels(document: Document[Fleet], name: str) -> Mistakes:
    """Refuse labels that Kubernetes takes, and AWS does not."""
    fleet, pool = document.value, document.value.pools[name]
    kind = groups.select_kind(fleet, pool)
    longest = MAX_LABEL_KEYS.get(kind)
    if longest is None or not fleet.starts_instances(pool):
        return
    if kind == "capacity-provider" and len(pool.labels) > MAX_TASK_LABELS:
        reason = "ECS takes ten attributes of an instance, and five are the fleet's own"
        fix = f"keep {MAX_TASK_LABELS} of them"
        yield document.build_mistake(("pools", name, "labels"), len(pool.labels), reason, fix)
    for key, value in pool.labels.items():
        if not value or len(key) > longest:
            reason = f"AWS takes a label with a value, and a key of at most {longest} characters here"
            yield document.build_mistake(("pools", name, "labels", key), value, reason, "use another label")


def _suggest_refresh(fleet: Fleet) -> str:
    # Zone names stand for other places in another account, so the catalog's answer need not be this account's.
    return f"run `blueprint catalog refresh --region {fleet.region}` to read your own account's zones"


def _check_efa(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    lacking = [row for row in rows if not row.efa_interfaces]
    if not lacking or not document.value.pools[name].efa:
        return
    families = {row.family for row in lacking}
    alternatives = [row.name for row in instances.load().values() if row.efa_interfaces and row.family in families]
    reason = f"{join_words([row.name for row in lacking])} {'has' if len(lacking) == 1 else 'have'} no EFA"
    fix = f"use types with it ({', '.join(alternatives)}), or set efa: false" if alternatives else "set efa: false"
    yield document.build_mistake(("pools", name, "efa"), True, reason, fix)


def _check_purchases(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    for index, purchase in enumerate(document.value.pools[name].buy):
        purchase_class, label = _classify_purchase(purchase)
        lacking = [row.name for row in rows if purchase_class not in row.purchase]
        if not lacking:
            continue
        available = [option for option in ("on-demand", "spot") if all(option in row.purchase for row in rows)]
        alternatives = [row.name for row in instances.load().values() if purchase_class in row.purchase]
        reason = f"EC2 does not sell {join_words(lacking)} {label}"
        fix = f"set buy: [{', '.join(available)}]" if available else "use another type"
        fix += f", or use a type that is sold this way, such as {', '.join(alternatives[-3:])}" if alternatives else ""
        value = purchase if isinstance(purchase, str) else purchase.model_dump(by_alias=True, exclude_none=True)
        yield document.build_mistake(("pools", name, "buy", index), value, reason, fix)


def _classify_purchase(purchase: str | Reservation) -> tuple[str, str]:
    """Return EC2's class of a way to buy, and the words for it."""
    if isinstance(purchase, Reservation):
        return ("capacity-block", "by Capacity Block") if purchase.capacity_block else ("on-demand", "on demand")
    return purchase, "on demand" if purchase == "on-demand" else "as spot"


def _check_same_hardware(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    """Refuse types of different kinds: one image must run on all types of a pool."""
    pool = document.value.pools[name]
    for row in rows[1:]:
        for actual, expected in (
            (_describe_accelerator(row), _describe_accelerator(rows[0])),
            (f"is {row.arch}", f"is {rows[0].arch}"),
        ):
            if actual != expected:
                reason = f"it {actual}, and {rows[0].name} {expected}: an image for one does not run on the other"
                key_path = ("pools", name, "types", pool.types.index(row.name))
                yield document.build_mistake(key_path, row.name, reason, f"add a second pool for {row.name}")


def _check_nvme(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    lacking = [row.name for row in rows if not row.nvme_gb]
    if lacking and document.value.pools[name].disk == "nvme":
        reason = f"{join_words(lacking)} {'has' if len(lacking) == 1 else 'have'} no NVMe disks"
        yield document.build_mistake(("pools", name, "disk"), "nvme", reason, "set disk: gp3")


MIN_SOCI_MIB_S = 600
"""Root volume throughput below which SOCI's parallel pull is slower than none. Source: aws-samples on SOCI, 2026-11."""


def _check_volume_speed(document: Document[Fleet], name: str, rows: Sequence[Instance]) -> Mistakes:
    """Refuse SOCI set explicitly with a volume that the instance reads too slowly."""
    pool = document.value.pools[name]
    slow = [row for row in rows if row.ebs_mb_s * 1e6 / 2**20 < MIN_SOCI_MIB_S]
    if pool.images != "soci" or pool.disk != "gp3" or not slow:
        return
    mib_s = slow[0].ebs_mb_s * 1e6 / 2**20
    reason = (
        f"{slow[0].name} reads {mib_s:.0f} MiB/s from a volume, and below {MIN_SOCI_MIB_S} SOCI makes starts slower"
    )
    fix = "set disk: nvme" if all(row.nvme_gb for row in rows) else "set images: plain"
    yield document.build_mistake(("pools", name, "images"), "soci", reason, fix)


def _describe_accelerator(row: Instance) -> str:
    kinds = {"gpu": "carries GPUs", "neuron": "carries Neuron devices"}
    return kinds[row.accelerators.kind] if row.accelerators else "carries no accelerator"


def _check_spend_limit(document: Document[Fleet]) -> Mistakes:
    """Refuse a limit that is exceeded, or that cannot be checked because a price is unknown."""
    fleet, limit = document.value, document.value.spend_limit
    costs = cost.estimate(fleet)
    if limit is None or (costs.max_usd_h <= limit and not costs.unknown):
        return
    sums = [f"{pool.pool} {pool.max_usd_h:,.2f}" for pool in costs.pools if pool.max_usd_h]
    sums.append(f"root volumes {costs.volumes.max_usd_h:,.2f}")
    sums.append(f"without instances {costs.standing_usd_h:,.2f}")
    unknown = [
        f"{type_name} in pool {pool.pool}{_describe_unpriced(instances.load()[type_name], fleet.region)}"
        for pool in costs.pools
        for type_name in pool.unknown
        if type_name in instances.load()
    ]
    unpriced = f"no price is known in {fleet.region} of {join_words(unknown)}" if unknown else ""
    key_path, value = ("spend_limit",), f"{limit:.10g} USD/h"
    if costs.max_usd_h > limit:
        reason = f"at full size the fleet costs {costs.max_usd_h:,.2f} USD/h on demand ({', '.join(sums)})"
        reason += f", and {unpriced}" if unpriced else ""
        fix = f"set a limit of {math.ceil(costs.max_usd_h * 100) / 100:.2f} USD/h or more, or use smaller pools"
        yield document.build_mistake(key_path, value, reason, fix)
    elif unpriced:
        reason = f"the limit cannot be checked: {unpriced}"
        fix = f"remove spend_limit, or run `blueprint catalog refresh --region {fleet.region}` first, for AWS's prices"
        yield document.build_mistake(key_path, value, reason, fix)


def _describe_unpriced(row: Instance, region: str) -> str:
    return f" ({row.unpriced[region]})" if region in row.unpriced else ""


def join_words(words: Iterable[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`; nothing of none."""
    *leading, last = [*words] or [""]
    return f"{', '.join(leading)} and {last}" if leading else last
