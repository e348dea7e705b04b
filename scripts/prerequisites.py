#!/usr/bin/env python3
"""Says what this machine has of what install.sh needs, one line an item, and how to get what is missing.

Runs before anything is installed, so it imports the standard library alone.
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


class Finding(NamedTuple):
    """One item: whether the machine has it, what was seen, and how to get it."""

    item: str
    ok: bool
    seen: str
    remedy: str


def python() -> Finding:
    """Python 3.11 or later, able to make a virtual environment."""
    able = importlib.util.find_spec("ensurepip") is not None or shutil.which("uv") is not None
    seen = platform.python_version() + ("" if able else " without venv")
    remedy = "install Python 3.11 or later with its venv module: apt-get install python3 python3-venv"
    return Finding("Python", sys.version_info >= (3, 11) and able, seen, remedy)


def terraform() -> Finding:
    """Terraform, or OpenTofu in its place."""
    remedy = "install Terraform 1.10 or later (developer.hashicorp.com/terraform/install) or OpenTofu (opentofu.org)"
    names = [os.environ["TERRAFORM_BINARY_NAME"]] if os.environ.get("TERRAFORM_BINARY_NAME") else ["terraform", "tofu"]
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        return Finding("Terraform", False, "none of " + ", ".join(names) + " on PATH", remedy)
    try:
        said = subprocess.run([path, "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Terraform", False, f"{path} does not run: {error}", remedy)
    version = re.search(r"v(\d+)\.(\d+)\.\d+\S*", said)
    ok = version is not None and (int(version[1]), int(version[2])) >= TERRAFORM
    return Finding("Terraform", ok, f"{version[0] if version else 'no version'} at {path}", remedy)


def processor() -> Finding:
    """A processor that the engine's CPU build runs on."""
    seen = f"{platform.system()} on {platform.machine()}"
    remedy = "use a Linux machine on x86-64 with AVX2 for the local target; the stacks and `--target` others need none"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return Finding("processor", False, seen, remedy)
    flags = Path("/proc/cpuinfo").read_text()
    widest = next((name for name in ("avx512f", "avx2") if re.search(rf"\b{name}\b", flags)), None)
    cores = len(os.sched_getaffinity(0))
    return Finding("processor", widest is not None, f"{seen}, {cores} cores, {widest or 'without AVX2'}", remedy)


def numa() -> Finding:
    """libnuma, which the engine's CPU build links."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return Finding(
            "libnuma", False, "libnuma.so.1 is not there", "apt-get install libnuma1, or dnf install numactl-libs"
        )
    return Finding("libnuma", True, "libnuma.so.1", "")


def memory() -> Finding:
    """Memory that can be had now."""
    meminfo = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    free = int(found[1]) * 1024 / GIB if found else 0.0
    return Finding(
        "memory", free >= MEMORY_GIB, f"{free:.1f} GiB free", f"free at least {MEMORY_GIB} GiB: close programs"
    )


def disk(folder: Path) -> Finding:
    """Room for the environments; what is installed already counts as room."""
    needed = 1 if (folder / ".venv-engine").is_dir() else DISK_GIB
    free = shutil.disk_usage(folder).free / GIB
    return Finding("disk", free >= needed, f"{free:.1f} GiB free", f"free at least {needed} GiB under {folder}")


def findings(folder: Path, *, engine: bool = True) -> Iterator[Finding]:
    """Every item, the cheap ones first.

    Args:
        engine: whether the model is served on this machine; what serves on AWS needs little here.
    """
    local: tuple[Callable[[], Finding], ...] = (processor, numa, memory, lambda: disk(folder)) if engine else ()
    for check in (python, *local, terraform):
        yield check()


def serves_here(arguments: list[str]) -> bool:
    """Whether a command line of install.sh serves on this machine."""
    words = [part for word in arguments for part in word.split("=", 1)]
    target = words[words.index("--target") + 1 :][:1] if "--target" in words else []
    return "--destroy" not in words and target in ([], ["local"])


def main() -> int:
    """Prints a line an item; 3 where something is missing."""
    good = True
    for item, ok, seen, remedy in findings(Path.cwd(), engine=serves_here(sys.argv[1:])):
        good &= ok
        line = f"✓ {item}: {seen}" if ok else f"✗ {item}: {seen}. To mend: {remedy}"
        print(line, file=sys.stderr, flush=True)
    return 0 if good else 3


if __name__ == "__main__":
    sys.exit(main())
