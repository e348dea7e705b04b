"""What cannot work although every role has its nodes: between roles, and by a target's conventions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from llm_serving.catalog import engines
from llm_serving.fleet import groups, interfaces
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import auth, sharing
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.checks import engine_limits
from llm_serving.kinds.serving.context import get_router
from llm_serving.kinds.serving.deployment import map_latencies
from llm_serving.kinds.serving.objectives import LATENCIES, find_lowest_limit, list_latencies
from llm_serving.kinds.serving.placement import (
    PlacedRole,
    check_surge,
    copies_cache,
    count_accelerators,
    format_bounds,
    transfers_by_rdma,
)
from llm_serving.kinds.serving.roles import compute_fixed_replicas
from llm_serving.services import load_balancer, orchestrators
from llm_serving.services.environment import Conventions, Environment
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_count

_LOADS_CODE = re.compile(
    "LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|NODE_OPTIONS|PERL5.*|RUBY(OPT|LIB)|GLIBC_TUNABLES|GCONV_PATH|PATH|VLLM_PLUGINS"
)
"""Variables by which the loader, an interpreter, a shell or the engine takes code from where the value says."""

RANKS_PER_CORE = 2
"""Engine processes that one core can run: each start takes about a minute of CPU time."""


def check(
    settings: Blueprint, fleet: Fleet, environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield every mistake, in no particular order."""
    conventions, replicated = environment.conventions, sharing.list_replicated(placed_roles)
    yield from _check_offload(settings)
    yield from _check_keeper(settings, environment, placed_roles)
    yield from _check_tier_bucket(settings, fleet, conventions)
    yield from auth.check(settings.auth, get_router(settings), environment)
    if not conventions.is_local:
        yield from _check_claims(settings, conventions)
        yield from _check_host_memory(settings, placed_roles)
        yield from _check_surge(settings, fleet, conventions, replicated)
    yield from _check_transfer(settings, placed_roles)
    yield from _check_router(settings)
    yield from _check_named_replicas(settings, conventions, replicated)
    yield from _check_transfer_split(settings, placed_roles)
    yield from _check_kv_events(settings, environment.conventions, placed_roles)
    yield from engine_limits.check_settings(settings, environment, placed_roles)
    if conventions.is_local:
        yield from _check_variables(settings, placed_roles)
        yield from _check_one_machine(replicated)
        yield from _check_cores(environment, replicated)
    if conventions.orchestrator:
        for placed in replicated:
            yield from orchestrators.check(
                fleet, conventions, (*placed.key_path, "pool"), placed.role.pool, pool=placed.role.pool
            )
        yield from _check_buckets(settings, fleet, environment, placed_roles)
    if not conventions.is_local:
        yield from _check_load_balancer(settings, fleet, environment)
    if conventions.is_kubernetes:
        yield from _check_add_ons(settings, fleet, replicated)
    if not conventions.is_local:
        yield from _check_gangs(conventions, replicated)
    if not conventions.is_local and not conventions.is_kubernetes:
        yield from _check_group_scaling(conventions.title, replicated)
    yield from _check_slo_scaling(settings, conventions, replicated)
    yield from _check_planner(settings, replicated)
    if conventions.max_replicas:
        yield from _check_max_replicas(conventions, replicated)
    if conventions.max_waiting:
        yield from _check_waiting_replicas(fleet, conventions, replicated)
    if conventions.runs_tasks:
        yield from _check_task_interfaces(conventions.title, replicated)
        yield from _check_gives_way(fleet, conventions.title, replicated)


