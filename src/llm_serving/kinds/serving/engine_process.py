"""Command line and environment of an engine: rows of the catalog with the deployment's numbers filled in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llm_serving.catalog import command_parts, engine_options, engines, registry
from llm_serving.catalog.command_parts import CommandPart, Values
from llm_serving.catalog.instances import Instance
from llm_serving.engines import base
from llm_serving.engines.memory import CpuLoad
from llm_serving.kinds.serving import options
from llm_serving.kinds.serving.context import ENGINE_PORT, PORTS, Context, resolve_executable
from llm_serving.kinds.serving.options import Node
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import EngineRole, compute_fixed_replicas
from llm_serving.services import tasks
from llm_serving.services.environment import Environment
from llm_serving.services.models import ServedModel, Weights
from llm_serving.services.service import Probe, Resources, Service
from llm_serving.services.traffic import Traffic

GROUP_RANK, GROUP_LEADER = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"
"""Variables that a LeaderWorkerSet gives its pods: Kubernetes fills them in."""

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
    context: Context, placed: PlacedRole, served_model: ServedModel, image: str, replica: int, rank: int
) -> Service:
    """Return the engine on one node of a replica: what its command line decides."""
    environment, role = context.environment, placed.role
    process_name = _build_process_name(context, placed.name, placed.nodes, replica, rank)
    node = context.describe_node(placed, rank)
    parts = list_command_parts(context, node)
    tuning, tier_key = context.blueprint.tuning, _build_tier_key(context, placed, served_model, image)
    values = {
        **_build_shared_values(context, node, served_model),
        **_build_process_values(context, process_name, placed.name, replica, rank),
        **_build_cache_values(context, tier_key),
    }
    settings = command_parts.fill_settings((context.engine.settings, *(part.settings for part in parts)), values)
    words = _fill_words(context, role, parts, values, has_file=bool(settings))
    if tuning.keeper and tuning.keeper.names_lack_command:
        values["pool_key"] = _build_tier_key(context, placed, served_model, image, words)
        words = _fill_words(context, role, parts, values, has_file=bool(settings))
    folder_bytes = {folder: tuning.folder_bytes[tier] for tier, folder in _locate_tiers(context, tier_key).items()}
    cache_server = command_parts.fill_arguments((word for part in parts for word in part.beside), values)
    address_variables = tuple(dict.fromkeys(variable for part in parts for variable in part.address_variables))
    own_addresses = dict.fromkeys(address_variables, environment.hidden_host) if context.conventions.is_local else {}
    start_limit_s = _compute_start_limit_s(node.platform, served_model)
    health, warm_prompt = context.engine.health, _read_warm_prompt(context, role)
    return Service(
        name=process_name,
        role=placed.name,
        command=(
            *_fetch_weights(context, placed, served_model),
            *_keep_cache(environment, folder_bytes, cache_server),
            *write_settings(values["settings_file"], settings),
            resolve_executable(environment, words[0]),
            *words[1:],
        ),
        env={
            **environment.env,
            **command_parts.fill_env((context.engine.environment, *(part.environment for part in parts)), values),
            **context.blueprint.merge_environment(role),
            **own_addresses,
        },
        host=environment.hidden_host,
        port=context.select_port(process_name, ENGINE_PORT),
        probe=build_probe(context, served_model, start_limit_s, health, warm_prompt) if not rank else None,
        address_variables=address_variables if not own_addresses else (),
        resources=Resources(memory_bytes=_compute_memory_bytes(context, placed, served_model)),
    )


def _fill_words(
    context: Context, role: EngineRole, parts: Sequence[CommandPart], values: Values, *, has_file: bool
) -> tuple[str, ...]:
    """Return the engine's command line, with its own options of the role; `checks` has refused what is no option.

    Args:
        has_file: whether it has a file of settings, which an argument names.
    """
    templates = [*context.engine.command, *(text for part in parts for text in part.arguments)]
    templates += context.engine.settings_arguments if has_file else ()
    words = list(command_parts.fill_arguments(templates, values))
    recorded_options = engine_options.get_options(context.blueprint.engine)
    # A framework's own program spells every option with dashes.
    update = {"word": ""} if context.pair and context.pair.command else {}
    for name, value in context.blueprint.merge_arguments(role).items():
        words += recorded_options[name].model_copy(update=update).format_words(name, value)
    return tuple(words)


def _build_cache_values(context: Context, tier_key: str) -> Values:
    tiers, keeper = _locate_tiers(context, tier_key), context.blueprint.tuning.keeper
    return {
        **{f"{tier}_tier": folder for tier, folder in tiers.items()},
        "cache_tiers": tuple(json.dumps(tier) for tier in _list_lmcache_tiers(context, tiers)),
        "pool_key": "",
        "pool_master": f"{context.name}-{keeper.master}:{keeper.master_port}" if keeper else "",
        "tier_key": tier_key,
    }


def _fetch_weights(context: Context, placed: PlacedRole, served_model: ServedModel) -> tuple[str, ...]:
    """Return what copies weights from S3 and becomes the engine, on a target without containers."""
    fetches = _list_copied_weights(context, placed, served_model) if context.conventions.is_local else {}
    copies = (word for folder, uri in fetches.items() for word in (f"{context.prefetch_folder}/{folder}", uri))
    return (*context.environment.fetcher, *copies, "--") if fetches else ()


def _locate_tiers(context: Context, key: str) -> dict[str, str]:
    """Return an engine's folders of cached prompts, by tier, each in that of the whole deployment.

    That one is a mount of a container, or a folder here.
    """
    local_folder = f"{context.environment.data_folder}/kv"
    return {
        tier: f"{local_folder}/{tier}/{key}" if context.conventions.is_local else f"{options.TIER_FOLDERS[tier]}/{key}"
        for tier in context.blueprint.tuning.folder_bytes
    }


def _list_lmcache_tiers(context: Context, folders: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the settings of LMCache's tiers below memory; S3 takes the credentials of its container."""
    for folder in folders.values():
        yield {"type": "fs_native", "base_path": folder}
    tiers, region = context.blueprint.tuning.kv_tiers, context.environment.region
    if tiers and tiers.s3:
        host = f"{tiers.s3.bucket}.s3.{region}.{registry.find_domain(region)}"
        yield {"type": "s3", "s3_endpoint": host, "s3_region": region}


