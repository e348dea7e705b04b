"""What cannot work although every role has its nodes: between roles, and by a target's conventions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from llm_serving.catalog import frameworks
from llm_serving.fleet import interfaces
from llm_serving.fleet.aws_limits import build_bucket_name
from llm_serving.kinds.serving import auth
from llm_serving.kinds.serving.checks import caches, engine_limits, scaling
from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.node_shares import count_accelerators
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import compute_fixed_replicas
from llm_serving.services import load_balancer, orchestrators
from llm_serving.services.rendered import split_location
from llm_serving.settings.document import Conflict
from llm_serving.settings.units import format_count

_LOADS_CODE = re.compile(
    "LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|NODE_OPTIONS|PERL5.*|RUBY(OPT|LIB)|GLIBC_TUNABLES|GCONV_PATH|PATH|VLLM_PLUGINS"
)
"""Variables by which the loader, an interpreter, a shell or the engine takes code from where the value says."""

_CHART_NAMES, _MAX_OBJECT_NAME = ("engines", "nodes", "pool-master"), 52
"""Names of roles and characters of NAME-ROLE: charts/inference/templates/_checks.tpl refuses the same."""

RANKS_PER_CORE = 2
"""Engine processes that one core can run: each start takes about a minute of CPU time."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield every mistake, in no particular order."""
    conventions, fleet = context.conventions, context.fleet
    yield from auth.check(context.blueprint.auth, context.router, context.environment)
    yield from _check_router(context)
    yield from caches.check(context)
    yield from _check_named_replicas(context)
    yield from engine_limits.check_settings(context)
    if conventions.is_local:
        yield from _check_variables(context)
        yield from _check_one_machine(context)
        yield from _check_cores(context)
    else:
        yield from _check_claims(context)
        yield from scaling.check_surge(context)
        yield from _check_load_balancer(context)
        if fleet.is_closed:
            yield from _check_chat_vocabulary(context)
        yield from _check_gangs(context)
    if conventions.orchestrator:
        for placed in context.replicated:
            pool = placed.role.pool
            yield from orchestrators.check(fleet, conventions, (*placed.key_path, "pool"), pool, pool=pool)
        yield from _check_buckets(context)
    if conventions.is_kubernetes:
        yield from _check_object_names(context)
        yield from _check_add_ons(context)
    yield from scaling.check(context)
    if conventions.runs_tasks:
        yield from _check_task_interfaces(context)
        yield from _check_gives_way(context)


def _check_object_names(context: Context) -> Iterator[Conflict]:
    """Yield roles whose objects would have names of others of the chart, or too long ones."""
    for placed in context.replicated:
        name = f"{context.name}-{placed.name}"
        if placed.name in (*_CHART_NAMES, *context.blueprint.framework_row.chart_names):
            reason, fix = "on EKS the chart has an object of this name", "choose another name"
            yield Conflict(placed.key_path, reason, fix, placed.name)
        if len(name) > _MAX_OBJECT_NAME:
            reason = f"on EKS the name {name} has {len(name)} characters, and labels of pods allow {_MAX_OBJECT_NAME}"
            yield Conflict(placed.key_path, reason, "shorten it, or `name` of the blueprint", placed.name)


def _check_add_ons(context: Context) -> Iterator[Conflict]:
    """Yield what needs kinds of objects that the cluster does not know without an add-on of the fleet."""
    framework, add_ons = context.blueprint.framework_row, context.fleet.add_ons
    if framework.add_on and not getattr(add_ons, framework.add_on):
        need = f"{framework.workload.operator} runs it" if framework.workload else "it has kinds of objects of its own"
        reason = f"{need}, which the fleet installs with {framework.add_on}"
        fix = f"set {_format_add_ons([framework.add_on])} in the fleet and apply it, or use another framework"
        yield context.refuse_framework(reason, fix)
    if framework.workload and not framework.workload.keda:
        return
    for placed in context.replicated:
        role = placed.role
        if role.replicas.min != role.replicas.max and not (role.scale and role.scale.planner):
            missing_add_ons = [name for name in ("operators", "observability") if not getattr(add_ons, name)]
            reason = "KEDA scales it by Prometheus' metrics, which the fleet installs with operators and observability"
            fix = f"set {_format_add_ons(missing_add_ons)} in the fleet and apply it, or replicas: {role.replicas.max}"
            if missing_add_ons:
                yield placed.refuse("replicas", reason, fix)
        if placed.nodes > 1 and not add_ons.schedulers:
            reason = f"LeaderWorkerSet joins {placed.nodes} nodes, and the fleet installs it with schedulers"
            fix = (
                f"set {_format_add_ons(['schedulers'])} in the fleet and apply it, or accelerators: "
                f"{count_accelerators(placed.instance)}"
            )
            yield placed.refuse("accelerators", reason, fix)