def _check_add_ons(settings: Blueprint, fleet: Fleet, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield what needs kinds of objects that the cluster does not know without an add-on of the fleet."""
    framework = settings.framework_row
    if framework.add_on and not getattr(fleet.add_ons, framework.add_on):
        what = f"{framework.workload.operator} runs it" if framework.workload else "it has kinds of objects of its own"
        reason = f"{what}, which the fleet installs with {framework.add_on}"
        fix = f"set {_format_add_ons([framework.add_on])} in the fleet and apply it, or use another framework"
        yield Conflict(("framework",), reason, fix, settings.framework)
    if framework.workload and not framework.workload.keda:
        return
    for placed in placed_roles:
        role = placed.role
        replicas = format_bounds(role.replicas)
        if role.replicas.min != role.replicas.max and not (role.scale and role.scale.planner):
            missing = [name for name in ("operators", "observability") if not getattr(fleet.add_ons, name)]
            reason = "KEDA scales it by Prometheus' metrics, which the fleet installs with operators and observability"
            fix = f"set {_format_add_ons(missing)} in the fleet and apply it, or replicas: {role.replicas.max}"
            if missing:
                yield placed.refuse("replicas", reason, fix, replicas)
        if placed.nodes > 1 and not fleet.add_ons.schedulers:
            reason = f"LeaderWorkerSet joins {placed.nodes} nodes, and the fleet installs it with schedulers"
            fix = (
                f"set {_format_add_ons(['schedulers'])} in the fleet and apply it, or accelerators: "
                f"{count_accelerators(placed.instance)}"
            )
            yield placed.refuse("accelerators", reason, fix, role.accelerators)


def _format_add_ons(names: Sequence[str]) -> str:
    return f"add_ons: {{{', '.join(f'{name}: on' for name in names)}}}"


def _check_load_balancer(settings: Blueprint, fleet: Fleet, environment: Environment) -> Iterator[Conflict]:
    row = settings.load_balancer
    if row is None:
        return
    key = load_balancer.KEY
    yield from load_balancer.check(row, fleet, on_kubernetes=environment.conventions.is_kubernetes)
    if row.public and fleet.is_closed:
        reason = "the fleet's network has no way to the internet"
        yield Conflict((key, "public"), reason, "set public: off, or network: {nat: on} in the fleet", True)
    if row.gateway and not environment.conventions.is_kubernetes:
        reason = f"on {environment.conventions.title} the load balancer calls the routers only"
        fix = "remove gateway, and use an internal load balancer and a public gateway of your own that calls it"
        yield Conflict((key, "gateway"), reason, fix, row.gateway)


def _check_claims(settings: Blueprint, conventions: Conventions) -> Iterator[Conflict]:
    cache = settings.tuning.compile_cache
    if cache and cache != "node" and not conventions.is_kubernetes:
        reason = f"{conventions.title} has no PersistentVolumeClaims"
        yield Conflict(("tuning", "compile_cache"), reason, "set compile_cache: node", cache)
    tiers = settings.tuning.kv_tiers
    if tiers and tiers.shared and not conventions.is_kubernetes:
        reason = f"{conventions.title} has no PersistentVolumeClaims"
        yield Conflict(("tuning", "kv_tiers", "shared"), reason, "remove shared, or use EKS", tiers.shared.claim)


def _check_offload(settings: Blueprint) -> Iterator[Conflict]:
    tuning = settings.tuning
    if settings.is_disaggregated and tuning.ram_bytes:
        reason = (
            "the engine has one connector for KV caches: offloading would replace the one that sends them to decode"
        )
        key, value = ("kv_tiers", ", ".join(tuning.kv_tiers.names)) if tuning.kv_tiers else ("kv_offload", "")
        value = value or f"{tuning.ram_bytes / 2**30:g}Gi"
        baseline = settings.pattern_row.baseline
        fix = f"remove {key}, or set pattern: {baseline}" if baseline else f"remove {key}"
        yield Conflict(("tuning", key), reason, fix, value)


def _check_keeper(
    settings: Blueprint, environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield where what keeps cached prompts is not rendered, or would give what was computed for another."""
    tiers, keeper, conventions = settings.tuning.kv_tiers, settings.tuning.keeper, environment.conventions
    if tiers is None or keeper is None:
        return
    key_path = ("tuning", "kv_tiers", "by")
    if not keeper.runs_on(environment.target):
        reason = keeper.reasons["target"].format(target=conventions.title)
        others = engines.suggest_cache_keepers(lambda row: row.runs_on(environment.target))
        yield Conflict(key_path, reason, ", or ".join(filter(None, ("remove by", others))), tiers.by)
        return
    for placed in placed_roles:
        if placed.role.adapters:
            names, fix = ", ".join(placed.role.adapters), "remove adapters, or by of tuning.kv_tiers"
            yield placed.refuse("adapters", keeper.reasons["adapters"], fix, names)
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


def _check_tier_bucket(settings: Blueprint, fleet: Fleet, conventions: Conventions) -> Iterator[Conflict]:
    """Yield a bucket of cached prompts that engines may not write to, or whose objects they would confuse."""
    tiers = settings.tuning.kv_tiers
    if tiers is None or tiers.s3 is None or tiers.keeper is None:
        return
    key_path, bucket = ("tuning", "kv_tiers", "s3"), tiers.s3.bucket
    if conventions.is_local:
        reason = f"the S3 of this machine has no address of its own for each bucket, which {tiers.keeper.title} needs"
        yield Conflict((*key_path, "bucket"), reason, "remove s3 in a copy to try here", bucket)
    elif bucket not in {row.bucket for row in fleet.storage.tier_buckets}:
        reason = f"the fleet lets its engines write to no bucket {bucket}"
        fix = f"set storage: {{tier_buckets: {{bucket: {bucket}}}}} in the fleet, and apply the fleet"
        yield Conflict((*key_path, "bucket"), reason, fix, bucket)
    if not settings.tuning.stream_weights:
        reason = (
            f"{tiers.keeper.title} names objects after the folder of the weights, which is the same for all that are "
            "copied first"
        )
        yield Conflict((*key_path, "bucket"), reason, "set stream_weights: on, or remove s3", bucket)


def _check_transfer(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield RDMA where the blueprint asks for it, or where the hardware has it."""
    if not settings.is_disaggregated:
        return
    key_path = ("tuning", "kv_transfer")
    without_rdma = [placed for placed in placed_roles if not placed.rdma]
    if not transfers_by_rdma(settings):
        if settings.tuning.kv_transfer == "rdma":
            reason = f"the engine {settings.engine} has no transfer by EFA in the catalog"
            yield Conflict(key_path, reason, "set kv_transfer: host", "rdma")
        return
    if settings.tuning.kv_transfer == "rdma":
        for placed in without_rdma:
            yield Conflict(key_path, *_describe_missing_rdma(placed), "rdma")
    if not without_rdma and settings.tuning.kv_transfer != "host":
        yield from _check_one_zone(placed_roles)


def _check_router(settings: Blueprint) -> Iterator[Conflict]:
    """Yield what the router of this engine, framework and pattern does not have."""
    role, router = settings.roles.router, get_router(settings)
    under = f" under {settings.framework}" if settings.framework_row.router else ""
    described = f"the router of {settings.engine}{under} in the pattern {settings.pattern}"
    if role.policy and role.policy not in router.policies:
        reason = router.absent_policies.get(role.policy, f"{described} has no such policy")
        yield Conflict(("roles", "router", "policy"), reason, f"use one of {', '.join(router.policies)}", role.policy)
    if role.max_requests and not any("{max_requests}" in argument for argument in router.front):
        reason, fix = f"{described} has no limit on requests in flight", "remove it, or use framework: plain"
        yield Conflict(("roles", "router", "max_requests"), reason, fix, role.max_requests)
    if settings.roles.workers and "names" not in router.discovery:
        reason, names = f"{described} has no weights for unlike replicas", ", ".join(settings.roles.workers)
        yield Conflict(("roles", "workers"), reason, "use framework: plain, or remove workers", names)


def _check_named_replicas(
    settings: Blueprint, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield where a router that takes a fixed name of each replica does not get them."""
    if get_router(settings).beside is None:
        return
    described = f"the router of {settings.engine} before prefill and decode reads a name of each replica when it starts"
    if not conventions.runs_tasks:
        frameworks = [
            f"set framework: {name}"
            for name, row in engines.load_frameworks().items()
            if (pair := row.engines.get(settings.engine)) and pair.transfers and conventions.is_kubernetes
        ]
        fix = ", or ".join((*frameworks, "render it for ecs: --target ecs"))
        yield Conflict(("pattern",), f"{described}, which replicas have on ECS only", fix, settings.pattern)
        return
    for placed in placed_roles:
        role = placed.role
        if role.replicas.min != role.replicas.max:
            reason, replicas = f"{described}: it would not learn of others", format_bounds(role.replicas)
            yield placed.refuse("replicas", reason, f"set replicas: {role.replicas.max}", replicas)


def _check_surge(
    settings: Blueprint, fleet: Fleet, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    if not settings.disruption.surge:
        return
    yield from check_surge(fleet, placed_roles)
    if conventions.runs_tasks and any(placed.nodes > 1 for placed in placed_roles):
        reason = f"on {conventions.title} each node of a replica is a service, and two of one rank would share a name"
        yield Conflict(("disruption", "surge"), reason, "set surge: off", "on")


def _check_host_memory(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield roles whose node has no room for a copy of the cache of one request, which a transfer through it keeps."""
    if not copies_cache(settings, placed_roles):
        return
    for placed in placed_roles:
        fit = placed.limit_cache().fit
        if fit and fit.computed and fit.cache_tokens < fit.context:
            reason = (
                "without RDMA the transfer keeps a copy of the KV cache in the node's memory: a replica on "
                f"{placed.instance.name} has {placed.resources.memory_bytes / 2**30:.1f} GiB, of which "
                f"half hold {max(0, fit.cache_tokens):,} tokens, and a request takes {fit.context:,}"
            )
            fix = "use a pool of types with more memory, or a shorter context"
            yield placed.refuse("pool", reason, fix, placed.role.pool)


def _describe_missing_rdma(placed: PlacedRole) -> tuple[str, str]:
    """Return why a role has no RDMA, and the fix."""
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


def _check_one_zone(placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    first, last = placed_roles[0], placed_roles[-1]
    if first.zones != last.zones:
        reason = (
            f"EFA traffic does not cross an Availability Zone: {first.name} runs in {', '.join(first.zones)} "
            f"and {last.name} in {', '.join(last.zones)}"
        )
        fix = f"use a pool in {first.zones[0]}, or kv_transfer: host"
        yield last.refuse("pool", reason, fix, last.role.pool)


def _check_variables(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield variables by which a blueprint of somebody else would run its code as the user."""
    written: list[tuple[tuple[str, ...], Mapping[str, str]]] = [
        (("environment",), settings.environment),
        *(((*placed.key_path, "environment"), placed.role.environment) for placed in placed_roles),
    ]
    for key_path, variables in written:
        for name in filter(_LOADS_CODE.fullmatch, variables):
            reason = "on this machine it makes every program of the engine load code"
            yield Conflict((*key_path, name), reason, f"remove {name}", variables[name])


def _check_one_machine(placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        if placed.nodes > 1:
            reason = f"this is one machine, and a replica needs {placed.nodes}"
            fix = "set fewer accelerators in a copy to try here; a target with more nodes, --target TARGET, renders it"
            yield placed.refuse("accelerators", reason, fix, placed.role.accelerators)


def _check_cores(environment: Environment, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    ranks = {
        placed.key_path: compute_fixed_replicas(placed.role).min * placed.role.tensor * placed.role.data
        for placed in placed_roles
    }
    max_ranks = RANKS_PER_CORE * max(1, environment.cores)
    if sum(ranks.values()) > max_ranks and environment.cores:
        key_path = max(ranks, key=lambda candidate: ranks[candidate])
        role = next(placed.role for placed in placed_roles if placed.key_path == key_path)
        key = "replicas" if compute_fixed_replicas(role).min > 1 else "accelerators"
        parts = " and ".join(f"{path[-1]} {count}" for path, count in ranks.items())
        cores = f"{environment.cores} core{'s' * (environment.cores != 1)}"
        reason = f"{parts} engine processes would run on {cores}, which carry {max_ranks}"
        value = format_bounds(role.replicas) if key == "replicas" else role.accelerators
        fix = "set fewer in a copy to try here; a target with more nodes, --target TARGET, renders it"
        yield Conflict((*key_path, key), reason, fix, value)


def _check_buckets(
    settings: Blueprint, fleet: Fleet, environment: Environment, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield weights and adapters in a bucket that the engines may not read: they would start, and be denied."""
    # Whatever account is signed in where this is checked.
    own = re.compile(build_bucket_name(fleet.name, "models", "[0-9]{12}", fleet.region))
    readable = {environment.bucket, *(row.bucket for row in fleet.storage.model_buckets)}
    locations: dict[tuple[str, ...], str] = {}
    for placed in placed_roles:
        key, location = settings.locate_weights(placed.role)
        locations[settings.find_model_key_path(placed.key_path, placed.role, key)] = location
        locations |= {(*placed.key_path, "adapters", name): location for name, location in placed.role.adapters.items()}
    for location_path, location in locations.items():
        bucket = location.removeprefix("s3://").partition("/")[0]
        if location.startswith("s3://") and bucket not in readable and not own.fullmatch(bucket):
            reason = f"the fleet lets its engines read no bucket {bucket}"
            fix = (
                f"set storage: {{model_buckets: {{bucket: {bucket}}}}} in the fleet, with `key: ARN` for a bucket with "
                "a KMS key, and apply the fleet"
            )
            yield Conflict(location_path, reason, fix, location)


def _check_transfer_split(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield tensor-parallel sizes of prefill and decode that the KV transfer does not support.

    Source: vLLM 0.32.0, kv_connector/utils.py, `tp_ratio` and `is_kv_replicated`, and kv_connector/v1/nixl/
    base_worker.py, `_validate_remote_agent_handshake`.
    """
    if not settings.is_disaggregated:
        return
    first, last = placed_roles[0], placed_roles[-1]
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
    if reason:
        yield last.refuse("accelerators", reason, fix, decode.accelerators)


def _check_kv_events(
    settings: Blueprint, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield routing by KV cache events, where the router does not get them."""
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
        fix += "" if conventions.runs_tasks else ", or framework: dynamo"
    if settings.roles.models:
        reason = "the router reads the cache events of one model"
    if any(settings.roles.get_weight(name) > 1 for name in settings.roles.engine_roles):
        reason = "an engine of weight 2 or more is several entries of the router, and its cache's events are of one"
    if any(placed.role.data > 1 for placed in placed_roles):
        # vllm/distributed/kv_events.py of 0.32.0 adds the rank to the port of events, and to that of earlier ones.
        reason = (
            "each data-parallel rank publishes its cache's events on a port of its own; cache-aware chooses between "
            "ranks as well"
        )
    if reason:
        yield Conflict(("roles", "router", "policy"), reason, fix, "kv-aware")


def _check_group_scaling(title: str, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        role = placed.role
        if placed.nodes > 1 and role.replicas.min != role.replicas.max:
            reason = f"a replica is {placed.nodes} services on {title}, which autoscaling does not start together"
            replicas = format_bounds(role.replicas)
            yield placed.refuse("replicas", reason, f"set replicas: {role.replicas.max}", replicas)


def _check_slo_scaling(
    settings: Blueprint, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield roles that would follow the SLO where nothing measures it."""
    framework = settings.framework_row
    engine = settings.engine_row
    roles = map_latencies(list(settings.roles.engine_roles))
    objectives = list(list_latencies(settings.slo, engine.metrics, engine.buckets, roles))
    for placed in placed_roles:
        if placed.role.scale is None or not placed.role.scale.slo:
            continue
        reason = ""
        if not any(objective.role == placed.name for objective in objectives):
            reason = "the SLO has no percentile of a latency that this role's engines measure"
        elif framework.workload and not framework.workload.keda:
            reason = f"{settings.framework} scales by requests under way alone"
        elif conventions.runs_tasks:
            reason = f"on {conventions.title} a role follows one measure of its engines"
        if reason:
            yield Conflict((*placed.key_path, "scale", "slo"), reason, "remove slo", True)


def _check_planner(settings: Blueprint, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield roles that a planner would scale where there is none, or where no limit tells it when."""
    frameworks = engines.load_frameworks()
    latencies = map_latencies(list(settings.roles.engine_roles))
    for placed in placed_roles:
        if placed.role.scale is None or not placed.role.scale.planner:
            continue
        missing = [
            field
            for metric, field in LATENCIES.items()
            if metric != "e2e" and placed.name in latencies[metric] and find_lowest_limit(settings.slo, field) is None
        ]
        reason, fix = "", "set scale: {queue: 4}"
        if not frameworks[settings.framework].planner_image:
            reason = f"framework: {settings.framework} has no planner"
            names = [name for name, row in frameworks.items() if row.planner_image]
            fix = f"set framework: {' or '.join(names)}, or scale: {{queue: 4}}"
        elif missing:
            reason = f"the SLO has no limit of {' and '.join(missing)}, which the planner keeps"
            fix = f"set slo: {{{', '.join(f'{field}: {{p95: ...}}' for field in missing)}}}, or scale: {{queue: 4}}"
        if reason:
            yield Conflict((*placed.key_path, "scale", "planner"), reason, fix, True)


def _check_max_replicas(conventions: Conventions, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        if placed.role.replicas.max > conventions.max_replicas:
            reason = f"{conventions.title} lists at most {conventions.max_replicas} replicas of a role to the router"
            fix = f"set {conventions.max_replicas} or fewer, and create a second deployment for the rest"
            yield placed.refuse("replicas", reason, fix, format_bounds(placed.role.replicas))


def _check_waiting_replicas(
    fleet: Fleet, conventions: Conventions, placed_roles: Sequence[PlacedRole]
) -> Iterator[Conflict]:
    """Yield roles that fall back, and are so large that their first choice without instances would stop all others."""
    roles = [placed for placed in placed_roles if _has_choices(fleet, placed)]
    total, most = sum(placed.role.replicas.max for placed in roles), conventions.max_waiting
    if total <= most:
        return
    largest = max(roles, key=lambda placed: placed.role.replicas.max)
    others = f" of {format_count(total, 'replica')} in this deployment" if len(roles) > 1 else ""
    reason = (
        f"where the first choice of {largest.role.pool} has no instances, all{others} could wait there; "
        f"{conventions.title} then starts no task in the next choice, with more than {most} waiting"
    )
    rest = "create a deployment in another fleet for the rest"
    fix = f"set {most} or fewer in all, and {rest}; or use a pool with one choice"
    yield largest.refuse("replicas", reason, fix, format_bounds(largest.role.replicas))


def _has_choices(fleet: Fleet, placed: PlacedRole) -> bool:
    """Return whether the role's tasks move between choices of its pool; a replica of several nodes stays."""
    pool_groups = groups.resolve_pool(fleet, placed.role.pool)
    return placed.nodes == 1 and len(groups.group_by_choice(pool_groups)) > 1


def _check_gangs(conventions: Conventions, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield replicas that Kueue cannot admit as a whole."""
    for placed in placed_roles:
        if not placed.role.gang:
            continue
        if not conventions.is_kubernetes:
            reason = f"on {conventions.title} each node of a replica is a service that starts by itself"
            yield placed.refuse("gang", reason, "remove gang, or use EKS", True)
        elif placed.nodes == 1:
            yield placed.refuse("gang", "a replica has one node, which starts whole", "remove gang", True)


def _check_gives_way(fleet: Fleet, title: str, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield roles that give way and that the function of the fallback cannot move: ECS has no priorities."""
    for placed in placed_roles:
        role = placed.role
        if not role.gives_way:
            continue
        node_accelerators = count_accelerators(placed.instance)
        if not _has_choices(fleet, placed):
            reason = (
                f"on {title} the function that moves tasks between choices of a pool does it, and this has one choice"
            )
            yield placed.refuse("gives_way", reason, "set buy: [spot, on-demand] of the pool, for example", True)
        if role.accelerators != node_accelerators:
            reason = f"a replica that gives way on {title} must fill its instance, or the instance is not free then"
            yield placed.refuse("accelerators", reason, f"set accelerators: {node_accelerators}", role.accelerators)
        if role.replicas.min != role.replicas.max:
            reason = f"autoscaling on {title} would start again what gave way"
            fix = f"set replicas: {role.replicas.max}"
            yield placed.refuse("replicas", reason, fix, format_bounds(role.replicas))


def _check_task_interfaces(title: str, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    for placed in placed_roles:
        node_accelerators = count_accelerators(placed.instance)
        tasks = max(1, node_accelerators // placed.role.accelerators)
        free_interfaces = _count_free_interfaces(placed)
        if free_interfaces >= tasks:
            continue
        efa = " beside EFA's" if placed.pool.efa else ""
        reason = (
            f"{title} gives each task a network interface of its own on the node's first card, where "
            f"{placed.instance.name} has {free_interfaces} free{efa}, and {tasks} tasks of such replicas would "
            "run on it"
        )
        if free_interfaces:
            fix = f"set accelerators: {-(-node_accelerators // free_interfaces)} or more"
        else:
            fix = "use a pool of another type, such as p5en or p6-b200"
        fix += ", or another target: --target TARGET"
        yield placed.refuse("accelerators", reason, fix, placed.role.accelerators)


def _count_free_interfaces(placed: PlacedRole) -> int:
    """Return interfaces of the first card beyond those that the node starts with."""
    pool, instance = placed.pool, placed.instance
    used_interfaces = [
        interface
        for interface in interfaces.list_requested(instance, efa=pool.efa, layout=pool.efa_layout, task_interfaces=True)
        if interface.card == instance.cards[0].index
    ]
    return instance.cards[0].interfaces - len(used_interfaces)
