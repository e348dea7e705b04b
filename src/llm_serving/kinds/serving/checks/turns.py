"""Models that take turns on the same accelerators (`shares` of a role): what they cannot have, and what that saves and
costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from llm_serving.catalog.engines import Sleeping
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.sharing import MAX_BODIES_BYTES
from llm_serving.services.environment import Environment
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_bytes

_KEEPING_OPTION, _KEEPING_MODE = "mm_encoder_tp_mode", "data"
"""The engine's option with which it keeps more of an accelerator while it sleeps, and its value."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield settings of models that take turns, and replicas without room for them."""
    if context.blueprint.roles.sharers:
        yield from _check_settings(context.blueprint)
    for head, members in _group_placed(context).items():
        for member in members:
            yield from _check_arguments(member)
        if members and members[0].name == head and not context.conventions.is_local:
            yield from _check_place(context, members)


def _group_placed(context: Context) -> dict[str, list[PlacedRole]]:
    """Return the roles that are placed of each group of models, the shared one first, by its name."""
    by_name = {placed.name: placed for placed in context.placed_roles}
    return {
        head: [by_name[name] for name in (head, *names) if name in by_name]
        for head, names in context.blueprint.roles.sharers.items()
    }


def _sum_host_bytes(members: Sequence[PlacedRole], sleeping: Sleeping) -> int:
    """Return the memory of the host that all models of a replica take, each with its draft, and requests that wait."""
    fits = [member.fit for member in members if member.fit]
    accelerators = members[0].role.accelerators
    engines_bytes = sum(sleeping.compute_host_bytes(fit.weight_bytes, accelerators) for fit in fits)
    return engines_bytes + MAX_BODIES_BYTES


def _check_settings(settings: Blueprint) -> Iterator[Conflict]:
    """Yield what holds for all roles."""
    tuning = settings.tuning
    for key, value in (
        ("kv_tiers", tuning.kv_tiers and ", ".join(tuning.kv_tiers.names)),
        ("kv_offload", tuning.kv_offload and f"{tuning.kv_offload / 2**30:g}Gi"),
    ):
        if value:
            reason = "each model that sleeps would keep its own in the host's memory, which holds their weights"
            yield Conflict(("tuning", key), reason, f"remove {key}, or shares", value)
    if tuning.quantization:
        reason = "an engine that can sleep keeps the weights as stored beside the smaller ones until all are loaded"
        fix = "remove quantization, and use a checkpoint that is stored so"
        yield Conflict(("tuning", "quantization"), reason, fix, tuning.quantization)
    if settings.roles.router.policy == "kv-aware":
        reason = "a model that sleeps loses its cache, and the router would go on counting on it"
        yield Conflict(("roles", "router", "policy"), reason, "set policy: load-aware, or remove shares", "kv-aware")


def _check_arguments(member: PlacedRole) -> Iterator[Conflict]:
    for path, value in member.list_arguments():
        if path[-1] == _KEEPING_OPTION and value == _KEEPING_MODE:
            reason = "the model takes turns with others, and the engine then keeps more of the accelerators asleep"
            yield Conflict(path, reason, f"remove {_KEEPING_OPTION}, or shares", _KEEPING_MODE)


