"""Dynamo: its frontend in the router's place, and its workers, which call the engine's own classes.

The frontend reads and writes the OpenAI API, tokenizes, and chooses a worker. Workers have no endpoint for clients, but
a page of health and metrics. On EKS Dynamo's operator runs both as components of a DynamoGraphDeployment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from llm_serving.kinds.serving.context import Context
from llm_serving.kinds.serving.deployment import DECODE, PREFILL
from llm_serving.kinds.serving.frameworks.base import Adapted, check_engine
from llm_serving.kinds.serving.objectives import find_lowest_limit
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import EngineRole, get_max_requests, resolve_scale
from llm_serving.services.service import Probe, Service
from llm_serving.settings.document import Conflict

EVENTS_PROGRAM = Path(__file__).with_name("dynamo_events.py")

HEALTH, ALIVE = "/health", "/live"
"""200 once a worker answers the frontend, and as long as it runs; of the frontend too. Source: Dynamo 1.6.1, called."""

SYSTEM_PORT = 9090
"""Of a worker's health and metrics, where its operator looks for them. Source: DynamoSystemPort of
deploy/operator/internal/consts/consts.go."""

MODE = "--disaggregation-mode"
"""Of every worker; SGLang has the same option of its own."""

POOL_VARIABLE, QUEUE_VARIABLE = "DYN_TCP_WORKER_POOL_SIZE", "DYN_TCP_WORK_QUEUE_SIZE"
"""Requests that a worker has at once, up to their last token, and those that wait before it: a further one asks another
worker. Its own limit, --engine-request-limit, does nothing from 1.6.0 on. Source: its pages on request rejection, and
called: of ten at once with 2 and 1, four were answered, and six refused."""

LOG_VARIABLE = "DYN_LOGGING_JSONL"
"""Makes Dynamo's own lines JSON; vLLM's in its workers stay text, as dynamo/runtime/logging.py sets them."""

STEPS_VARIABLE, STEPS_PORT = "DYN_FORWARDPASS_METRIC_PORT", "20380"
"""Makes a worker publish what each of its engine's steps had to do and how long it took, of which the planner learns.
The port is that of vLLM's first rank, for its own worker, at every address of the pod: the release's pods alone reach
it. Source: Dynamo 1.6.1, dynamo/vllm/instrumented_scheduler.py, sglang/args.py and trtllm/args.py."""

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
"""What the frontend goes without of a model: it reads tokenizer and settings where the worker says that they are."""

FRONTEND_DISK_BYTES = 2**30
"""For a tokenizer, settings and caches."""


def check(context: Context) -> Iterator[Conflict]:
    """Yield what its version of the engine, its frontend, and its workers do not have."""
    yield from check_engine(context)
    router = context.blueprint.roles.router
    if "request_timeout" in router.model_fields_set:
        reason, fix = "Dynamo's frontend has no limit on a request's time", "remove it, or use framework: plain"
        yield Conflict(("roles", "router", "request_timeout"), reason, fix, f"{router.request_timeout:g}s")
    if not context.conventions.is_local:
        yield from _check_graph(context)


def _check_graph(context: Context) -> Iterator[Conflict]:
    """Yield what a DynamoGraphDeployment does not run."""
    if context.transfer == "rdma":
        reason = "its image for EFA, by which prefill hands over to decode, is another one, which was not compared"
        yield context.refuse_framework(reason, "set tuning: {kv_transfer: host}, or use framework: plain")
    for placed in context.placed_roles:
        if template := placed.model_settings.chat_template:
            path = placed.find_model_key_path("chat_template")
            reason = "Dynamo's workers read a template from a file, and their pods have the model's only"
            yield Conflict(path, reason, "remove it, or use framework: plain", template)


def adapt(context: Context, services: Sequence[Service]) -> Adapted:
    """Return Dynamo's workers, and its frontend last."""
    *workers, frontend = services
    adapted = [*(_adapt_worker(context, worker) for worker in workers), _adapt_frontend(context, frontend, workers[0])]
    if context.conventions.is_local:
        return Adapted(adapted, {})
    framework = context.blueprint.framework_row
    types: dict[str, JsonValue] = {worker.role: _select_type(worker) for worker in workers}
    backend = (context.pair.name if context.pair else "") or context.blueprint.engine
    config: dict[str, JsonValue] = {"version": framework.version, "backend": backend, "types": types}
    planners: dict[str, JsonValue] = {
        placed.name: _build_planner(context, placed, backend)
        for placed in context.placed_roles
        if _is_planned(placed.name, placed.role)
    }
    if planners:
        config |= {"planners": planners, "plannerImage": context.pin_image(framework.planner_image)}
    return Adapted(adapted, config)


def _is_planned(name: str, role: EngineRole) -> bool:
    scale = resolve_scale(name, role)
    return bool(scale and scale.planner)


