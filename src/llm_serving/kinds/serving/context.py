"""A blueprint where it runs: what is checked, and what the command lines of all roles are built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_serving.catalog import engines, frameworks, images, routers
from llm_serving.catalog.engines import Engine
from llm_serving.catalog.models import Model
from llm_serving.fleet import image_cache
from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import auth
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.options import Node
from llm_serving.kinds.serving.placed_role import PlacedRole
from llm_serving.kinds.serving.roles import RouterPolicy, compute_fixed_replicas, get_shared
from llm_serving.services import deployments
from llm_serving.services.blueprint import resolve_name
from llm_serving.services.deployment import Door
from llm_serving.services.environment import Conventions, Environment, format_peer_name
from llm_serving.settings.document import Conflict, Document

ENGINE_PORT, ROUTER_PORT = deployments.WORKER_PORT, deployments.ENTRY_PORT
ROUTER_ADMIN_PORT, METRICS_PORT, DISCOVERY_PORT = 8081, 9090, 9091
"""Ports of a container that has its own address."""

RELEASE, NAMESPACE = "$(RELEASE)", "$(NAMESPACE)"
"""Variables that charts/inference gives its pods, so that the values serve any release in any namespace."""

PORTS = {"side": 5600, "events": 5557, "replay": 5558, "master": 29500, "data": 13345, "cache": 5655}
"""Further ports of an engine's container: KV transfers and events, ranks of a replica, the server of cached prompts."""


@dataclass(frozen=True)
class Context:
    """A blueprint whose roles have their nodes, in the environment of its target."""

    document: Document[Blueprint]
    fleet: Fleet
    environment: Environment
    placed_roles: Sequence[PlacedRole]
    policy: RouterPolicy

    @property
    def blueprint(self) -> Blueprint:
        return self.document.value

    @property
    def name(self) -> str:
        """The deployment's."""
        return resolve_name(self.document)

    @property
    def folder(self) -> Path:
        """The blueprint's."""
        return self.document.path.parent

    @property
    def replicated(self) -> list[PlacedRole]:
        """The roles that have replicas of their own."""
        return [placed for placed in self.placed_roles if not get_shared(placed.role)]

    @property
    def models(self) -> list[Model]:
        return [placed.model for placed in self.placed_roles]

    @property
    def transfer(self) -> str:
        """Which of the engine's transfers hands caches on; empty where none do."""
        if not self.blueprint.is_disaggregated:
            return ""
        if self.conventions.is_local:
            return "loopback"
        has_rdma = all(placed.rdma for placed in self.placed_roles) and "rdma" in self.engine.transfers
        return "rdma" if has_rdma and self.blueprint.tuning.kv_transfer != "host" else "host"

    @property
    def copies_cache(self) -> bool:
        """Whether the transfer of KV caches keeps a copy of them in the nodes' memory."""
        # On CPU the cache lies there itself: vLLM 0.32.0, kv_connector/v1/nixl/base_worker.py, use_host_buffer.
        has_accelerators = any(placed.instance.accelerators for placed in self.placed_roles)
        transfer = self.engine.transfers.get(self.transfer)
        return has_accelerators and self.transfer == "host" and transfer is not None and transfer.copies_cache

    def refuse_framework(self, reason: str, fix: str) -> Conflict:
        return Conflict(("framework",), reason, fix, self.blueprint.framework)

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
    def pair(self) -> frameworks.FrameworkEngine | None:
        """What the framework says of the engine; None where it runs all as their own rows say."""
        return self.blueprint.framework_row.engines.get(self.blueprint.engine)

    @property
    def door(self) -> Door | None:
        """Where the keys of teams are, and where their use is read; None where everybody may call."""
        if self.blueprint.auth is None:
            return None
        environment, keys = self.environment, self.blueprint.auth.keys
        if self.conventions.is_local:
            address = f"{environment.hidden_host}:{environment.ports.get(auth.USAGE_PORT, 0)}"
            return Door(keys=str(self.folder.absolute() / (keys.file or "")), usage_address=address)
        address = f"{format_peer_name(self.name, 'router', environment.namespace)}:{deployments.USAGE_PORT}"
        return Door(keys=f"secret:{keys.secret}", usage_address=address)

    @property
    def router(self) -> routers.Router:
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
        return Node(placed, self.select_platform(placed), self.conventions, rank)

    def streams(self, placed: PlacedRole) -> bool:
        """Return whether the engine streams its weights from S3."""
        can_stream = self.engine.streaming is not None and self.select_platform(placed).streams
        return self.blueprint.tuning.stream_weights and can_stream

    @property
    def release(self) -> str:
        """What the services' names begin with, as their own command lines write it."""
        return RELEASE if self.conventions.is_kubernetes else self.name

    @property
    def namespace(self) -> str:
        """Namespace of the deployment, as its own command lines write it."""
        return NAMESPACE if self.conventions.is_kubernetes else self.environment.namespace

    @property
    def settings_file(self) -> str:
        """The file of settings that a command writes before its program starts."""
        return f"{self.environment.socket_folder}/settings.json"

    def build_peer_name(self, service: str) -> str:
        """Return the DNS name by which the deployment's processes find a service of it."""
        return format_peer_name(self.release, service, self.namespace)

    def select_port(self, name: str, default: int) -> int:
        """Return the port that the target chose, or the fixed one where each process has its own address."""
        return self.environment.ports.get(name, 0) if self.conventions.is_local else default


def get_router(blueprint: Blueprint) -> routers.Router:
    """Return the row of the blueprint's router, which its engine and its framework decide together."""
    return frameworks.get_router(blueprint.engine, blueprint.framework, is_disaggregated=blueprint.is_disaggregated)


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


def list_event_ports(engine: Engine, policy: RouterPolicy | None) -> tuple[str, ...]:
    """Return names of the ports at which an engine says what its cache holds; none where that goes another way."""
    option = engine.options.get("kv-events") if policy == "kv-aware" else None
    words = " ".join(option.arguments) if option else ""
    return tuple(name for name in ("events", "replay") if f"{{kv_{name}_endpoint}}" in words)


def resolve_executable(environment: Environment, name: str) -> str:
    """Return a program of the engine's environment; its name only where an image's PATH has it."""
    return f"{environment.engine_folder}/{name}" if environment.engine_folder else name