def _check_place(context: Context, members: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield replicas in which the models of `members` do not sleep, or whose memory they exceed.

    Replicas of the pattern have one node.
    """
    placed = members[0]
    if not any(platform.sleeping for platform in context.engine.platforms.values()):
        return  # `shares` is refused for the engine, with its own reason
    if placed.instance.accelerators is None:
        reason = "an engine that sleeps on CPU frees no memory"
        fix = "use a pool of types with GPUs, or remove shares"
        yield placed.refuse("pool", reason, fix)
        return
    sleeping = placed.platform.sleeping
    if sleeping is None:
        return  # and here for its platform
    yield from _check_loading(members, sleeping)
    needed_bytes = _sum_host_bytes(members, sleeping)
    room = placed.resources.memory_bytes - placed.resources.shared_memory_bytes
    if needed_bytes > room:
        reason = (
            f"its {len(members)} models take up to {format_bytes(needed_bytes)} of the host's memory, for all but one "
            f"sleep: {sleeping.host_copies:g} times their weights, a draft's among them, "
            f"{format_bytes(sleeping.host_bytes)} of each for an accelerator, and {format_bytes(MAX_BODIES_BYTES)} of "
            f"requests that wait; a replica's share of {placed.instance.name} has {format_bytes(room)} for it"
        )
        fix = "use a pool of types with more memory beside each GPU, smaller models, or pool in place of shares for one"
        yield placed.refuse("pool", reason, fix)


def _check_loading(members: Sequence[PlacedRole], sleeping: Sleeping) -> Iterator[Conflict]:
    """Yield models that do not fit while they are loaded, for what the engine lays out anew is freed at the end."""
    for placed in members:
        fit, quantization = placed.fit, placed.model.quantization
        copies = sleeping.load_copies.get(quantization, 1)
        loading_bytes = copies * (fit.weight_bytes - fit.draft_bytes) if fit else 0  # a draft is loaded after them
        if fit and loading_bytes > fit.budget_bytes:
            reason = (
                f"its weights are {quantization}, of which an engine that can sleep holds up to "
                f"{format_bytes(int(loading_bytes))} while it loads them, more than the "
                f"{format_bytes(fit.budget_bytes)} of one accelerator"
            )
            fix = "set pool in place of shares for it, or use accelerators with more memory"
            yield Conflict((*placed.key_path, "model"), reason, fix, placed.model.name)


def describe(context: Context) -> Iterator[str]:
    """Yield of each group of models what it saves to let them take turns, and what it costs."""
    roles = context.blueprint.roles
    for head, members in _group_placed(context).items():
        names = roles.sharers[head]
        models = f"{', '.join((head, *names[:-1]))} and {names[-1]}"
        placed = members[0]
        sleeping = placed.platform.sleeping
        if context.conventions.is_local or sleeping is None:
            continue
        fits = [member.fit for member in members if member.fit]
        host_bytes = _sum_host_bytes(members, sleeping)
        copied_bytes = sum(sorted(fit.weight_bytes for fit in fits)[-2:])
        kept_bytes = sleeping.get_kept_bytes(placed.role.accelerators)
        switch = roles.get_switch(head)
        switch_s = math.ceil(copied_bytes / sleeping.copy_bytes_s)
        turn_s = switch.least_awake + switch.finish + switch_s
        place = f"the {placed.role.accelerators} accelerators" if placed.role.accelerators > 1 else "the accelerator"
        price = _describe_price(context.environment, placed, len(fits))
        uncounted = _describe_unknown_draft(context.blueprint)
        yield (
            f"{models} take turns on {place} of a replica{price}. They take up to {format_bytes(host_bytes)} of its "
            f"memory{uncounted}, and each that sleeps {format_bytes(kept_bytes)} of an accelerator. A request for one "
            f"that sleeps waits about {switch_s} s for weights to change places, at "
            f"{sleeping.copy_bytes_s / 1e9:g} GB/s, which was not measured here; while others have requests, up to "
            f"{math.ceil(turn_s * len(names))} s (`switch` of {head}: least_awake and finish)."
        )


def _describe_unknown_draft(settings: Blueprint) -> str:
    speculative = settings.tuning.speculative
    if speculative is None or speculative.model is None or settings.tuning.find_draft():
        return ""
    return f", without {speculative.model} beside each, whose size is not known here"


def _describe_price(environment: Environment, placed: PlacedRole, count: int) -> str:
    """Return the price of a replica beside that of one for each of `count` models; empty where it is unknown."""
    row = placed.instance
    price = row.prices.get(environment.region)
    if price is None or row.accelerators is None:
        return ""
    usd_h = price.usd_h * placed.resources.accelerators / row.accelerators.count
    return f", for {usd_h:.2f} USD/h on {row.name} in place of {count * usd_h:.2f} for one each"
