"""This machine as the place of a deployment: its ports, its cores, and the embedded AWS beside it."""

from __future__ import annotations

import os
import sys

from llm_serving import paths, processes
from llm_serving.fleet import aws_limits
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import engine_env, subreaper
from llm_serving.targets.local.conventions import CONVENTIONS
from llm_serving.targets.local.deployment_dir import DeploymentDir
from llm_serving.workloads.environment import Environment, Process
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.blueprint import Blueprint

ROUTER_DNS_DISCOVERY = paths.IMAGES / "router" / "router_dns_discovery.py"
"""Tells a router of many models which engine serves which, here as on ECS."""

AWS = "aws"
ROUTER = "router"

EMULATOR_BYTES = 300_000_000
"""Memory of the embedded AWS with network and storage applied, besides the weights, which it holds in memory."""


def resolve_environment(
    directory: DeploymentDir, blueprint: Blueprint, fleet: Fleet, *, own_ports: bool, port: int | None = None
) -> Environment:
    """The place of a run, its ports chosen.

    Args:
        own_ports: the run's processes are up and hold the ports that are written down.
        port: where the router is to listen; chosen where left out.

    Raises:
        Unavailable: `port` is taken.
    """
    ports = _choose_ports(directory, [AWS, *resolve.list_port_names(blueprint)], own_ports, port)
    endpoint = f"http://127.0.0.1:{ports[AWS]}"
    emulator_process = Process(
        name=AWS,
        command=tuple(emulator.build_command(ports[AWS])),
        # What is applied here asks for none of AWS's own policies and machine images. What it does not keep in memory
        # goes to the folder for temporary files: the run's own.
        env={**emulator.build_server_env(bare=True), "TMPDIR": str(directory.sockets)},
        port=ports[AWS],
        stateful=True,
        memory_bytes=EMULATOR_BYTES,
    )
    return Environment(
        target="local",
        conventions=CONVENTIONS,
        region=fleet.region,
        # The name that the storage stack gives it in the embedded AWS's account.
        bucket=aws_limits.build_bucket_name(fleet.name, "models", emulator.ACCOUNT, fleet.region),
        s3_endpoint=endpoint,
        env=emulator.build_client_env(endpoint, fleet.region),
        engine_folder=str(engine_env.ROOT / engine_env.FOLDER / "bin"),
        data_folder=str(directory.data),
        socket_folder=str(directory.sockets),
        launcher=(sys.executable, subreaper.__file__),
        router_discovery=(sys.executable, str(ROUTER_DNS_DISCOVERY)),
        module_folder=str(paths.IMAGES / "vllm"),
        services=(emulator_process,),
        ports=ports,
        cores=len(os.sched_getaffinity(0)),
        emulated=(emulator.EMULATION_NOTE,),
    )


def _choose_ports(directory: DeploymentDir, names: list[str], own_ports: bool, port: int | None) -> dict[str, int]:
    """The ports written down, where they are still free; others for the rest."""
    saved_ports = directory.load_ports()
    chosen_ports = {
        name: saved_ports[name]
        for name in names
        if name in saved_ports and (processes.claim(saved_ports[name]) or own_ports)
    }
    if port is not None and chosen_ports.get(ROUTER) != port:
        if not processes.claim(port):
            raise Unavailable(f"port {port} is taken; write another --port, or none to have a free one chosen")
        chosen_ports[ROUTER] = port
    missing_names = [name for name in names if name not in chosen_ports]
    free = processes.claim_free_ports(len(missing_names))
    return {name: chosen_ports.get(name) or free.pop() for name in names}
