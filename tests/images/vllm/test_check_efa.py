"""The last step of the image's build, with a fake ldd."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[3] / "images" / "vllm" / "check-efa"
LDD_OUTPUT = "libfabric.so.1 => /opt/amazon/efa/lib/libfabric.so.1 (0x0)\nlibcuda.so.1 => not found\n"


def _run_check(folder: Path, nixl: str, nccl: str) -> subprocess.CompletedProcess[str]:
    for name, ldd_output in (("nixl", nixl), ("nccl", nccl)):
        (folder / name).write_text(ldd_output)
    ldd = folder / "ldd"
    ldd.write_text('#!/bin/sh\ncat "$1"\n')
    ldd.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(CHECK), str(folder / "nixl"), str(folder / "nccl")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_plugins_with_awss_libfabric_pass_without_nvidias_driver(tmp_path: Path) -> None:
    assert _run_check(tmp_path, LDD_OUTPUT, LDD_OUTPUT).returncode == 0


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("libfabric.so.1 => not found\n", "libfabric.so.1 => not found"),
        (LDD_OUTPUT + "libhwloc.so.15 => not found\n", "libhwloc.so.15 => not found"),
        # The installer before 1.50 with NIXL 1.5.1.
        (f"./nixl: libfabric.so.1: version `FABRIC_1.10' not found (required by ./nixl)\n{LDD_OUTPUT}", "FABRIC_1.10"),
        ("libfabric.so.1 => /lib/x86_64-linux-gnu/libfabric.so.1 (0x0)\n", "links to another libfabric"),
        ("libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x0)\n", "links to another libfabric"),
    ],
)
def test_a_plugin_that_would_leave_efa_unused_stops_the_build(tmp_path: Path, output: str, reason: str) -> None:
    for plugins in ((output, LDD_OUTPUT), (LDD_OUTPUT, output)):
        result = _run_check(tmp_path, *plugins)
        assert result.returncode == 1
        assert reason in result.stderr


def test_a_missing_plugin_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "nixl").write_bytes(b"")
    result = subprocess.run([str(CHECK), str(tmp_path / "nixl"), "/none"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
