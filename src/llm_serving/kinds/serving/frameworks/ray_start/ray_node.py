"""Runs a node of Ray on this machine, where no operator does: the head with its application, or a worker.

    python ray_node.py head ADDRESS NODES SERVE ARGUMENTS...
    python ray_node.py worker ADDRESS ARGUMENTS...

ADDRESS is HOST:PORT of the head, NODES the workers that it waits for, SERVE what `serveConfigV2` of a RayService holds
as JSON, ARGUMENTS those of `ray start`. Ray's own environment runs this, so it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import random
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LEAN_PROGRAM = """
import sys

for other in ("ray.serve.scripts", "ray.util.state.state_cli", "ray.dashboard.modules.job.cli"):
    sys.modules[other] = None
from ray.scripts import scripts

scripts.main()
"""
"""Runs `ray` without the commands that it leaves out where their modules do not import: 0.6 CPU-seconds, not 2.0.

Source: Ray 2.60.0, the end of scripts/scripts.py.
"""

START = (sys.executable, "-c", LEAN_PROGRAM, "start", "--block")

FREE_PORTS = ("--dashboard-agent-grpc-port", "--dashboard-agent-listen-port", "--runtime-env-agent-port")
"""Of a node's agents, for itself."""

PORTS = range(12000, 20000)
"""Below the ephemeral ports, since an agent listens many seconds after its port was chosen; apart from the ports that
`processes.py` chooses, which are a deployment's also while a process of it is down."""

CLAIM = "\0llm-serving-blueprints/{}"
"""Name of the abstract sockets by which `processes.py` keeps a port too, until the process that bound it ends."""

POLL_S = 0.2

HEAD = "\0llm-serving-blueprints/ray-head/{}"
"""Name of the abstract socket that a head has, by its port: a connection to it ends with the head, however it ends."""

END_S = 30
"""Longest that a node takes to end before it is killed."""


def main(role: str, address: str, arguments: list[str]) -> int:
    """Run the node until it ends; return its exit code."""
    host, _, port = address.rpartition(":")
    create_token(Path(os.environ["RAY_AUTH_TOKEN_PATH"]))
    own = [f"--node-ip-address={host}", *(f"{option}={free}" for option, free in claim_ports(host).items())]
    if role == "worker":
        return run_worker(host, int(port), [*START, f"--address={address}", *own, *arguments])
    nodes, serve, *arguments = arguments
    forget_node(arguments)
    command = [*START, "--head", f"--port={port}", *own, *arguments]
    with listen_for_workers(int(port)), subprocess.Popen(command) as head:
        wait_listening(host, int(port), head)
        # In a process of its own, which gives its memory back.
        if subprocess.run([sys.executable, __file__, "deploy", address, nodes, serve], check=False).returncode:
            head.terminate()
            head.wait()
            return 1
        return head.wait()


def create_token(file: Path) -> None:
    """Create the secret by which Ray's processes know each other, for this user only, unless it is there."""
    own = file.with_name(f"{file.name}.{os.getpid()}")
    own.touch(mode=0o600)
    own.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        file.hardlink_to(own)
    own.unlink()


def listen_for_workers(port: int) -> socket.socket:
    """Return the socket by which workers learn that this head has ended."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(HEAD.format(port))
    listener.listen(1024)
    return listener


def connect_head(host: str, port: int) -> socket.socket:
    """Return a connection to the socket of a head whose servers listen."""
    while True:
        wait_listening(host, port)
        head = socket.socket(socket.AF_UNIX)
        if head.connect_ex(HEAD.format(port)) == 0:
            return head
        head.close()
        time.sleep(POLL_S)


def run_worker(host: str, port: int, command: Sequence[str]) -> int:
    """Run a node until it ends by itself; a new one for each head, as no node of Ray serves a second one."""
    while True:
        with connect_head(host, port) as head:
            forget_node()
            with subprocess.Popen(command) as node:
                while not select.select([head], [], [], POLL_S)[0]:
                    if node.poll() is not None:
                        return node.returncode or 1
                print("the head has ended: this node ends too, and starts again with the next head", flush=True)
                node.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.wait(END_S)
                node.kill()


def forget_node(head_arguments: Sequence[str] = ()) -> None:
    """Remove what a node that was killed has left: its sockets, and a head's mark, for which Ray starts no other."""
    sockets = os.environ["BLUEPRINT_RAY_SOCKETS"]
    folders = [word.partition("=")[2] for word in head_arguments if word.startswith("--temp-dir=")]
    for file in (f"{sockets}.store", f"{sockets}.raylet", *(f"{folder}/ray_current_cluster" for folder in folders)):
        Path(file).unlink(missing_ok=True)


claims: list[socket.socket] = []


def claim_ports(host: str) -> dict[str, int]:
    """Claim free ports for a node's agents until this process ends, whose raylet must know them before they listen."""
    free = filter(functools.partial(claim, host), random.sample(PORTS, len(PORTS)))
    return dict(zip(FREE_PORTS, free, strict=False))


def claim(host: str, port: int) -> bool:
    """Claim a port; return False if it is claimed or in use."""
    name = socket.socket(socket.AF_UNIX)
    with socket.socket() as listener:
        try:
            name.bind(CLAIM.format(port))
            listener.bind((host, port))
        except OSError:
            name.close()
            return False
    claims.append(name)
    return True


def wait_listening(host: str, port: int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until the head listens, however long that takes: who started this has a limit.

    Raises:
        SystemExit: `process`, which should listen, has ended.
    """
    while not is_listening(host, port):
        if process and process.poll() is not None:
            sys.exit(process.returncode or 1)
        time.sleep(POLL_S)


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((host, port)) == 0


def deploy(address: str, nodes: int, config: Any) -> None:
    """Start the applications once all workers are there, which have copied their weights; wait until they answer."""
    gc.disable()  # what is imported stays
    ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
    ray.init(address=address, _node_ip_address=address.rpartition(":")[0], log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) <= nodes:
        time.sleep(POLL_S)
    serve.start(proxy_location=config["proxy_location"], http_options=config["http_options"])
    for application in config["applications"]:
        module, _, name = application["import_path"].partition(":")
        build = getattr(importlib.import_module(module), name)
        serve.run(build(application["args"]), name=application["name"], route_prefix=application["route_prefix"])


if __name__ == "__main__":
    if sys.argv[1] == "deploy":
        deploy(sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
