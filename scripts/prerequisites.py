#!/usr/bin/env python3
"""Checks the prerequisites of install.sh, one line each, with the fix for what is missing.

It runs before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

GIB = 2**30
MEMORY_GIB = 9  # two replicas of 3.1 GiB each, the embedded AWS, Terraform with its provider
DISK_GIB = 9  # the engine's environment is 5.4 GiB, its packages in uv's cache linked to it; data and logs beside
TERRAFORM = (1, 10)  # the first with S3 state locked by a file; mock providers came with 1.7


class PrerequisiteResult(NamedTuple):
    """One prerequisite: whether it is met, the details, and how to get it."""

    item: str
    ok: bool
    detail: str
    remedy: str


def check_python() -> PrerequisiteResult:
    """Check for Python 3.11 or later with its venv module."""
    has_venv = importlib.util.find_spec("ensurepip") is not None or shutil.which("uv") is not None
    detail = platform.python_version() + ("" if has_venv else " without venv")
    remedy = "install Python 3.11 or later with its venv module: apt-get install python3 python3-venv"
    return PrerequisiteResult("Python", sys.version_info >= (3, 11) and has_venv, detail, remedy)


def check_terraform() -> PrerequisiteResult:
    """Check for Terraform, or OpenTofu instead."""
    remedy = "install Terraform 1.10 or later (developer.hashicorp.com/terraform/install) or OpenTofu (opentofu.org)"
    names = [os.environ["TERRAFORM_BINARY_NAME"]] if os.environ.get("TERRAFORM_BINARY_NAME") else ["terraform", "tofu"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        return PrerequisiteResult("Terraform", False, " or ".join(names) + " not found on PATH", remedy)
    try:
        output = subprocess.run([path, "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return PrerequisiteResult("Terraform", False, f"{path} does not run: {error}", remedy)
    version = re.search(r"v(\d+)\.(\d+)\.\d+\S*", output)
    ok = version is not None and (int(version[1]), int(version[2])) >= TERRAFORM
    return PrerequisiteResult("Terraform", ok, f"{version[0] if version else 'no version'} at {path}", remedy)


def check_processor() -> PrerequisiteResult:
    """Check for a processor that the engine's CPU build supports."""
    detail = f"{platform.system()} on {platform.machine()}"
    remedy = "use a Linux machine on x86-64 with AVX2; `--target eks` and `--target ecs` need none"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return PrerequisiteResult("Processor", False, detail, remedy)
    flags = Path("/proc/cpuinfo").read_text()
    instruction_set = next((name for name in ("avx512f", "avx2") if re.search(rf"\b{name}\b", flags)), None)
    cores = len(os.sched_getaffinity(0))
    return PrerequisiteResult(
        "Processor",
        instruction_set is not None,
        f"{detail}, {cores} cores, {instruction_set or 'without AVX2'}",
        remedy,
    )


def check_libnuma() -> PrerequisiteResult:
    """Check for libnuma, which the engine's CPU build links."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return PrerequisiteResult(
            "libnuma", False, "libnuma.so.1 not found", "apt-get install libnuma1, or dnf install numactl-libs"
        )
    return PrerequisiteResult("libnuma", True, "libnuma.so.1", "")


def check_memory() -> PrerequisiteResult:
    meminfo = Path("/proc/meminfo")
    available_kb = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    free_gib = int(available_kb[1]) * 1024 / GIB if available_kb else 0.0
    return PrerequisiteResult(
        "Memory",
        free_gib >= MEMORY_GIB,
        f"{free_gib:.1f} GiB available",
        f"close programs until {MEMORY_GIB} GiB are available",
    )


def check_disk(folder: Path) -> PrerequisiteResult:
    """Check the free disk space for the environments; less is needed once they are installed."""
    needed_gib = 1 if (folder / ".venv-engine").is_dir() else DISK_GIB
    free_gib = shutil.disk_usage(folder).free / GIB
    return PrerequisiteResult(
        "Disk", free_gib >= needed_gib, f"{free_gib:.1f} GiB free", f"free {needed_gib} GiB under {folder}"
    )


def run_checks(folder: Path, *, engine: bool = True) -> Iterator[PrerequisiteResult]:
    """Run all checks, the cheap ones first.

    Args:
        engine: whether this machine serves the model; serving on AWS needs little of it.
    """
    local_checks: tuple[Callable[[], PrerequisiteResult], ...] = (
        (check_processor, check_libnuma, check_memory, lambda: check_disk(folder)) if engine else ()
    )
    for check in (check_python, *local_checks, check_terraform):
        yield check()


def needs_engine(arguments: list[str]) -> bool:
    """Return whether install.sh with these arguments serves on this machine."""
    words = [part for word in arguments for part in word.split("=", 1)]
    target = words[words.index("--target") + 1 :][:1] if "--target" in words else []
    return "--destroy" not in words and target in ([], ["local"])


def main() -> int:
    """Print a line for each prerequisite; return 3 if one is not met."""
    all_ok = True
    for name, ok, detail, remedy in run_checks(Path.cwd(), engine=needs_engine(sys.argv[1:])):
        all_ok &= ok
        line = f"✓ {name}: {detail}" if ok else f"✗ {name}: {detail}. Fix: {remedy}"
        print(line, file=sys.stderr, flush=True)
    return 0 if all_ok else 3


if __name__ == "__main__":
    sys.exit(main())
