"""This machine as the place of a deployment: its ports, its cores, and the embedded AWS beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from blueprints import resolve
from blueprints.blueprint import Blueprint
from blueprints.deployment import Place, Process
from infra.constructs import limits
from infra.errors import Unavailable
from infra.fleet import Fleet
from scripts import processes
from scripts.local import engine_env, keep
from scripts.local.run import Run
from scripts.rehearsal import embedded_aws

IMAGES = Path(__file__).resolve().parents[2] / "images"

FOLLOW = IMAGES / "router" / "follow.py"
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
        command=tuple(embedded_aws.command(ports[AWS])),
        # What is applied here asks for none of AWS's own policies and machine images. What it does not keep in memory
        # goes to the folder for temporary files: the run's own.
        environment={**embedded_aws.environment(bare=True), "TMPDIR": str(run.sockets)},
        port=ports[AWS],
        stateful=True,
        memory_bytes=AWS_BYTES,
    )
    return Place(
        target="local",
        region=fleet.region,
        # The name that the storage stack gives it in the embedded AWS's account.
        bucket=limits.bucket_name(fleet.name, "models", embedded_aws.ACCOUNT, fleet.region),
        s3_endpoint=endpoint,
        environment=embedded_aws.client_environment(endpoint, fleet.region),
        engine=str(engine_env.ROOT / engine_env.FOLDER / "bin"),
        data=str(run.data),
        sockets=str(run.sockets),
        launcher=(sys.executable, keep.__file__),
        follow=(sys.executable, str(FOLLOW)),
        modules=str(IMAGES / "vllm"),
        services=(aws,),
        ports=ports,
        cores=len(os.sched_getaffinity(0)),
        emulated=(embedded_aws.EMULATED,),
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
