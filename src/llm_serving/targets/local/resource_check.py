"""Checks before anything starts that this machine has the ports, memory and disk that a deployment needs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import psutil

from llm_serving import processes
from llm_serving.services.service import Service
from llm_serving.settings.errors import Unavailable
from llm_serving.settings.units import format_bytes
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan

LOGS_BYTES = 200_000_000
"""Disk for logs, Terraform's state and its copies, and the engine's small files."""

EMULATOR_MEMORY_FACTOR = 1.3
"""Bytes of memory that the embedded AWS takes for each byte of weights; measured 1.2 with `mid`, moto 5.2.5."""


def check(plan: DeploymentPlan, starting: Sequence[Service]) -> None:
    """Check ports, memory and disk for the processes that are about to start.

    Raises:
        Unavailable: something is missing; says how much, and how to get it.
    """
    _check_ports(starting)
    weight_bytes = sum(loaded_model.weights.bytes for loaded_model in plan.deployment.loaded_models)
    _check_memory(weight_bytes, starting)
    _check_disk(plan.directory, weight_bytes)


def _check_ports(starting: Sequence[Service]) -> None:
    occupied = [process for process in starting if not processes.is_free(process.port)]
    if occupied:
        ports = ", ".join(f"{process.port} of {process.name}" for process in occupied)
        raise Unavailable(
            f"port {ports} is in use. Fix: stop the program that listens, or run `blueprint destroy` first."
        )


def _check_memory(weight_bytes: int, starting: Sequence[Service]) -> None:
    emulator_copy_bytes = int(EMULATOR_MEMORY_FACTOR * weight_bytes)
    required_by_process = {
        process.name: process.resources.memory_bytes + (emulator_copy_bytes if process.is_stateful else 0)
        for process in starting
    }
    required, available = sum(required_by_process.values()), psutil.virtual_memory().available
    if required > available:
        parts = ", ".join(f"{name} {format_bytes(bytes_)}" for name, bytes_ in required_by_process.items())
        raise Unavailable(
            f"memory: {format_bytes(required)} required ({parts}), {format_bytes(available)} available. "
            "Fix: stop other programs, or set fewer replicas or a smaller model."
        )


def _check_disk(directory: DeploymentDir, weight_bytes: int) -> None:
    required = LOGS_BYTES + weight_bytes
    existing_parent = next(parent for parent in (directory.data, *directory.data.parents) if parent.exists())
    available = shutil.disk_usage(existing_parent).free
    if required > available:
        raise Unavailable(
            f"disk: {format_bytes(required)} required under {existing_parent}, {format_bytes(available)} available. "
            "Fix: free space, or work in a directory on another disk."
        )
