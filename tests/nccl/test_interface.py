"""The network interface over which NCCL connects ranks, as the real NCCL chooses it in a container of an ECS task.

Such a container has two: ecs-eth0, a link-local one to the agent alone, and eth0, which the other tasks reach.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_serving.catalog import engines
from llm_serving.fleet import join_nodes
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import on_demand
from llm_serving.validation.on_demand import Tool

TASK_INTERFACES = """\
ip link add eth0 type veth peer name ecs-eth0
ip addr add 169.254.172.2/22 dev ecs-eth0
ip addr add 10.66.0.11/24 dev eth0
ip link set ecs-eth0 up
ip link set eth0 up
"""
REACHABLE = "eth0:10.66.0.11"
BOOTSTRAP = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))"
LOCK = Path(__file__).with_name("requirements.txt")

pytestmark = pytest.mark.timeout(900)  # downloads the library once


class Nccl(Tool):
    """The library, without GPUs: it opens its bootstrap socket before it looks for any."""

    lock = LOCK


def _run_in_namespace(script: str, *words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--map-root-user", "--net", "sh", "-ec", script, "sh", *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        result = _run_in_namespace(TASK_INTERFACES, environment={})
    except OSError as error:
        pytest.skip(f"no network namespace: {error}")
    if result.returncode:
        pytest.skip(f"no network namespace with two interfaces: {result.stderr.strip()}")
    try:
        folder = on_demand.ensure(Nccl(name="nccl", title="NCCL", download_mib=197)).parent
    except Unavailable as error:
        pytest.skip(f"no NCCL: {error}")
    [file] = folder.glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
    return file


def _find_bootstrap(library: Path, environment: Mapping[str, str]) -> str:
    """Return the interface and the address that NCCL hands to other ranks."""
    script = f'{TASK_INTERFACES}exec "$@"'
    words = (sys.executable, "-I", "-c", BOOTSTRAP, str(library))
    result = _run_in_namespace(script, *words, environment={**environment, "NCCL_DEBUG": "INFO"})
    [address] = re.findall(r"Bootstrap: Using (\S+)<", result.stdout)
    return address


def test_nccl_left_alone_connects_ranks_over_the_agents_interface(library: Path) -> None:
    """The negative control of the others, and what a network test without it would do."""
    for environment in ({}, {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}):
        assert _find_bootstrap(library, environment) == "ecs-eth0:169.254.172.2"


def test_a_replica_over_several_nodes_connects_over_the_tasks_own_interface(library: Path) -> None:
    environment = engines.load_engines()["vllm"].options["nodes"].environment
    sockets = {name: value for name, value in environment.items() if name.endswith("_SOCKET_IFNAME")}
    assert sockets == {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    assert _find_bootstrap(library, sockets) == REACHABLE


def test_a_network_test_connects_over_the_tasks_own_interface(library: Path) -> None:
    words = join_nodes.build_command(["10.66.0.12"], 8, Path("key"))
    variables = dict(word.split("=", 1) for word in words if word.startswith("NCCL_"))
    assert _find_bootstrap(library, variables) == REACHABLE
    for name in ("btl_tcp_if_exclude", "oob_tcp_if_exclude"):
        assert words[words.index(name) + 1] == "lo,docker0,ecs-eth0"
