"""Command lines and environments: rows of the engines' catalog with the deployment's numbers filled in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving.catalog import engine_options, engines, images, registry
from llm_serving.catalog.engines import CommandPart, Engine, Values
from llm_serving.catalog.instances import Instance
from llm_serving.engines import base
from llm_serving.engines.memory import CpuLoad
from llm_serving.fleet import image_cache
from llm_serving.fleet.aws_limits import INSTANCE_START_S
from llm_serving.kinds.serving import auth, options
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.checks.models import find_draft
from llm_serving.kinds.serving.deployment import DECODE, PREFILL
from llm_serving.kinds.serving.options import Node
from llm_serving.kinds.serving.placement import PlacedRole
from llm_serving.kinds.serving.roles import EngineRole, RouterPolicy, compute_fixed_replicas
from llm_serving.kinds.serving.stack import RouterContainer
from llm_serving.services import deployments, tasks
from llm_serving.services.deployment import Door
from llm_serving.services.environment import Conventions, Discovery, Environment, format_peer_name
from llm_serving.services.models import ServedModel, Weights
from llm_serving.services.service import LOOPBACK, Probe, Resources, Service
from llm_serving.services.traffic import Traffic

ENGINE_PORT, ROUTER_PORT = deployments.WORKER_PORT, deployments.ENTRY_PORT
ROUTER_ADMIN_PORT, METRICS_PORT, DISCOVERY_PORT = 8081, 9090, 9091
"""Ports of a container that has its own address."""

GROUP_RANK, GROUP_LEADER = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"
"""Variables that a LeaderWorkerSet gives its pods: Kubernetes fills them in."""

RELEASE, NAMESPACE = "$(RELEASE)", "$(NAMESPACE)"
"""Variables that charts/inference gives its pods, so that the values serve any release in any namespace."""

SELECTOR_LABELS = {"app.kubernetes.io/instance": "{deployment}", "app.kubernetes.io/component": "{role}"}
LEADER_LABELS = {"inference/listens": "true"}
"""Labels that charts/inference puts on the pods of a role, and on those of several nodes that answer requests."""

PORTS = {"side": 5600, "events": 5557, "replay": 5558, "master": 29500, "data": 13345, "cache": 5655}
"""Further ports of an engine's container: KV transfers and events, ranks of a replica, the server of cached prompts."""

MIN_LOAD_BYTES_S = 200e6
"""Lowest rate of streaming weights, bytes per second, for the limit of a start: a tenth of a good S3's."""

MAX_STREAM_BYTES, STREAM_SHARE = 40_000_000_000, 0.25
"""Memory for weights on their way from S3: the streamer's own limit, and the largest share of a replica's memory on a
node, without shared memory. Source of the first: runai_model_streamer 0.17.0, file_streamer/requests_iterator.py."""

S3_CLIENT_BYTES_S = 10e9 / 8
"""What one of the streamer's S3 clients is made for, bytes per second; it opens connections for as much, 22 to 25 of
them. Source: github.com/run-ai/runai-model-streamer, docs/src/env-vars.md of 0.17.0, RUNAI_STREAMER_OBJ_CONCURRENCY and
RUNAI_STREAMER_S3_TARGET_GBPS; connections counted with 0.17.0, 2026-11-23."""

STREAM_CPU_S_PER_BYTE = 2e-9
"""Seconds of one core for each byte that is streamed: kernel, copies and first writes to memory. 1.1 to 1.6 without TLS
(measured 2026-11-23 over loopback on 2 busy cores, CPU time alone); the rest is for TLS."""

EMBEDDING_NUMBER_BYTES = 2

OPEN_LOOP_REQUESTS = 32
"""Requests under way at once that an open loop is estimated at."""

COMPILE_CACHE_FOLDER = "/compile-cache"
"""Folder of a container that compiled programs are kept in for its next start."""

WEIGHTS_FOLDER, DRAFT_FOLDER = "weights", "draft"
"""Folders that weights are copied to before the engine starts, where they are not streamed: the model's, and those of
the draft model."""


