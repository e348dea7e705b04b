"""Whether this machine has what a deployment needs, said in one line before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import psutil

from llm_serving import processes
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import human_bytes
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.workloads.serving.deployment import Deployment, Process

LOGS_BYTES = 200_000_000
"""Room for logs, Terraform's state and its copies, and the engine's small files."""


AWS_COPIES = 1.3
"""Memory of the embedded AWS for each byte of weights that it takes in; 1.2 were seen with `mid`, moto 5.2.5."""


def check(run: Run, deployment: Deployment, starting: Sequence[Process]) -> None:
    """Checks ports, memory and disk for the processes that are about to start.

    Raises:
        Unavailable: something is missing; says how much, and what would help.
    """
    _ports(starting)
    _memory(deployment, starting)
    _disk(run, deployment)


def _ports(starting: Sequence[Process]) -> None:
    taken = [process for process in starting if not processes.is_free(process.port)]
    if taken:
        said = ", ".join(f"{process.port} of {process.name}" for process in taken)
        raise Unavailable(f"taken by another program: port {said}; end that program, or run `blueprint destroy` first")


def _memory(deployment: Deployment, starting: Sequence[Process]) -> None:
    held = int(AWS_COPIES * _weights(deployment))
    needs = {process.name: process.memory_bytes + (held if process.stateful else 0) for process in starting}
    need, free = sum(needs.values()), psutil.virtual_memory().available
    if need > free:
        parts = ", ".join(f"{name} {human_bytes(bytes_)}" for name, bytes_ in needs.items())
        raise Unavailable(
            f"too little memory: {human_bytes(need)} are needed ({parts}), {human_bytes(free)} are free; "
            "end other programs, or write fewer replicas or a smaller model"
        )


def _weights(deployment: Deployment) -> int:
    return sum(served.weights.bytes for served in deployment.models)


def _disk(run: Run, deployment: Deployment) -> None:
    need = LOGS_BYTES + _weights(deployment)
    there = next(parent for parent in (run.data, *run.data.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if need > free:
        raise Unavailable(
            f"too little disk: {human_bytes(need)} are needed under {there}, {human_bytes(free)} are free; "
            "make room, or work in a folder on another disk"
        )