def _format_add_ons(names: Sequence[str]) -> str:
    return f"add_ons: {{{', '.join(f'{name}: on' for name in names)}}}"


def _check_load_balancer(context: Context) -> Iterator[Conflict]:
    row, conventions = context.blueprint.load_balancer, context.conventions
    if row is None:
        return
    key = load_balancer.KEY
    yield from load_balancer.check(row, context.fleet, on_kubernetes=conventions.is_kubernetes)
    if row.public and context.fleet.is_closed:
        reason = "the fleet's network has no way to the internet"
        yield Conflict((key, "public"), reason, "set public: off, or network: {nat: on} in the fleet", True)
    if row.gateway and not conventions.is_kubernetes:
        reason = f"on {conventions.title} the load balancer calls the routers only"
        fix = "remove gateway, and use an internal load balancer and a public gateway of your own that calls it"
        yield Conflict((key, "gateway"), reason, fix, row.gateway)


def _check_chat_vocabulary(context: Context) -> Iterator[Conflict]:
    """Yield models whose chats need a file of the internet, of a fleet without a way there."""
    variable = context.engine.chat_vocabulary
    for placed in context.placed_roles:
        is_named = variable in context.blueprint.merge_environment(placed.role)
        if variable and placed.model.kind == "gpt_oss" and not is_named:
            reason = "the engine loads its chats' vocabulary from the internet, to which the fleet's network has no way"
            fix = (
                f"set network: {{nat: on}} in the fleet, or environment: {{{variable}: FOLDER}} and an image of your "
                "own with o200k_base.tiktoken in that folder"
            )
            yield Conflict(placed.find_model_key_path("model"), reason, fix, placed.model.name)


def _check_claims(context: Context) -> Iterator[Conflict]:
    if context.conventions.is_kubernetes:
        return
    reason = f"{context.conventions.title} has no PersistentVolumeClaims"
    cache, tiers = context.blueprint.tuning.compile_cache, context.blueprint.tuning.kv_tiers
    if cache and cache != "node":
        yield Conflict(("tuning", "compile_cache"), reason, "set compile_cache: node", cache)
    if tiers and tiers.shared:
        yield Conflict(("tuning", "kv_tiers", "shared"), reason, "remove shared, or use EKS", tiers.shared.claim)


def _check_router(context: Context) -> Iterator[Conflict]:
    """Yield what the router of this engine, framework and pattern does not have."""
    settings, role, router = context.blueprint, context.blueprint.roles.router, context.router
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


def _check_named_replicas(context: Context) -> Iterator[Conflict]:
    """Yield where a router that takes a fixed name of each replica does not get them."""
    settings, conventions = context.blueprint, context.conventions
    if context.router.beside is None:
        return
    described = f"the router of {settings.engine} before prefill and decode reads a name of each replica when it starts"
    if not conventions.runs_tasks:
        fixes = [
            f"set framework: {name}"
            for name, row in frameworks.load_frameworks().items()
            if (pair := row.engines.get(settings.engine)) and pair.transfers and conventions.is_kubernetes
        ]
        fix = ", or ".join((*fixes, "render it for ecs: --target ecs"))
        yield Conflict(("pattern",), f"{described}, which replicas have on ECS only", fix, settings.pattern)
        return
    for placed in context.replicated:
        replicas = placed.role.replicas
        if replicas.min != replicas.max:
            reason = f"{described}: it would not learn of others"
            yield placed.refuse("replicas", reason, f"set replicas: {replicas.max}")


def _check_variables(context: Context) -> Iterator[Conflict]:
    """Yield variables by which a blueprint of somebody else would run its code as the user."""
    written_variables: list[tuple[tuple[str, ...], Mapping[str, str]]] = [
        (("environment",), context.blueprint.environment),
        *(((*placed.key_path, "environment"), placed.role.environment) for placed in context.placed_roles),
    ]
    for key_path, variables in written_variables:
        for name in filter(_LOADS_CODE.fullmatch, variables):
            reason = "on this machine it makes every program of the engine load code"
            yield Conflict((*key_path, name), reason, f"remove {name}", variables[name])


def _check_one_machine(context: Context) -> Iterator[Conflict]:
    for placed in context.replicated:
        if placed.nodes > 1:
            reason = f"this is one machine, and a replica needs {placed.nodes}"
            fix = "set fewer accelerators in a copy to try here; a target with more nodes, --target TARGET, renders it"
            yield placed.refuse("accelerators", reason, fix)