@dataclass(frozen=True)
class Context:
    """What the command lines of all roles are built from."""

    blueprint: Blueprint
    name: str
    """The deployment's."""

    environment: Environment
    policy: RouterPolicy
    transfer: str
    """Which of the engine's transfers hands caches on; empty where none do."""

    folder: Path
    """The blueprint's."""

    @property
    def conventions(self) -> Conventions:
        """What the target does in its own way."""
        return self.environment.conventions

    @property
    def prefetch_folder(self) -> str:
        """Folder of a container that files of S3 are copied to before its process starts."""
        return f"{self.environment.data_folder}/fetched"

    @property
    def engine(self) -> engines.Engine:
        return self.blueprint.engine_row

    @property
    def pair(self) -> engines.FrameworkEngine | None:
        """What the framework says of the engine; None where it runs all as their own rows say."""
        return self.blueprint.framework_row.engines.get(self.blueprint.engine)

    @property
    def door(self) -> Door | None:
        """What asks for keys of teams; None where everybody may call."""
        return auth.build_door(self.blueprint.auth, self.name, self.folder, self.environment)

    @property
    def router(self) -> engines.Router:
        return get_router(self.blueprint)

    def is_node_service(self, nodes: int) -> bool:
        """Return whether each of the nodes of each replica is a service by itself, with a name of its own."""
        return self.conventions.runs_tasks and (nodes > 1 or self.router.beside is not None)

    def pin_image(self, image: str) -> str:
        """Return an image as it is pulled: from the fleet's registry or its cache, with its digest if known."""
        pinned = images.pin(image.replace("{registry}", self.environment.registry), self.environment.image_digests)
        return image_cache.rewrite(pinned, self.environment.image_prefixes)

    def select_platform(self, placed: PlacedRole) -> engines.Platform:
        """Return the engine on the processors that it runs on: the pool's accelerators, or this machine's CPU."""
        return placed.platform if not self.conventions.is_local else self.engine.platforms["cpu"]

    def describe_node(self, placed: PlacedRole, rank: int = 0) -> Node:
        """Return node `rank` of the replicas of a role."""
        platform = self.select_platform(placed)
        return Node(self.blueprint, placed, platform, self.conventions, rank)

    def streams(self, placed: PlacedRole) -> bool:
        """Return whether the engine streams its weights from S3."""
        return self.blueprint.tuning.stream_weights and self.engine.streams_on(self.select_platform(placed))


def get_router(blueprint: Blueprint) -> engines.Router:
    """Return the row of the blueprint's router, which its engine and its framework decide together."""
    return engines.get_router(blueprint.engine, blueprint.framework, is_disaggregated=blueprint.is_disaggregated)


def list_port_names(blueprint: Blueprint) -> list[str]:
    """Return names of the ports that a target must choose where processes share one machine."""
    keeper = blueprint.tuning.keeper
    processes = [
        f"{name}-{index}"
        for name, role in blueprint.roles.replica_roles.items()
        for index in range(compute_fixed_replicas(role).min)
    ]
    extra_names = [
        *(["side"] if blueprint.is_disaggregated else []),
        *list_event_ports(blueprint.engine_row, blueprint.roles.router.policy),
        *(["cache"] if keeper and keeper.server_bytes else []),
    ]
    return [
        "router",
        "router-admin",
        "router-metrics",
        *([auth.USAGE_PORT] if blueprint.auth else []),
        *processes,
        *(f"{process}-{name}" for process in processes for name in extra_names),
    ]