def _build_planner(context: Context, placed: PlacedRole, backend: str) -> dict[str, JsonValue]:
    """Return a role's PlannerConfig, beside the model's name.

    Each role has a planner of its own: one for both would keep the sum of their accelerators, and neither's bound. It
    learns from the running engines' steps and needs no profile. Source: dynamo/planner/config/planner_config.py and
    core/budget.py of 1.6.1.
    """
    slo, gpus = context.blueprint.slo, placed.resources.accelerators or 1
    limits = {"ttft_ms": find_lowest_limit(slo, "ttft_ms"), "itl_ms": find_lowest_limit(slo, "itl_ms")}
    left_out = {PREFILL: "itl_ms", DECODE: "ttft_ms"}.get(placed.name)
    return {
        "environment": "kubernetes",
        "backend": backend,
        "mode": placed.name if placed.name in (PREFILL, DECODE) else "agg",
        "optimization_target": "sla",
        "enable_load_scaling": True,
        "enable_throughput_scaling": False,
        "pre_deployment_sweeping_mode": "none",
        **{field: limit for field, limit in limits.items() if field != left_out},
        "min_endpoint": placed.role.replicas.min,
        "max_gpu_budget": placed.role.replicas.max * gpus,
        # Where the operator has not written it yet.
        f"{PREFILL if placed.name == PREFILL else DECODE}_engine_num_gpu": gpus,
        # Pages that ask for no key.
        "control_api_port": 0,
        "live_dashboard_port": 0,
    }


def _select_type(worker: Service) -> str:
    """Return the type of a worker's component, and where it is not the whole work the mode of its process."""
    return worker.role if worker.role in (PREFILL, DECODE) else "worker"


def _adapt_frontend(context: Context, frontend: Service, worker: Service) -> Service:
    command = frontend.command
    if context.conventions.is_local:
        command = (command[0], str(EVENTS_PROGRAM), *_list_event_addresses(context), *command)
        return frontend.model_copy(
            update={"command": command, "env": {**frontend.env, **_build_environment(context)}},
        )
    update: dict[str, object] = {
        "env": {**context.environment.env, **frontend.env, **_build_environment(context)},
        "ports": {},
        # What the frontend reads of a model, in the folder where the workers have it.
        "prefetch": worker.prefetch
        and worker.prefetch.model_copy(update={"skip": WEIGHT_FILES, "disk_bytes": FRONTEND_DISK_BYTES}),
    }
    if frontend.probe:
        update["probe"] = frontend.probe.model_copy(update={"path": HEALTH, "health": HEALTH, "alive": ALIVE})
    return frontend.model_copy(update=update)


def _adapt_worker(context: Context, worker: Service) -> Service:
    command = worker.command
    if context.transfer and MODE not in command:
        command = (*command, MODE, _select_type(worker))
    update: dict[str, object] = {"command": command}
    env = {**worker.env, **_build_environment(context)}
    if _is_planned(worker.role, context.blueprint.roles.engine_roles[worker.role]) and not context.conventions.is_local:
        env[STEPS_VARIABLE] = STEPS_PORT
    if limit := get_max_requests(context.blueprint.roles.engine_roles[worker.role]):
        env |= {POOL_VARIABLE: str(limit), QUEUE_VARIABLE: "1"}
    if context.conventions.is_local:
        env |= {
            # The frontend chooses among the replicas of one, and pairs prefill and decode.
            "DYN_NAMESPACE": "pair" if context.transfer else worker.role,
            "DYN_SYSTEM_HOST": context.environment.member_host,
            "DYN_SYSTEM_PORT": str(worker.port),
        }
    else:
        # The operator says where they listen and how they are called.
        update["port"] = SYSTEM_PORT
    update["env"] = env
    if worker.probe:
        health = ALIVE if context.conventions.is_local else HEALTH
        update["probe"] = Probe(path=HEALTH, body={}, health=health, alive=ALIVE, deadline_s=worker.probe.deadline_s)
    return worker.model_copy(update=update)


def _build_environment(context: Context) -> dict[str, str]:
    """Return how Dynamo's processes log, and find one another: here by files, and through a loopback address only."""
    env = {LOG_VARIABLE: "1"} if context.blueprint.logs == "json" else {}
    if not context.conventions.is_local:
        return env
    published, subscribed = _list_event_addresses(context)
    return {
        **env,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": f"{context.environment.data_folder}/discovery",
        "DYN_ZMQ_BROKER_URL": f"xsub={published} , xpub={subscribed}",
        **dict.fromkeys(("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"), context.environment.hidden_host),
    }


def _list_event_addresses(context: Context) -> tuple[str, str]:
    """Return where workers publish events on this machine, and where they are read."""
    folder = context.environment.socket_folder
    return f"ipc://{folder}/events-in", f"ipc://{folder}/events-out"