def _build_tier_key(
    context: Context, placed: PlacedRole, served_model: ServedModel, image: str, words: Sequence[str] = ()
) -> str:
    """Return what names of prompts begin with that may be of use to one another.

    Engines' own names hold neither what computes a cache nor in which order its numbers lie: GPUs of another kind and
    other arguments have other kernels.

    Args:
        words: the whole command line, where names do not even hold how the model is split.
    """
    settings, accelerators = context.blueprint, placed.instance.accelerators
    tuning = settings.tuning
    # An engine knows an adapter by its name and the folder that it was copied to.
    adapters = dict(served_model.adapters)
    own = [settings.merge_arguments(placed.role), settings.merge_environment(placed.role), adapters]
    parts = (
        image,
        served_model.weights.uri,
        accelerators.name if accelerators else "",
        tuning.quantization or "",
        tuning.kv_cache,
        json.dumps(own, sort_keys=True, default=str),
        *words,
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _keep_cache(environment: Environment, folder_bytes: Mapping[str, int], server: Sequence[str]) -> tuple[str, ...]:
    """Return what starts the engine where it keeps folders of files, or has a server beside it.

    Args:
        folder_bytes: the engine's folders, and the largest size of the one around each.
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


def write_settings(file: object, settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return what writes an engine's file of settings and becomes the engine; nothing where it has none."""
    program = "import os, sys; open(sys.argv[1], 'w').write(sys.argv[2]); os.execvp(sys.argv[3], sys.argv[3:])"
    return ("python3", "-c", program, str(file), json.dumps(settings)) if settings else ()


def _compute_start_limit_s(platform: engines.Platform, served_model: ServedModel) -> float:
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
        compute_fixed_replicas(engine_role).min * engine_role.tensor * engine_role.data
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
        "settings_file": context.settings_file,
        **options.build_values(node),
    }


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
        "port": context.select_port(process_name, ENGINE_PORT),
        "hidden_host": environment.hidden_host,
        "cache_port": context.select_port(f"{process_name}-cache", PORTS["cache"]),
        "nixl_side_channel_port": context.select_port(f"{process_name}-side", PORTS["side"]),
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
        "leader_address": GROUP_LEADER if conventions.is_kubernetes else context.build_peer_name(f"{role}-{replica}-0"),
    }


def locate_modules(context: Context) -> str:
    """Return the folder of the modules in images/ that the engine loads."""
    return context.environment.module_folder or context.engine.module_folder


def _locate_weights(context: Context, placed: PlacedRole, weights: Weights, folder: str) -> str:
    return weights.uri if context.streams(placed) else f"{context.prefetch_folder}/{folder}"


def _locate_chat_template(context: Context, node: Node) -> str:
    """Return the user's template or the catalog's, as the engine takes it; empty where the model's own is used.

    In a container the user's template is the argument itself: engines take either. Kubernetes takes $$ there for $, and
    $(NAME) for a variable's value.
    """
    if node.written_template is None:
        return node.catalog_template
    file = context.folder / node.written_template
    if context.conventions.is_local:
        return str(file.resolve())
    text = file.read_text(encoding="utf-8")
    return text.replace("$", "$$") if context.conventions.is_kubernetes else text


def _list_adapter_paths(context: Context, served_model: ServedModel) -> Mapping[str, str]:
    if context.conventions.is_local:
        return served_model.adapters
    return {name: f"{context.prefetch_folder}/{_build_adapter_folder(name)}" for name in served_model.adapters}


def _build_adapter_folder(adapter: str) -> str:
    return f"adapter-{adapter}"


def list_prefetch_uris(context: Context, placed: PlacedRole, served_model: ServedModel) -> dict[str, str]:
    """Return what of S3 is copied to the node before the engine starts, by its folder there."""
    if context.conventions.is_local:
        return {}
    weights = _list_copied_weights(context, placed, served_model)
    return weights | {_build_adapter_folder(name): uri for name, uri in served_model.adapters.items()}


def _list_copied_weights(context: Context, placed: PlacedRole, served_model: ServedModel) -> dict[str, str]:
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
        settings.tuning.find_draft(placed.model),
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
    return int(placed.role.tensor * placed.role.data * rank_bytes + weight_bytes + tier_bytes)


def count_concurrent_requests(traffic: Traffic) -> int:
    """Return requests under way at once, all replicas together."""
    return traffic.users or min(OPEN_LOOP_REQUESTS, traffic.max_concurrency or OPEN_LOOP_REQUESTS)


def _build_kv_endpoint(context: Context, process_name: str, port_name: str) -> str:
    """Return where an engine publishes its cache's events, as ZeroMQ writes addresses."""
    port = context.select_port(f"{process_name}-{port_name}", PORTS[port_name])
    # The loopback address in IPv6's notation: by its colons an engine knows to listen and not to connect.
    host = f"[::ffff:{context.environment.hidden_host}]" if context.conventions.is_local else "*"
    return f"tcp://{host}:{port}"


def _read_warm_prompt(context: Context, role: EngineRole) -> str:
    file = context.blueprint.select_model_settings(role).warm_prompt
    return (context.folder / file).read_text(encoding="utf-8") if file else ""


def build_probe(
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
