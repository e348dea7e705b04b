"""What tiers of cached prompts are worth to the blueprint's traffic: what they hold, find, and have to be read with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_serving.engines import memory
from llm_serving.engines.memory import Split
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.placement import apply_quantization
from llm_serving.prediction import step_time
from llm_serving.prediction.step_time import StepTime
from llm_serving.services.traffic import Traffic
from llm_serving.settings.units import format_bytes

UNKNOWN_BLOCK_BYTES = 64 * 1024
"""Of a model whose arithmetic is not known: a small one."""


def describe(placed: PlacedRole, shared_prefix: float) -> Iterator[str]:
    """Yield what the tiers of a role hold of the traffic's shared prefixes, and the bandwidth that makes them pay.

    Args:
        shared_prefix: share of a prompt that others share.
    """
    sizes = placed.settings.tuning.tier_bytes
    if not sizes["ram"] or not placed.model.is_known:
        return
    token_bytes = compute_token_bytes(placed)
    held = {name: size // token_bytes for name, size in sizes.items()}
    own = placed.fit.cache_tokens * placed.role.data if placed.fit else 0
    parts = " and ".join(f"{name} of {format_bytes(sizes[name])} {tokens:,}" for name, tokens in held.items())
    yield f"Cached prompts of {placed.name}, in tokens: {parts}, beside {own:,} in the accelerators of a replica."
    yield _describe_hits(placed.settings.traffic, shared_prefix, own, max(held.values()))
    rate = _estimate_prefill_rate(placed)
    if rate:
        yield (
            f"A replica computes at most {rate:,.0f} tokens/s of a prompt, {rate * token_bytes / 1e9:.1f} GB/s of its "
            "cache: a tier that is read more slowly takes longer than computing again."
        )
        yield from _describe_shared(placed, shared_prefix, rate)


def compute_token_bytes(placed: PlacedRole) -> int:
    """Return bytes of one token in the caches of all ranks together."""
    tensor = placed.role.tensor
    return tensor * memory.compute_kv_bytes_per_token(placed.model, tensor, placed.settings.tuning.kv_cache)


def count_pool_blocks(placed_roles: Sequence[PlacedRole]) -> int:
    """Return blocks of tokens that a pool in the memory of all replicas has names for."""
    return sum(
        placed.role.replicas.max * placed.settings.tuning.ram_bytes // _compute_block_bytes(placed)
        for placed in placed_roles
    )


def _compute_block_bytes(placed: PlacedRole) -> int:
    """Return bytes of the smallest block: of one rank, and of one kind of layers."""
    if not placed.model.is_known:
        return UNKNOWN_BLOCK_BYTES
    layers = [count for count in (placed.model.full_layers, placed.model.sliding_layers) if count]
    rank_token_bytes = compute_token_bytes(placed) // placed.role.tensor
    return placed.platform.kv_block * rank_token_bytes * min(layers) // sum(layers)


def compute_found_share(traffic: Traffic, shared_prefix: float, tokens: int) -> float:
    """Return the largest share of each prompt that a cache of so many tokens finds; every group is as frequent."""
    prefix_tokens = traffic.prefix_groups * shared_prefix * traffic.input_tokens.max
    return shared_prefix * min(1.0, tokens / prefix_tokens) if prefix_tokens else 0.0


def _describe_hits(traffic: Traffic, shared_prefix: float, own: int, held: int) -> str:
    if not shared_prefix:
        return "By the blueprint's traffic its prompts share nothing, and the tiers would find nothing of them."
    prefix_tokens = round(shared_prefix * traffic.input_tokens.max)
    groups = f"{traffic.prefix_groups:,} groups" if traffic.prefix_groups > 1 else "one group"
    hit_share, own_hit_share = (compute_found_share(traffic, shared_prefix, tokens) for tokens in (held, own))
    return (
        f"The traffic's prompts share {prefix_tokens:,} tokens each in {groups}: at most {hit_share:.0%} of a prompt "
        f"is found with the tiers, and {own_hit_share:.0%} without."
    )


def _describe_shared(placed: PlacedRole, shared_prefix: float, rate: float) -> Iterator[str]:
    """Yield what a shared prefix costs from the tiers that replicas share, where the traffic has one.

    They are read by TCP, which one network card carries. The file system and S3 themselves may be slower.
    """
    tokens, cards = round(shared_prefix * placed.settings.traffic.input_tokens.max), placed.instance.cards
    shared = " and ".join(tier for tier in ("shared", "s3") if tier in placed.settings.tuning.tier_bytes)
    if not shared or not tokens or not cards:
        return
    size, gbps, name = tokens * compute_token_bytes(placed), cards[0].baseline_gbps, placed.instance.name
    yield (
        f"{tokens:,} shared tokens are {format_bytes(size)}: {tokens / rate:.2f} s to compute, and at least "
        f"{size * 8 / gbps / 1e9:.2f} s from {shared} at the {gbps:g} Gbit/s of a {name}, for all of its replicas."
    )


def _estimate_prefill_rate(placed: PlacedRole) -> float:
    """Return most tokens a second that a replica reads of prompts; 0 where a fact of its accelerators lacks."""
    device, role, tuning = placed.instance.accelerators, placed.role, placed.settings.tuning
    if device is None or not step_time.has_facts(device):
        return 0.0
    model = apply_quantization(placed.model, tuning)
    step = StepTime(model, device, Split(role.tensor, role.pipeline), tuning.kv_cache)
    return role.data * placed.batch.tokens / step.compute_base_s(placed.batch.tokens, 1)