def _check_cores(context: Context) -> Iterator[Conflict]:
    cores, roles = context.environment.cores, {placed.name: placed for placed in context.replicated}
    ranks = {
        name: compute_fixed_replicas(placed.role).min * placed.role.tensor * placed.role.data
        for name, placed in roles.items()
    }
    max_ranks = RANKS_PER_CORE * cores
    if cores and sum(ranks.values()) > max_ranks:
        largest = roles[max(ranks, key=ranks.__getitem__)]
        parts = " and ".join(f"{name} {count}" for name, count in ranks.items())
        reason = f"{parts} engine processes would run on {format_count(cores, 'core')}, which carry {max_ranks}"
        fix = "set fewer in a copy to try here; a target with more nodes, --target TARGET, renders it"
        key = "replicas" if compute_fixed_replicas(largest.role).min > 1 else "accelerators"
        yield largest.refuse(key, reason, fix)


def _check_buckets(context: Context) -> Iterator[Conflict]:
    """Yield weights and adapters in a bucket that the engines may not read: they would start, and be denied."""
    fleet = context.fleet
    # Whatever account is signed in where this is checked.
    own = re.compile(build_bucket_name(fleet.name, "models", "[0-9]{12}", fleet.region))
    readable = {context.environment.bucket, *(row.bucket for row in fleet.storage.model_buckets)}
    locations: dict[tuple[str, ...], str] = {}
    for placed in context.placed_roles:
        key, location = context.blueprint.locate_weights(placed.role)
        locations[placed.find_model_key_path(key)] = location
        locations |= {(*placed.key_path, "adapters", name): location for name, location in placed.role.adapters.items()}
    for location_path, location in locations.items():
        bucket, _ = split_location(location)
        if location.startswith("s3://") and bucket not in readable and not own.fullmatch(bucket):
            reason = f"the fleet lets its engines read no bucket {bucket}"
            fix = (
                f"set storage: {{model_buckets: {{bucket: {bucket}}}}} in the fleet, with `key: ARN` for a bucket with "
                "a KMS key, and apply the fleet"
            )
            yield Conflict(location_path, reason, fix, location)


def _check_gangs(context: Context) -> Iterator[Conflict]:
    """Yield replicas that Kueue cannot admit as a whole."""
    for placed in context.replicated:
        if not placed.role.gang:
            continue
        if not context.conventions.is_kubernetes:
            reason = f"on {context.conventions.title} each node of a replica is a service that starts by itself"
            yield placed.refuse("gang", reason, "remove gang, or use EKS")
        elif placed.nodes == 1:
            yield placed.refuse("gang", "a replica has one node, which starts whole", "remove gang")


def _check_gives_way(context: Context) -> Iterator[Conflict]:
    """Yield roles that give way and that the function of the fallback cannot move: ECS has no priorities."""
    title = context.conventions.title
    for placed in context.replicated:
        role = placed.role
        if not role.gives_way:
            continue
        node_accelerators = count_accelerators(placed.instance)
        if not scaling.has_choices(context.fleet, placed):
            reason = (
                f"on {title} the function that moves tasks between choices of a pool does it, and this has one choice"
            )
            yield placed.refuse("gives_way", reason, "set buy: [spot, on-demand] of the pool, for example")
        if role.accelerators != node_accelerators:
            reason = f"a replica that gives way on {title} must fill its instance, or the instance is not free then"
            yield placed.refuse("accelerators", reason, f"set accelerators: {node_accelerators}")
        if role.replicas.min != role.replicas.max:
            reason = f"autoscaling on {title} would start again what gave way"
            yield placed.refuse("replicas", reason, f"set replicas: {role.replicas.max}")


def _check_task_interfaces(context: Context) -> Iterator[Conflict]:
    for placed in context.replicated:
        node_accelerators = count_accelerators(placed.instance)
        tasks = max(1, node_accelerators // placed.role.accelerators)
        free_interfaces = _count_free_interfaces(placed)
        if free_interfaces >= tasks:
            continue
        efa = " beside EFA's" if placed.pool.efa else ""
        reason = (
            f"{context.conventions.title} gives each task a network interface of its own on the node's first card, "
            f"where {placed.instance.name} has {free_interfaces} free{efa}, and {tasks} tasks of such replicas would "
            "run on it"
        )
        if free_interfaces:
            fix = f"set accelerators: {-(-node_accelerators // free_interfaces)} or more"
        else:
            fix = "use a pool of another type, such as p5en or p6-b200"
        fix += ", or another target: --target TARGET"
        yield placed.refuse("accelerators", reason, fix)


def _count_free_interfaces(placed: PlacedRole) -> int:
    """Return interfaces of the first card beyond those that the node starts with."""
    pool, instance = placed.pool, placed.instance
    used_interfaces = [
        interface
        for interface in interfaces.list_requested(instance, efa=pool.efa, layout=pool.efa_layout, task_interfaces=True)
        if interface.card == instance.cards[0].index
    ]
    return instance.cards[0].interfaces - len(used_interfaces)