def _compute_stream_bytes(placed: PlacedRole) -> int:
    """Return memory for weights on their way from S3: of a node's ranks together, or of each if they share nothing.

    Never below the largest tensor, which has to fit as a whole: the embedding.
    """
    resources, model = placed.resources, placed.model
    free_bytes = resources.memory_bytes - resources.shared_memory_bytes
    node_bytes = min(MAX_STREAM_BYTES, int(free_bytes * STREAM_SHARE))
    node_readers = max(1, placed.role.data // placed.nodes) if not model.experts else 1
    return max(node_bytes // node_readers, model.vocabulary * model.hidden * EMBEDDING_NUMBER_BYTES)


def compute_stream_clients(instances: Sequence[Instance]) -> int:
    """Return S3 clients of one reader, which the streamer calls its concurrency.

    They fill an accelerator's share of the node's network, or of what its cores can take in if that is less. More would
    only open more connections and hold more buffers.

    Of EFA instances, the first card alone carries ordinary traffic.
    """

    def compute(row: Instance) -> int:
        readers = row.accelerators.count if row.accelerators else 1
        network_bytes_s = min(row.network_gbps, row.cards[0].peak_gbps) * 1e9 / 8 / readers
        cpu_bytes_s = row.vcpus / readers / STREAM_CPU_S_PER_BYTE
        return math.ceil(min(network_bytes_s, cpu_bytes_s) / S3_CLIENT_BYTES_S)

    return min(map(compute, instances))


def list_instance_keys(context: Context, placed: PlacedRole) -> list[tuple[int, int]]:
    """Return replica and rank of each process that the target is asked to run.

    A target that copies processes itself is asked for one replica: for one process of it where it numbers the nodes,
    and a second that describes all further ranks.
    """
    nodes = placed.nodes
    if context.conventions.is_local:
        return [(replica, 0) for replica in range(compute_fixed_replicas(placed.role).min)]
    if context.is_node_service(nodes):
        return [(replica, rank) for replica in range(placed.role.replicas.max) for rank in range(nodes)]
    return [(0, rank) for rank in range(min(2, nodes))]


def build_engine_service(
    context: Context, placed: PlacedRole, served_model: ServedModel, replica: int, rank: int
) -> Service:
    """Return the engine on one node of a replica: what its command line decides."""
    role = placed.role
    environment, platform = context.environment, context.select_platform(placed)
    process_name = _build_process_name(context, placed.name, placed.nodes, replica, rank)
    node = context.describe_node(placed, rank)
    parts = list_command_parts(context, node)
    tiers = locate_tiers(context, role, served_model)
    keeper = context.blueprint.tuning.keeper
    values = {
        **_build_shared_values(context, node, served_model),
        **_build_process_values(context, process_name, placed.name, replica, rank),
        **{f"{tier}_tier": folder for tier, folder in tiers.items()},
        "cache_tiers": tuple(json.dumps(tier) for tier in _list_lmcache_tiers(context, tiers)),
        "pool_key": "",
        "pool_master": f"{context.name}-{keeper.master}:{keeper.master_port}" if keeper else "",
        "tier_key": build_tier_key(context, role, served_model, context.blueprint.image or context.engine.image),
    }
    settings = engines.fill_settings((context.engine.settings, *(part.settings for part in parts)), values)
    templates = (
        *context.engine.command,
        *(text for part in parts for text in part.arguments),
        *(context.engine.settings_arguments if settings else ()),
    )
    own_arguments = format_engine_arguments(context, role)
    if keeper and keeper.names_lack == "command":
        accelerators = placed.instance.accelerators
        environment_text = json.dumps(context.blueprint.merge_environment(role), sort_keys=True)
        words = (*engines.fill_arguments(templates, values), *own_arguments)
        image = context.blueprint.image or platform.image or context.engine.image
        rest = (accelerators.name if accelerators else "", environment_text, *words)
        values["pool_key"] = build_tier_key(context, role, served_model, image, rest)
    command = engines.fill_arguments(templates, values) + own_arguments
    fetches = list_fetches(context, placed, served_model)
    env = engines.fill_env((context.engine.environment, *(part.environment for part in parts)), values)
    env |= context.blueprint.merge_environment(role)
    address_variables = tuple(dict.fromkeys(variable for part in parts for variable in part.address_variables))
    own_address = environment.hidden_host if context.conventions.is_local else ""
    env |= dict.fromkeys(address_variables, own_address) if own_address else {}
    return Service(
        name=process_name,
        role=placed.name,
        command=(
            *(environment.fetcher if fetches else ()),
            *(word for folder, uri in fetches.items() for word in (f"{context.prefetch_folder}/{folder}", uri)),
            *(("--",) if fetches else ()),
            *_keep_cache(
                environment,
                {folder: context.blueprint.tuning.folder_bytes[tier] for tier, folder in tiers.items()},
                engines.fill_arguments((word for part in parts for word in part.beside), values),
            ),
            *_write_settings(values["settings_file"], settings),
            resolve_executable(environment, command[0]),
            *command[1:],
        ),
        env={**environment.env, **env},
        host=environment.hidden_host,
        port=_select_port(context, process_name, ENGINE_PORT),
        probe=None
        if rank
        else _build_probe(
            context,
            served_model,
            _compute_start_limit_s(platform, served_model),
            context.engine.health,
            _read_warm_prompt(context, role),
        ),
        address_variables=() if own_address else address_variables,
        resources=Resources(memory_bytes=_compute_memory_bytes(context, placed, served_model)),
    )


def locate_tiers(context: Context, role: EngineRole, served_model: ServedModel) -> dict[str, str]:
    """Return the folders of cached prompts, by tier: mounts of a container, or folders of the deployment here."""
    if not context.conventions.is_local:
        return {tier: options.TIER_FOLDERS[tier] for tier in context.blueprint.tuning.folder_bytes}
    key = build_tier_key(context, role, served_model)
    return {
        tier: f"{context.environment.data_folder}/kv/{tier}/{key}" for tier in context.blueprint.tuning.folder_bytes
    }


def _list_lmcache_tiers(context: Context, folders: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the settings of LMCache's tiers below memory; S3 takes the credentials of its container."""
    for folder in folders.values():
        yield {"type": "fs_native", "base_path": folder}
    tiers, region = context.blueprint.tuning.kv_tiers, context.environment.region
    if tiers and tiers.s3:
        host = f"{tiers.s3.bucket}.s3.{region}.{registry.find_domain(region)}"
        yield {"type": "s3", "s3_endpoint": host, "s3_region": region}


def build_tier_key(
    context: Context, role: EngineRole, served_model: ServedModel, image: str = "", words: Sequence[str] = ()
) -> str:
    """Return what names of prompts begin with that may be of use to one another: of one image and model.

    Args:
        words: all else that decides the bytes of a prompt's cache, where the settings of the model are not enough.
    """
    tuning = context.blueprint.tuning
    parts = [image, served_model.weights.uri, *words]
    if (tuning.keeper.names_lack if tuning.keeper else context.engine.tier_names_lack) == "settings":
        arguments = json.dumps(context.blueprint.merge_arguments(role), sort_keys=True, default=str)
        parts += [tuning.quantization or "", tuning.kv_cache, arguments]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _keep_cache(environment: Environment, folder_bytes: Mapping[str, int], server: Sequence[str]) -> tuple[str, ...]:
    """Return what starts the engine where it keeps folders of files, or has a server beside it.

    Args:
        folder_bytes: largest sizes of the folders.
        server: command of the server; empty for none.
    """
    if not folder_bytes and not server:
        return ()
    file = Path(__file__).with_name("cache_keeper.py")
    # On one line, as a task's command is.
    text = f"exec({file.read_text(encoding='utf-8')!r})"
    program = (str(file),) if environment.conventions.is_local else ("-c", text)
    sizes = (f"{folder}={size}" for folder, size in folder_bytes.items())
    server = (resolve_executable(environment, server[0]), *server[1:]) if server else ()
    return (resolve_executable(environment, "python3"), *program, *sizes, "--", *server, "--")


def _write_settings(file: object, settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return what writes an engine's file of settings and becomes the engine; nothing where it has none."""
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2]); os.execvp(sys.argv[3], sys.argv[3:])"
    return ("python3", "-c", program, str(file), json.dumps(settings)) if settings else ()


def format_engine_arguments(context: Context, role: EngineRole) -> tuple[str, ...]:
    """Return the words of the engine's own options of a role; `checks` has refused what is no option."""
    recorded = engine_options.get_options(context.blueprint.engine)
    arguments = context.blueprint.merge_arguments(role)
    # A framework's own program spells every option with dashes.
    update = {"word": ""} if context.pair and context.pair.command else {}
    options = {name: recorded[name].model_copy(update=update) for name in arguments}
    return tuple(word for name, value in arguments.items() for word in options[name].format_words(name, value))


def _compute_start_limit_s(platform: engines.Platform, served_model: ServedModel) -> float:
    """Return longest start of an engine, in seconds."""
    return platform.start_s + served_model.weights.bytes / MIN_LOAD_BYTES_S


def list_command_parts(context: Context, node: Node) -> list[CommandPart]:
    """Return what is added to the engine's command, in the order of the command line."""
    engine, platform, placed = context.engine, node.platform, node.placed
    parts: list[CommandPart] = []
    if engine.streaming and context.streams(placed):
        parts += [engine.streaming, *((engine.other_s3,) if context.environment.s3_endpoint else ())]
    parts.append(platform)
    for option in options.list_names(node):
        parts += [part for part in (engine.options.get(option), platform.options.get(option)) if part]
    wide_experts = placed.wide_experts
    if wide_experts:
        parts += [wide_experts, *([wide_experts.balancing] if placed.spare_experts else [])]
    if context.transfer:
        parts.append(engine.transfers[context.transfer])
    if node.rank and "follower" in engine.options:
        parts.append(engine.options["follower"])
    return parts


def _build_process_name(context: Context, role: str, nodes: int, replica: int, rank: int) -> str:
    if context.conventions.is_local:
        return f"{role}-{replica}"
    if context.is_node_service(nodes):
        return f"{role}-{replica}-{rank}" if nodes > 1 else f"{role}-{replica}"
    return f"{role}-follower" if rank else role


def _build_shared_values(context: Context, node: Node, served_model: ServedModel) -> Values:
    role, placed, draft = node.role, node.placed, served_model.draft
    rank_count = sum(
        compute_fixed_replicas(engine_role).min * _count_ranks(engine_role)
        for engine_role in context.blueprint.roles.replica_roles.values()
    )
    return {
        "weights": _locate_weights(context, placed, served_model.weights, name_weights_folder(context, placed)),
        "served_model": served_model.name,
        "host": context.environment.member_host,
        "context": served_model.context,
        "kv_bytes": _compute_kv_bytes(context, placed, served_model),
        "kv_role": context.engine.transfer_roles.get(placed.name, ""),
        "threads": _count_threads(context, placed, rank_count),
        "tensor": role.tensor,
        "pipeline": role.pipeline,
        "data": role.data,
        "nodes": placed.nodes,
        "batch_tokens": placed.batch.tokens,
        "sequences": placed.batch.sequences,
        "slots_context": served_model.context * placed.batch.sequences,
        "draft": _locate_weights(context, placed, draft.weights, DRAFT_FOLDER) if draft else "",
        "adapters": tuple(f"{adapter}={path}" for adapter, path in _list_adapter_paths(context, served_model).items()),
        "chat_template": _locate_chat_template(context, node),
        "stream_bytes": _compute_stream_bytes(placed),
        "stream_clients": compute_stream_clients(placed.instances),
        "drain_s": math.ceil(context.blueprint.disruption.drain),
        "memory_share": f"{placed.wide_experts.memory_share:g}" if placed.wide_experts else "",
        "spare_experts": placed.spare_experts,
        "start_limit_s": math.ceil(_compute_start_limit_s(node.platform, served_model)),
        "socket_folder": context.environment.socket_folder,
        "settings_file": _locate_settings(context),
        **options.build_values(node),
    }


def _locate_settings(context: Context) -> str:
    """Return the file of settings that a command writes before its program starts."""
    return f"{context.environment.socket_folder}/settings.json"


def _count_threads(context: Context, placed: PlacedRole, rank_count: int) -> int:
    """Return threads of computation of one rank: its share of the machine, or of its node's physical cores."""
    if context.conventions.is_local:
        return max(1, context.environment.cores // rank_count)
    return max(1, placed.resources.cpus // max(row.threads_per_core for row in placed.instances))


def _build_process_values(context: Context, process_name: str, role: str, replica: int, rank: int) -> Values:
    environment, conventions = context.environment, context.conventions
    cache_folder = f"{environment.data_folder}/cache"
    # An engine beside another in a container has its own too.
    takes_turns = context.blueprint.roles.takes_turns(role)
    own_cache = process_name if conventions.is_local else role if takes_turns else ""
    return {
        "port": _select_port(context, process_name, ENGINE_PORT),
        "hidden_host": environment.hidden_host,
        "cache_port": _select_port(context, f"{process_name}-cache", PORTS["cache"]),
        "nixl_side_channel_port": _select_port(context, f"{process_name}-side", PORTS["side"]),
        "kv_events_endpoint": _build_kv_endpoint(context, process_name, "events"),
        # Each data-parallel rank adds its number to an address with this word: vllm/distributed/kv_events.py of 0.31.0.
        "kv_events_socket": f"ipc://{environment.socket_folder}/inproc-{process_name}",
        "kv_replay_endpoint": _build_kv_endpoint(context, process_name, "replay"),
        "master_port": PORTS["master"],
        "data_port": PORTS["data"],
        "cache": f"{cache_folder}/{own_cache}" if own_cache else cache_folder,
        "compile_cache": COMPILE_CACHE_FOLDER,
        "module_folder": locate_modules(context),
        "rank": GROUP_RANK if conventions.is_kubernetes and rank else rank,
        "leader_address": GROUP_LEADER
        if conventions.is_kubernetes
        else build_peer_name(context, f"{role}-{replica}-0"),
    }


def locate_modules(context: Context) -> str:
    """Return the folder of the modules in images/ that the engine loads."""
    return context.environment.module_folder or context.engine.module_folder


def build_peer_name(context: Context, service: str) -> str:
    """Return the DNS name by which the deployment's processes find a service of it."""
    return format_peer_name(_name_release(context), service, _name_namespace(context))


def _name_release(context: Context) -> str:
    """Return what the services' names begin with, as their own command lines write it."""
    return RELEASE if context.conventions.is_kubernetes else context.name


def _name_namespace(context: Context) -> str:
    """Return the namespace of the deployment, as its own command lines write it."""
    return NAMESPACE if context.conventions.is_kubernetes else context.environment.namespace


def _count_ranks(role: EngineRole) -> int:
    """Return processes that compute, of one replica."""
    return role.tensor * role.data


def _locate_weights(context: Context, placed: PlacedRole, weights: Weights, folder: str) -> str:
    """Return where the engine loads weights from: S3, or the folder that they were copied to."""
    return weights.uri if context.streams(placed) else f"{context.prefetch_folder}/{folder}"


def _locate_chat_template(context: Context, node: Node) -> str:
    """Return the user's template or the catalog's, as the engine takes it; empty where the model's own is used.

    In a container the user's template is the argument itself: engines take either.
    """
    if node.written_template is None:
        return node.catalog_template
    file = context.folder / node.written_template
    return file.read_text(encoding="utf-8") if not context.conventions.is_local else str(file.resolve())


def _list_adapter_paths(context: Context, served_model: ServedModel) -> Mapping[str, str]:
    """Return where the engine finds its adapters: in their own folders, or where they are copied to in a container."""
    if context.conventions.is_local:
        return served_model.adapters
    return {name: f"{context.prefetch_folder}/{_build_adapter_folder(name)}" for name in served_model.adapters}


def _build_adapter_folder(adapter: str) -> str:
    return f"adapter-{adapter}"


def list_fetches(context: Context, placed: PlacedRole, served_model: ServedModel) -> dict[str, str]:
    """Return what the engine's command copies from S3 before it starts, by folder: on a target without containers."""
    return _list_copied_weights(context, placed, served_model) if context.conventions.is_local else {}


def list_prefetch_uris(context: Context, placed: PlacedRole, served_model: ServedModel) -> dict[str, str]:
    """Return what of S3 is copied to the node before the engine starts, by its folder there."""
    if context.conventions.is_local:
        return {}
    weights = _list_copied_weights(context, placed, served_model)
    return weights | {_build_adapter_folder(name): uri for name, uri in served_model.adapters.items()}


def _list_copied_weights(context: Context, placed: PlacedRole, served_model: ServedModel) -> dict[str, str]:
    """Return weights that are copied to a disk before the engine reads them, by folder."""
    if context.streams(placed):
        return {}
    drafts = {DRAFT_FOLDER: served_model.draft.weights.uri} if served_model.draft else {}
    return {name_weights_folder(context, placed): served_model.weights.uri} | drafts


def name_weights_folder(context: Context, placed: PlacedRole) -> str:
    """Return the folder that a role's weights are copied to: of several models each has its own."""
    has_own = placed.name in context.blueprint.roles.models
    return f"{WEIGHTS_FOLDER}-{placed.name}" if has_own else WEIGHTS_FOLDER


def _compute_kv_bytes(context: Context, placed: PlacedRole, served_model: ServedModel) -> int:
    """Return KV cache of one rank, in bytes, where it uses the machine's own memory."""
    settings, fit = context.blueprint, placed.fit
    if fit and not placed.instance.accelerators and not context.conventions.is_local:
        # Of a model whose arithmetic is not known, the other half is for what is not computed.
        return fit.cache_bytes if fit.computed else fit.cache_bytes // 2
    load = CpuLoad(
        served_model.context,
        [settings.max_sequence_tokens] * count_concurrent_requests(settings.traffic),
        context.select_platform(placed).kv_block,
        placed.role.tensor,
        placed.batch.sequences,
        find_draft(settings.tuning, placed.model),
    )
    return base.get_memory_model(settings.engine).compute_cpu_cache_bytes(placed.model, load)


def _compute_memory_bytes(context: Context, placed: PlacedRole, served_model: ServedModel) -> int:
    """Return memory of one replica where processes share one machine; 0 elsewhere."""
    if not context.conventions.is_local:
        return 0
    platform = context.select_platform(placed)
    rank_bytes = platform.base_bytes + _compute_kv_bytes(context, placed, served_model)
    tuning = context.blueprint.tuning
    server_bytes = tuning.keeper.server_bytes if tuning.keeper else 0
    tier_bytes = server_bytes + tuning.ram_bytes if server_bytes else 0
    stored_bytes = served_model.weights.bytes + (served_model.draft.weights.bytes if served_model.draft else 0)
    weight_bytes = placed.role.data * platform.weight_copies * stored_bytes
    return int(_count_ranks(placed.role) * rank_bytes + weight_bytes + tier_bytes)


def count_concurrent_requests(traffic: Traffic) -> int:
    """Return requests under way at once, all replicas together."""
    return traffic.users or min(OPEN_LOOP_REQUESTS, traffic.max_concurrency or OPEN_LOOP_REQUESTS)


def build_router_service(context: Context, engine_services: Sequence[Service], served_model: ServedModel) -> Service:
    """Return the router before the engines: what its command line decides."""
    router, environment = context.router, context.environment
    mode, values = _select_discovery_mode(context), _build_router_values(context, engine_services)
    rank_routing = router.rank_routing if count_routed_ranks(context) > 1 and router.rank_routing else CommandPart()
    command = engines.fill_arguments((*router.command, *mode.arguments, *rank_routing.arguments), values)
    if command:
        command = (resolve_executable(environment, command[0]), *command[1:])
    return Service(
        name="router",
        role="router",
        is_entry=True,
        command=(
            *_build_image_command(environment, engines.fill_arguments(router.front, values)),
            *_build_image_command(environment, engines.fill_arguments(mode.prefix_command, values)),
            *command,
        ),
        env={
            # Where it reads the keys of teams.
            **(environment.env if context.door and not context.conventions.is_local else {}),
            **engines.fill_env((router.environment, mode.environment), values),
        },
        # Where clients need a key, the probe asks the router itself.
        host=environment.hidden_host if context.door else LOOPBACK,
        port=_select_port(context, "router-admin" if context.door else "router", ROUTER_PORT),
        probe=_build_probe(context, served_model, _compute_router_start_s(engine_services)),
        resources=Resources(memory_bytes=router.base_bytes),
    )


def build_router_container(context: Context, engine_services: Sequence[Service]) -> RouterContainer | None:
    """Build what routes in place of the router's own container; None where that does."""
    beside = context.router.beside
    if beside is None:
        return None
    # It starts beside the engines, whose machines may have to start before.
    start_s = INSTANCE_START_S + _compute_router_start_s(engine_services)
    values = {**_build_router_values(context, engine_services), "start_limit_s": math.ceil(start_s)}
    settings = engines.fill_settings((beside.settings,), values)
    command = engines.fill_arguments(beside.command, values)
    return RouterContainer(
        name=beside.name,
        image=engine_services[0].image,
        command=(*_write_settings(values["settings_file"], settings), *command),
        env={**context.environment.env, **engines.fill_env((beside.environment,), values)},
        port=ROUTER_ADMIN_PORT,
        health=beside.health,
        start_s=start_s,
        cpus=beside.cpus,
        memory_bytes=beside.memory_bytes,
        disk_bytes=beside.disk_bytes,
    )


def _compute_router_start_s(engine_services: Sequence[Service]) -> float:
    """Return longest start of a router that waits for its engines, in seconds."""
    return max(engine.probe.deadline_s for engine in engine_services if engine.probe)


def select_entry_port(context: Context) -> int:
    return _select_port(context, "router", ROUTER_PORT)


def _select_discovery_mode(context: Context) -> engines.DiscoveryMode:
    if not context.router.discovery:
        return engines.DiscoveryMode()
    discovery = context.router.discovery[select_discovery(context)]
    if context.blueprint.is_disaggregated and discovery.disaggregated:
        return discovery.disaggregated
    return (discovery.engine_details if needs_engine_details(context) else None) or discovery.aggregated


def _build_router_values(context: Context, engine_services: Sequence[Service]) -> Values:
    roles = dict.fromkeys(engine.role for engine in engine_services)
    endpoints = {
        role: _list_endpoints(context, [engine for engine in engine_services if engine.role == role]) for role in roles
    }
    split_roles = {name: endpoints[name] for name in (PREFILL, DECODE) if name in endpoints}
    policy = context.router.policies[_select_policy(context, engine_services)].split()
    settings = context.blueprint.roles.router
    return {
        "host": context.conventions.bind_host,
        "port": select_entry_port(context),
        "hidden_host": context.environment.hidden_host,
        "router_port": _select_port(context, "router-admin", ROUTER_ADMIN_PORT),
        "metrics_host": context.environment.member_host,
        "metrics_port": _select_port(context, "router-metrics", METRICS_PORT),
        "policy": policy[0] if len(policy) == 1 else tuple(policy),
        "decode_policy": context.router.policies[_select_decode_policy(context, engine_services)],
        "ranks": count_routed_ranks(context),
        "imbalance": _compute_imbalance(context.blueprint),
        "log_format": () if context.blueprint.logs == "text" else (context.blueprint.logs,),
        "max_requests": (str(settings.max_requests),) if settings.max_requests else (),
        **auth.build_values(context.blueprint.auth, context.door, context.environment),
        "request_timeout_s": compute_request_timeout_s(context.blueprint),
        "settings_file": _locate_settings(context),
        "namespace": _name_namespace(context),
        "engine_port": ENGINE_PORT,
        "discovery_port": DISCOVERY_PORT,
        "nixl_side_channel_port": PORTS["side"],
        "workers": tuple(endpoint for role_endpoints in endpoints.values() for endpoint in role_endpoints),
        **split_roles,
        **{f"{role}_count": len(addresses) for role, addresses in split_roles.items()},
    }


def compute_request_timeout_s(blueprint: Blueprint) -> int:
    """Return longest request, up to its last token, in the router's whole seconds."""
    return math.ceil(blueprint.roles.router.request_timeout)


def _select_policy(context: Context, engine_services: Sequence[Service]) -> RouterPolicy:
    """Return the policy: with one replica at a known address there is no choice, and load-aware needs two."""
    is_single = select_discovery(context) == "addresses" and len(engine_services) == 1
    return "round-robin" if is_single and context.policy == "load-aware" else context.policy


def _select_decode_policy(context: Context, engine_services: Sequence[Service]) -> RouterPolicy:
    """Return the policy of decode, which computes no prompt: a cached prefix saves it nothing."""
    policy = "load-aware" if context.policy == "cache-aware" else context.policy
    decode_count = sum(engine.role == DECODE for engine in engine_services)
    is_single = select_discovery(context) == "addresses" and decode_count < 2
    return "round-robin" if is_single and policy == "load-aware" else policy


def count_routed_ranks(context: Context) -> int:
    """Return data-parallel ranks of each replica between which the router chooses: those whose caches a policy follows.

    The engine chooses by its ranks' queues otherwise. The router takes one number of ranks for all engines: prefill and
    decode need as many. It takes none for several models or accelerators.
    """
    roles = context.blueprint.roles
    if context.policy not in ("cache-aware", "consistent-hash") or roles.workers or roles.models:
        return 1
    rank_counts = {role.data for role in roles.engine_roles.values()}
    return rank_counts.pop() if len(rank_counts) == 1 else 1


def needs_engine_details(context: Context) -> bool:
    """Return whether the router asks an engine for more than its models."""
    return context.policy == "kv-aware" or count_routed_ranks(context) > 1


def select_discovery(context: Context) -> Discovery:
    """Return how the router finds the engines: as the target's conventions say, unless only DNS discovery works."""
    discovery = _select_conventional_discovery(context)
    return discovery if discovery in context.router.discovery else "names"


def _select_conventional_discovery(context: Context) -> Discovery:
    # A router takes no option for the model of an engine, and none for its weight: only its API does.
    has_unlike_engines = bool(context.blueprint.roles.models or context.blueprint.roles.workers)
    # With addresses at its start, it asks the engines once where their caches' events are, when the first answers,
    # and misses those that answer later. Besides, its own image is older than this policy.
    uses_kv_events = context.policy == "kv-aware"
    if has_unlike_engines or uses_kv_events:
        return "names"
    if context.conventions.is_local:
        return "addresses"
    return "labels" if context.conventions.is_kubernetes else "names"


def _build_image_command(environment: Environment, words: Sequence[str]) -> tuple[str, ...]:
    """Return a program of the router's image and its arguments, as it is called here."""
    return (*environment.image_programs.get(words[0], words[:1]), *words[1:]) if words else ()


def _list_endpoints(context: Context, engines_of_role: Sequence[Service]) -> tuple[str, ...]:
    """Return how the router finds the engines of a role: the address or DNS name of each, or the labels of all."""
    conventions, discovery = context.conventions, select_discovery(context)
    if discovery == "labels":
        engine = engines_of_role[0]
        templates = {**SELECTOR_LABELS, **(LEADER_LABELS if engine.nodes > 1 else {})}
        names = {"deployment": _name_release(context), "role": engine.role}
        return tuple(f"{key}={value.format(**names)}" for key, value in templates.items())
    leaders = [engine for engine in engines_of_role if engine.node is None or engine.node.rank == 0]
    weight = context.blueprint.roles.get_weight(engines_of_role[0].role)
    suffix = f"={weight}" if weight > 1 else ""
    if conventions.is_local:
        scheme = "http://" if discovery == "addresses" else ""
        return tuple(f"{scheme}{process.host}:{process.port}{suffix}" for process in leaders)
    return tuple(f"{build_peer_name(context, process.name)}:{ENGINE_PORT}{suffix}" for process in leaders)


def list_event_ports(engine: Engine, policy: RouterPolicy | None) -> tuple[str, ...]:
    """Return names of the ports at which an engine says what its cache holds; none where that goes another way."""
    option = engine.options.get("kv-events") if policy == "kv-aware" else None
    words = " ".join(option.arguments) if option else ""
    return tuple(name for name in ("events", "replay") if f"{{kv_{name}_endpoint}}" in words)


def _build_kv_endpoint(context: Context, process_name: str, port_name: str) -> str:
    """Return where an engine publishes its cache's events, as ZeroMQ writes addresses."""
    port = _select_port(context, f"{process_name}-{port_name}", PORTS[port_name])
    # The loopback address in IPv6's notation: by its colons an engine knows to listen and not to connect.
    host = f"[::ffff:{context.environment.hidden_host}]" if context.conventions.is_local else "*"
    return f"tcp://{host}:{port}"


def _compute_imbalance(blueprint: Blueprint) -> int:
    """Return requests that a replica may have more than another before its queue counts more than a cached prefix."""
    replicas = sum(compute_fixed_replicas(role).min for role in blueprint.roles.replica_roles.values())
    return max(1, count_concurrent_requests(blueprint.traffic) // (2 * replicas))


def _select_port(context: Context, name: str, default: int) -> int:
    """Return the port that the target chose, or the fixed one where each process has its own address."""
    return context.environment.ports.get(name, 0) if context.conventions.is_local else default


def resolve_executable(environment: Environment, name: str) -> str:
    """Return a program of the engine's environment; its name only where an image's PATH has it."""
    return f"{environment.engine_folder}/{name}" if environment.engine_folder else name


def _read_warm_prompt(context: Context, role: EngineRole) -> str:
    """Return the text that every prompt begins with; empty where the blueprint has none."""
    file = context.blueprint.select_model_settings(role).warm_prompt
    return (context.folder / file).read_text(encoding="utf-8") if file else ""


def _build_probe(
    context: Context, served_model: ServedModel, deadline_s: float, health: str = "", warm_prompt: str = ""
) -> Probe:
    """Return a request of the API that the traffic uses: chat may fail where completions succeed."""
    question, pooled = "ready?", tasks.POOLED.get(context.blueprint.task)
    own_fields = context.engine.transfer_probe if context.transfer else {}
    if pooled:
        body = {"model": served_model.name, **pooled.build([question]), **pooled.probe}
        return Probe(path=pooled.path, body=body, health=health, deadline_s=deadline_s)
    is_chat = context.blueprint.traffic.api == "chat"
    system = [{"role": "system", "content": warm_prompt}] if warm_prompt else []
    messages = [*system, {"role": "user", "content": question}]
    body = {"messages": messages} if is_chat else {"prompt": f"{warm_prompt}{question}"}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    body |= {"model": served_model.name, "max_tokens": 1, **own_fields}
    return Probe(path=path, body=body, health=health, deadline_s=deadline_s)
