"""Dynamo: its frontend in the router's place, and its workers, which call the engine's own classes.

The frontend reads and writes the OpenAI API, tokenizes, and chooses a worker. Workers have no endpoint for clients, but
a page of health and metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from llm_serving.catalog import engine_options
from llm_serving.kinds.serving import processes
from llm_serving.kinds.serving.frameworks.base import Adapted, check_engine, check_warm_prompts, split_command
from llm_serving.kinds.serving.placement import PlacedRole
from llm_serving.kinds.serving.processes import Context
from llm_serving.services.service import Probe, Service
from llm_serving.settings.document import Conflict

SERVER_OPTIONS = frozenset(
    {"host", "port", "disable_access_log_for_endpoints", "shutdown_timeout", "enable_auto_tool_choice"}
)
"""Options of the engine's own server, in whose place the frontend is."""

RENAMED_OPTIONS = {
    "tool_call_parser": "--dyn-tool-call-parser",
    "reasoning_parser": "--dyn-reasoning-parser",
    "chat_template": "--custom-jinja-template",
}
"""Options of the engine that Dynamo has by another name. Source: Dynamo 1.6.1, dynamo/common/configuration/groups."""

EVENTS_PROGRAM = Path(__file__).with_name("dynamo_events.py")

WORKER_HEALTH = "/health"
"""Of a worker: 200 once it answers the frontend. Source: Dynamo 1.6.1, called."""


def check(context: Context, placed_roles: Sequence[PlacedRole]) -> Iterator[Conflict]:
    """Yield what its version of the engine, its frontend, and its workers do not have."""
    yield from check_engine(context, placed_roles)
    router = context.blueprint.roles.router
    if "request_timeout" in router.model_fields_set:
        reason, fix = "Dynamo's frontend has no limit on a request's time", "remove it, or use framework: plain"
        yield Conflict(("roles", "router", "request_timeout"), reason, fix, f"{router.request_timeout:g}s")
    yield from check_warm_prompts(context, placed_roles, "Dynamo's workers take no requests but those of its frontend")


def adapt(context: Context, placed_roles: Sequence[PlacedRole], services: Sequence[Service]) -> Adapted:  # noqa: ARG001
    """Return Dynamo's workers, and its frontend last."""
    *workers, frontend = services
    return Adapted([*(_adapt_worker(context, worker) for worker in workers), _adapt_frontend(context, frontend)], {})


def _adapt_frontend(context: Context, frontend: Service) -> Service:
    command = frontend.command
    if context.conventions.is_local:
        command = (command[0], str(EVENTS_PROGRAM), *_list_event_addresses(context), *command)
    return frontend.model_copy(update={"command": command, "env": {**frontend.env, **_build_environment(context)}})


def _adapt_worker(context: Context, worker: Service) -> Service:
    prefix, words = split_command(worker)
    recorded = engine_options.get_options(context.blueprint.engine)
    options: Mapping[str, JsonValue] = engine_options.parse_command(context.blueprint.engine, words)
    command = [processes.resolve_executable(context.environment, "python3"), "-m", "dynamo.vllm", "--model", words[2]]
    for name, value in options.items():
        if name in RENAMED_OPTIONS:
            command += [RENAMED_OPTIONS[name], str(value)]
        elif name not in SERVER_OPTIONS:
            command += recorded[name].format_words(name, value)
    update: dict[str, object] = {
        "command": (*prefix, *command),
        "env": {
            **worker.env,
            **_build_environment(context),
            "DYN_NAMESPACE": worker.role,  # the frontend chooses among the replicas of one
            "DYN_SYSTEM_HOST": context.environment.member_host,
            "DYN_SYSTEM_PORT": str(worker.port),
        },
    }
    if worker.probe:
        update["probe"] = Probe(path=WORKER_HEALTH, body={}, health="/live", deadline_s=worker.probe.deadline_s)
    return worker.model_copy(update=update)


def _build_environment(context: Context) -> dict[str, str]:
    """Return how Dynamo's processes find one another: here by files, and through a loopback address alone."""
    if not context.conventions.is_local:
        return {}
    published, subscribed = _list_event_addresses(context)
    return {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": f"{context.environment.data_folder}/discovery",
        "DYN_ZMQ_BROKER_URL": f"xsub={published} , xpub={subscribed}",
        **dict.fromkeys(("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"), context.environment.hidden_host),
    }


def _list_event_addresses(context: Context) -> tuple[str, str]:
    """Return where workers publish events on this machine, and where they are read."""
    folder = context.environment.socket_folder
    return f"ipc://{folder}/events-in", f"ipc://{folder}/events-out"
