"""What Ray's processes on this machine do when they start: listen on one address, know one secret, announce their
ports, and end with their head."""

from __future__ import annotations

import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving.kinds.serving.frameworks.ray_start import ray_node, sitecustomize


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("[::]:0", "127.0.0.1:0"),
        ("0.0.0.0:70", "127.0.0.1:70"),
        ("127.0.0.1:70", "127.0.0.1:70"),
        ("[::1]:70", "[::1]:70"),
    ],
)
def test_a_server_listens_on_the_loopback_address_where_it_asks_for_all(address: str, kept: str) -> None:
    def add_port(server: Any, address: str, *credentials: str) -> int:
        called.append((address, *credentials))
        return 7070

    called: list[tuple[str, ...]] = []
    assert sitecustomize.keep_port(add_port)(None, address, "credentials") == 7070
    assert called == [(kept, "credentials")]


def test_the_ports_of_an_agent_are_where_its_raylet_waits_for_them(tmp_path: Path) -> None:
    words = [
        *("python", "/x/ray/dashboard/agent.py", "--node-id=abc", f"--session-dir={tmp_path}"),
        *("--grpc-port=7001", "--listen-port=0", "--metrics-export-port=7003"),
    ]
    sitecustomize.announce_ports(words)
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {"metrics_agent_port_abc": "7001", "metrics_export_port_abc": "7003"}


def test_the_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    ray_node.create_token(file)
    token = file.read_text()
    ray_node.create_token(file)
    assert file.read_text() == token and len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_node_ends_with_its_head_and_another_starts_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLUEPRINT_RAY_SOCKETS", f"{tmp_path}/worker-0")
    left = tmp_path / "worker-0.raylet"
    left.touch()
    pids, end = tmp_path / "pids", tmp_path / "end"
    program = f"""\
import os, pathlib, time
with open({str(pids)!r}, "a") as file: file.write(f"{{os.getpid()}} ")
while not pathlib.Path({str(end)!r}).exists(): time.sleep(0.05)
raise SystemExit(7)"""

    def list_started() -> list[int]:
        return [int(pid) for pid in pids.read_text().split(" ")[:-1]] if pids.exists() else []

    head = socket.create_server(("127.0.0.1", 0))
    port = head.getsockname()[1]
    codes: list[int] = []
    command = [sys.executable, "-c", program]
    threading.Thread(target=lambda: codes.append(ray_node.run_worker("127.0.0.1", port, command)), daemon=True).start()
    _wait(lambda: len(list_started()) == 1)
    assert not left.exists()
    head.close()
    _wait(lambda: not psutil.pid_exists(list_started()[0]))
    with socket.create_server(("127.0.0.1", port)):
        _wait(lambda: len(list_started()) == 2)
        end.touch()
        _wait(lambda: codes == [7])


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_true()


def test_a_head_starts_after_one_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLUEPRINT_RAY_SOCKETS", f"{tmp_path}/router")
    files = [tmp_path / name for name in ("ray_current_cluster", "router.store", "router.raylet", "worker-0.raylet")]
    for file in files:
        file.touch()
    ray_node.forget_node(["--num-cpus=2", f"--temp-dir={tmp_path}"])
    assert list(tmp_path.iterdir()) == [files[-1]]
