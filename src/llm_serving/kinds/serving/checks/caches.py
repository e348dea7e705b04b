"""What cannot work of KV caches: where they are kept, how prefill hands them to decode, and who reads of them."""

from __future__ import annotations

from collections.abc import Iterator

from llm_serving.catalog import cache_keepers
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.services import tasks
from llm_serving.settings.document import Conflict


def check(context: Context) -> Iterator[Conflict]:
    """Yield what forbids to keep KV caches where the blueprint says, or to hand them from prefill to decode."""
    yield from _check_offload(context)
    yield from _check_keeper(context)
    yield from _check_tier_bucket(context)
    if not context.conventions.is_local:
        yield from _check_one_accelerator(context)
        yield from _check_host_memory(context)
    if context.blueprint.is_disaggregated:
        if not context.conventions.is_local:
            yield from _check_transfer_kernels(context)
        yield from _check_transfer(context)
        yield from _check_transfer_split(context)
    yield from _check_kv_events(context)


def _check_offload(context: Context) -> Iterator[Conflict]:
    """Yield tiers of cached prompts whose engine would send none to decode, or would end, for its model has no cache.

    Source of the latter: vLLM 0.32.0, kv_connector/v1/offloading/config.py, "found no eligible cache groups".
    """
    settings, tuning = context.blueprint, context.blueprint.tuning
    if not tuning.ram_bytes:
        return
    key, value = ("kv_tiers", ", ".join(tuning.kv_tiers.names)) if tuning.kv_tiers else ("kv_offload", "")
    value = value or f"{tuning.ram_bytes / 2**30:g}Gi"
    if settings.is_disaggregated:
        reason = (
            "the engine has one connector for KV caches: offloading would replace the one that sends them to decode"
        )
        baseline = settings.pattern_row.baseline
        fix = f"remove {key}, or set pattern: {baseline}" if baseline else f"remove {key}"
        yield Conflict(("tuning", key), reason, fix, value)
    for model in context.models if settings.task != tasks.DRAW else ():
        if model.encoder:
            reason = f"{model.name} is an encoder, which keeps no KV cache"
            yield Conflict(("tuning", key), reason, f"remove {key}", value)


def _check_keeper(context: Context) -> Iterator[Conflict]:
    """Yield where what keeps cached prompts is not rendered, or would give what was computed for another."""
    tuning, environment, conventions = context.blueprint.tuning, context.environment, context.conventions
    tiers, keeper = tuning.kv_tiers, tuning.keeper
    if tiers is None or keeper is None:
        return
    key_path = ("tuning", "kv_tiers", "by")
    if not keeper.runs_on(environment.target):
        reason = keeper.reasons["target"].format(target=conventions.title)
        others = cache_keepers.suggest_cache_keepers(lambda row: row.runs_on(environment.target))
        yield Conflict(key_path, reason, ", or ".join(filter(None, ("remove by", others))), tiers.by)
        return
    for placed in context.placed_roles:
        if placed.role.adapters:
            fix = "remove adapters, or by of tuning.kv_tiers"
            yield placed.refuse("adapters", keeper.reasons["adapters"], fix)
        if placed.name == keeper.master:
            reason = f"{keeper.title}'s master has this name among the deployment's objects"
            yield Conflict(placed.key_path, reason, "give the role another name", keeper.master)
        reason = ""
        if placed.nodes > 1:
            reason = keeper.reasons["nodes"]
        elif placed.instance.accelerators is None and not conventions.is_local:
            reason = keeper.reasons["no_accelerators"]
        if reason:
            reason = reason.format(role=placed.name, pool=placed.role.pool)
            yield Conflict(key_path, reason, "remove kv_tiers", tiers.by)


def _check_tier_bucket(context: Context) -> Iterator[Conflict]:
    """Yield a bucket of cached prompts that engines may not write to, or whose objects they would confuse."""
    tiers = context.blueprint.tuning.kv_tiers
    if tiers is None or tiers.s3 is None or tiers.keeper is None:
        return
    key_path, bucket = ("tuning", "kv_tiers", "s3", "bucket"), tiers.s3.bucket
    if context.conventions.is_local:
        reason = f"the S3 of this machine has no address of its own for each bucket, which {tiers.keeper.title} needs"
        yield Conflict(key_path, reason, "remove s3 in a copy to try here", bucket)
    elif bucket not in {row.bucket for row in context.fleet.storage.tier_buckets}:
        reason = f"the fleet lets its engines write to no bucket {bucket}"
        fix = f"set storage: {{tier_buckets: {{bucket: {bucket}}}}} in the fleet, and apply the fleet"
        yield Conflict(key_path, reason, fix, bucket)
    if not context.blueprint.tuning.stream_weights:
        reason = (
            f"{tiers.keeper.title} names objects after the folder of the weights, which is the same for all that are "
            "copied first"
        )
        yield Conflict(key_path, reason, "set stream_weights: on, or remove s3", bucket)


