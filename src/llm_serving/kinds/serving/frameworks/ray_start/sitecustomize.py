"""Keeps all servers of Ray on 127.0.0.1, gives a slow agent time to start, and an engine one import.

With RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 and 127.0.0.1 as the nodes' address, Ray's own servers and its agents listen
there; but each replica of Serve listens on all addresses (Ray 2.60.0, serve/_private/replica.py), and `ray start` lets
no second node join. Ray's environment runs this, so it imports nothing of this package.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"

WILDCARDS = frozenset({"0.0.0.0", "[::]"})

AGENT_PORTS = {
    "--grpc-port": "metrics_agent_port",
    "--metrics-export-port": "metrics_export_port",
    "--listen-port": "dashboard_agent_listen_port",
    "--runtime-env-agent-port": "runtime_env_agent_port",
}
"""Files that a raylet waits for, at most 15 s, by the argument of the agent that writes them."""


def keep_servers() -> None:
    """Let servers of gRPC in this process listen on HOST where all addresses are asked for."""
    for module, name in (("grpc._server", "_Server"), ("grpc.aio._server", "Server")):
        server = getattr(importlib.import_module(module), name)
        for method in ("add_insecure_port", "add_secure_port"):
            setattr(server, method, keep_port(getattr(server, method)))


def keep_port(add_port: Callable[..., int]) -> Callable[..., int]:
    """Return a server's method that adds a port, with HOST in place of all addresses."""

    def add_loopback_port(self: Any, address: str, *arguments: Any) -> int:
        host, _, port = address.rpartition(":")
        return add_port(self, f"{HOST if host in WILDCARDS else host}:{port}", *arguments)

    return add_loopback_port


def announce_ports(words: Sequence[str]) -> None:
    """Write an agent's ports where its raylet waits for them: the agent does so after imports that may take longer."""
    values = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    for option, name in AGENT_PORTS.items():
        if int(values.get(option, 0)):
            file = Path(values["--session-dir"], f"{name}_{values['--node-id']}")
            partial_file = file.with_name(f"{file.name}.{os.getpid()}")
            partial_file.write_text(values[option])
            partial_file.replace(file)


def adjust_node(parameters: Any, is_head: bool) -> None:
    """Adjust a node that `ray start` is about to start, which calls this as RAY_START_HOOK says.

    Its Unix sockets get short paths, it starts no server for clients of Ray, and it may join a head at HOST.
    """
    prefix = os.environ["BLUEPRINT_RAY_SOCKETS"]
    parameters.plasma_store_socket_name = f"{prefix}.store"
    parameters.raylet_socket_name = f"{prefix}.raylet"
    parameters.ray_client_server_port = None
    if not is_head:
        constants: Any = importlib.import_module("ray._private.ray_constants")
        services: Any = importlib.import_module("ray._private.services")
        constants.ENABLE_RAY_CLUSTER = True
        services.get_node_ip_address = lambda _address=None: HOST


def import_engine() -> None:
    """Import the engine before Ray has threads, so that the engine's process is forked from here (engine_plugins).

    A worker whose raylet ends meanwhile ends too: Ray would have it look for the raylet for minutes.
    """
    raylet = os.getppid()
    gc.disable()  # what is imported stays
    for module in ("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker"):
        importlib.import_module(module)
    importlib.import_module("vllm.plugins").load_general_plugins()
    gc.enable()
    if os.getppid() != raylet:
        os._exit(1)


def main(words: Sequence[str]) -> None:
    """Change this process, which runs `words`, where it is a worker or an agent of Ray."""
    program = next((Path(word).name for word in words if "/ray/" in word and word.endswith(".py")), "")
    if program == "default_worker.py":
        if os.environ.get("BLUEPRINT_RAY_REPLICA") and os.environ.get("BLUEPRINT_LOCAL_SHORTCUTS") != "off":
            import_engine()
        keep_servers()
    elif program in ("agent.py", "main.py"):
        announce_ports(words)


main(sys.orig_argv)
