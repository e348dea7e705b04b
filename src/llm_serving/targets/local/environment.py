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
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.workloads.serving import resolve
from llm_serving.workloads.serving.blueprint import Blueprint
from llm_serving.workloads.serving.deployment import Place, Process

FOLLOW = paths.IMAGES / "router" / "router_dns_discovery.py"
"""Tells a router of many models which engine serves which, here as on ECS."""

AWS = "aws"
ROUTER = "router"

AWS_BYTES = 300_000_000
"""Memory of the embedded AWS with network and storage applied, besides the weights, which it holds in memory."""


def find(run: Run, blueprint: Blueprint, fleet: Fleet, *, own_ports: bool, port: int | None = None) -> Place:
    """The place of a run, its ports chosen.

    Args:
        own_ports: the run's processes are up and hold the ports that are written down.
        port: where the router is to listen; chosen where left out.

    Raises:
        Unavailable: `port` is taken.
    """
    ports = _ports(run, [AWS, *resolve.ports(blueprint)], own_ports, port)
    endpoint = f"http://127.0.0.1:{ports[AWS]}"
    aws = Process(
        name=AWS,
        command=tuple(emulator.command(ports[AWS])),
        # What is applied here asks for none of AWS's own policies and machine images. What it does not keep in memory
        # goes to the folder for temporary files: the run's own.
        environment={**emulator.environment(bare=True), "TMPDIR": str(run.sockets)},
        port=ports[AWS],
        stateful=True,
        memory_bytes=AWS_BYTES,
    )
    return Place(
        target="local",
        region=fleet.region,
        # The name that the storage stack gives it in the embedded AWS's account.
        bucket=aws_limits.bucket_name(fleet.name, "models", emulator.ACCOUNT, fleet.region),
        s3_endpoint=endpoint,
        environment=emulator.client_environment(endpoint, fleet.region),
        engine=str(engine_env.ROOT / engine_env.FOLDER / "bin"),
        data=str(run.data),
        sockets=str(run.sockets),
        launcher=(sys.executable, subreaper.__file__),
        follow=(sys.executable, str(FOLLOW)),
        modules=str(paths.IMAGES / "vllm"),
        services=(aws,),
        ports=ports,
        cores=len(os.sched_getaffinity(0)),
        emulated=(emulator.EMULATED,),
    )


def _ports(run: Run, names: list[str], own_ports: bool, port: int | None) -> dict[str, int]:
    """The ports written down, where they are still free; others for the rest."""
    written = run.ports()
    kept = {name: written[name] for name in names if name in written and (processes.claim(written[name]) or own_ports)}
    if port is not None and kept.get(ROUTER) != port:
        if not processes.claim(port):
            raise Unavailable(f"port {port} is taken; write another --port, or none to have a free one chosen")
        kept[ROUTER] = port
    missing = [name for name in names if name not in kept]
    free = processes.free_ports(len(missing))
    return {name: kept.get(name) or free.pop() for name in names}