def _check_one_accelerator(context: Context) -> Iterator[Conflict]:
    """Yield roles whose replicas share cached prompts and may get other accelerators than one another.

    Names of prompts do not say in which order a kernel's numbers lie: vLLM 0.32.0 has another on B200 than on H200
    (v1/attention/backends/flashinfer.py, supported_kv_cache_layouts), and reads either.
    """
    tuning = context.blueprint.tuning
    if not ({"shared", "s3"} & {*tuning.tier_bytes} or (tuning.keeper and tuning.keeper.master)):
        return
    for placed in context.placed_roles:
        names = list(dict.fromkeys(row.accelerators.name for row in placed.instances if row.accelerators))
        if len(names) > 1:
            reason = (
                f"its replicas share cached prompts and run on {' or '.join(names)}: kernels of one kind may read what "
                "those of another wrote as other numbers, without an error"
            )
            fix = "use a pool of types with one kind of accelerator, or keep prompts in ram and disk only"
            yield placed.refuse("pool", reason, fix)


def _check_host_memory(context: Context) -> Iterator[Conflict]:
    """Yield roles whose node has no room for a copy of the cache of one request, which a transfer through it keeps."""
    for placed in context.placed_roles if context.copies_cache else ():
        fit = placed.limit_cache().fit
        if fit and fit.computed and fit.cache_tokens < fit.context:
            reason = (
                "without RDMA the transfer keeps a copy of the KV cache in the node's memory: a replica on "
                f"{placed.instance.name} has {placed.resources.memory_bytes / 2**30:.1f} GiB, of which "
                f"half hold {max(0, fit.cache_tokens):,} tokens, and a request takes {fit.context:,}"
            )
            fix = "use a pool of types with more memory, or a shorter context"
            yield placed.refuse("pool", reason, fix)


def _check_transfer(context: Context) -> Iterator[Conflict]:
    """Yield RDMA where the blueprint asks for it, or where the hardware has it."""
    key_path, transfer = ("tuning", "kv_transfer"), context.blueprint.tuning.kv_transfer
    without_rdma = [placed for placed in context.placed_roles if not placed.rdma]
    if "rdma" not in context.engine.transfers:
        if transfer == "rdma":
            reason = f"the engine {context.blueprint.engine} has no transfer by EFA in the catalog"
            yield Conflict(key_path, reason, "set kv_transfer: host", "rdma")
        return
    if transfer == "rdma":
        for placed in without_rdma:
            yield Conflict(key_path, *_describe_missing_rdma(placed), "rdma")
    if not without_rdma and transfer != "host":
        yield from _check_one_zone(context)


def _describe_missing_rdma(placed: PlacedRole) -> tuple[str, str]:
    subject = f"{placed.name}'s pool has {placed.instance.name}"
    if not placed.instance.gpudirect_rdma:
        reason = f"{subject}, whose EFA does not reach the GPUs' memory (no GPUDirect RDMA)"
        return reason, "set kv_transfer: host, or a pool of p5, p5en, p6-b200, p6-b300 or g7e"
    if not placed.pool.efa:
        return f"{subject}, and efa is off there", "set efa: on in the pool"
    per_replica = placed.resources.accelerators
    return (
        f"{subject}, which has fewer EFA interfaces than replicas of {per_replica}",
        f"set accelerators: {2 * per_replica} a replica",
    )


def _check_one_zone(context: Context) -> Iterator[Conflict]:
    first, last = context.placed_roles
    if first.zones != last.zones:
        reason = (
            f"EFA traffic does not cross an Availability Zone: {first.name} runs in {', '.join(first.zones)} "
            f"and {last.name} in {', '.join(last.zones)}"
        )
        fix = f"use a pool in {first.zones[0]}, or kv_transfer: host"
        yield last.refuse("pool", reason, fix)


def _check_transfer_split(context: Context) -> Iterator[Conflict]:
    """Yield tensor-parallel sizes of prefill and decode that the KV transfer does not support.

    Source: vLLM 0.32.0, kv_connector/utils.py, `tp_ratio` and `is_kv_replicated`, and kv_connector/v1/nixl/
    base_worker.py, `_validate_remote_agent_handshake`.
    """
    first, last = context.placed_roles
    prefill, decode = first.role, last.role
    model, subject = first.model, f"prefill splits a layer {prefill.tensor} ways and decode {decode.tensor}"
    few, many = sorted((prefill.tensor, decode.tensor))
    reason, fix = "", ""
    if many % few:
        reason = f"{subject}: the KV transfer needs one to be a multiple of the other"
        fix = f"set accelerators: {prefill.tensor} or {2 * prefill.tensor} for decode"
    elif prefill.tensor > decode.tensor and prefill.tensor > model.kv_heads and not model.latent:
        reason = (
            f"{subject}: the {model.kv_heads} key and value heads lie on several of prefill's accelerators each, and "
            "the KV transfer then reads them into as many ways or more"
        )
        fix = f"set accelerators: {prefill.tensor} for decode, or {model.kv_heads} or fewer for prefill"
    elif model.state and few < many and many > model.kv_heads and not context.engine.transfers_unlike_blocks:
        # Blocks that hold a layer's state too have as many tokens as it has room for: fewer, the more ways it is split,
        # once each accelerator has the least of the heads.
        reason = (
            f"{subject}: with the {model.kv_heads} key and value heads on several accelerators each, decode's blocks "
            f"of the cache have fewer tokens than prefill's, and the engine {context.blueprint.engine} hands none over "
            "between them: every request would fail"
        )
        fix = f"set accelerators: {prefill.tensor} for decode, or {model.kv_heads} or fewer for both"
    if reason:
        yield last.refuse("accelerators", reason, fix)


def _check_transfer_kernels(context: Context) -> Iterator[Conflict]:
    """Yield prefill and decode for which the engine chooses unlike kernels of attention."""
    kernels = context.engine.transfer_kernels
    if kernels is None:
        return
    kernels_by_role = {}
    for placed in context.placed_roles:
        arguments = context.blueprint.merge_arguments(placed.role)
        for name in (row.accelerators.name for row in placed.instances if row.accelerators):
            kernels_by_role[f"{placed.name} on {name}"] = kernels.select(name, arguments)
    if len({*kernels_by_role.values()}) > 1:
        last = context.placed_roles[-1]
        reason = (
            f"{' and '.join(kernels_by_role)} have unlike kernels of attention, between which the engine "
            f"{context.blueprint.engine} hands no cache over: every request would fail"
        )
        fix = (
            f"use pools of one generation of GPUs, or set the same {kernels.argument}, which all of them have, in "
            "engine_arguments"
        )
        yield last.refuse("pool", reason, fix)


def _check_kv_events(context: Context) -> Iterator[Conflict]:
    """Yield routing by KV cache events, where the router does not get them."""
    settings = context.blueprint
    if settings.roles.router.policy != "kv-aware" or settings.framework_row.router:
        return  # a framework's own router has its own ways
    reason, fix = "", "set policy: cache-aware"
    if settings.is_disaggregated:
        # vllm-router 0.1.17, called: --pd-kv-events takes URLs that stand in --prefill, and with both ways of discovery
        # the router ends. Its blocks have 16 tokens, where those of an engine on CPU have 128.
        reason = (
            "the router reads the cache events of prefill engines whose addresses it is given when it starts, and of "
            "no others"
        )
        fix += "" if context.conventions.runs_tasks else ", or framework: dynamo"
    if settings.roles.models:
        reason = "the router reads the cache events of one model"
    if any(settings.roles.get_weight(name) > 1 for name in settings.roles.engine_roles):
        reason = "an engine of weight 2 or more is several entries of the router, and its cache's events are of one"
    if any(placed.role.data > 1 for placed in context.placed_roles):
        # vllm/distributed/kv_events.py of 0.32.0 adds the rank to the port of events, and to that of earlier ones.
        reason = (
            "each data-parallel rank publishes its cache's events on a port of its own; cache-aware chooses between "
            "ranks as well"
        )
    if reason:
        yield Conflict(("roles", "router", "policy"), reason, fix, "kv-aware")
