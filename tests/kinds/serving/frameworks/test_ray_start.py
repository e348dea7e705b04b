"""What Ray's processes on this machine do when they start: listen on one address, know one secret, announce their
ports, and end with their head."""

from __future__ import annotations

import socket
import stat
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm_serving import processes
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


@pytest.mark.parametrize(
    ("replica", "switch", "imported"),
    [("1", "early-fork", True), ("1", "off", False), ("", "early-fork", False)],
)
def test_a_worker_that_becomes_a_replica_imports_the_engine_before_ray(
    monkeypatch: pytest.MonkeyPatch, replica: str, switch: str, imported: bool
) -> None:
    called: list[str] = []
    monkeypatch.setenv("BLUEPRINT_RAY_REPLICA", replica)
    monkeypatch.setenv("BLUEPRINT_LOCAL_SHORTCUTS", switch)
    monkeypatch.setattr(sitecustomize, "import_engine", lambda: called.append("engine"))
    monkeypatch.setattr(sitecustomize, "keep_servers", lambda: called.append("servers of Ray"))
    sitecustomize.main(["python", "/x/ray/_private/workers/default_worker.py", "--node-id=abc"])
    assert called == [*(["engine"] if imported else []), "servers of Ray"]


@pytest.mark.parametrize(("parents", "codes"), [((7, 7), []), ((7, 1), [1])])
def test_a_worker_whose_raylet_has_ended_during_its_imports_ends(
    monkeypatch: pytest.MonkeyPatch, parents: tuple[int, int], codes: list[int]
) -> None:
    ended: list[int] = []
    left = list(parents)
    monkeypatch.setattr("os.getppid", lambda: left.pop(0))
    monkeypatch.setattr("os._exit", ended.append)
    monkeypatch.setattr("importlib.import_module", lambda _: types.SimpleNamespace(load_general_plugins=int))
    sitecustomize.import_engine()
    monkeypatch.undo()
    assert ended == codes


def test_the_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    ray_node.create_token(file)
    token = file.read_text()
    ray_node.create_token(file)
    assert file.read_text() == token and len(token) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_ports_of_agents_are_kept_from_all_who_choose_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set(ray_node.PORTS) & set(processes._PORTS), "a deployment's are its own also while a process is down"
    host, ports = "127.0.0.1", processes.claim_free_ports(len(ray_node.FREE_PORTS) + 2)
    claimed, listened, *free = ports
    for port in (listened, *free):
        processes._claims.pop(port).close()
    monkeypatch.setattr(ray_node, "PORTS", ports)
    with socket.create_server((host, listened)):
        assert sorted(ray_node.claim_ports(host).values()) == sorted(free), f"{claimed} is another process's"
    assert not any(map(processes.claim, free))
    while ray_node.claims:
        ray_node.claims.pop().close()
    assert all(map(processes.claim, free)), "they are free again once the node has ended"


class Node:
    """A node that `run_worker` starts: it runs until `end`, and counts in `pids`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BLUEPRINT_RAY_SOCKETS", f"{folder}/worker-0")
        self.pids, self.end = folder / "pids", folder / "end"
        program = f"""\
import os, pathlib, time
with open({str(self.pids)!r}, "a") as file: file.write(f"{{os.getpid()}} ")
while not pathlib.Path({str(self.end)!r}).exists(): time.sleep(0.05)
raise SystemExit(7)"""
        self.command = [sys.executable, "-c", program]

    def list_started(self) -> list[int]:
        return [int(pid) for pid in self.pids.read_text().split(" ")[:-1]] if self.pids.exists() else []


@pytest.mark.parametrize("absent_s", [0, 2])
def test_a_node_ends_with_its_head_and_another_starts_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent_s: float
) -> None:
    """Also with one that takes its head's place at once, as when another policy is deployed."""
    node = Node(tmp_path, monkeypatch)
    left = tmp_path / "worker-0.raylet"
    left.touch()
    [port] = processes.claim_free_ports(1)  # which no other program takes while no head listens
    codes: list[int] = []
    run = threading.Thread(
        target=lambda: codes.append(ray_node.run_worker("127.0.0.1", port, node.command)), daemon=True
    )
    with ray_node.listen_for_workers(port), socket.create_server(("127.0.0.1", port)):
        run.start()
        _wait(lambda: len(node.list_started()) == 1)
        assert not left.exists()
    time.sleep(absent_s)
    with ray_node.listen_for_workers(port), socket.create_server(("127.0.0.1", port)):
        _wait(lambda: len(node.list_started()) == 2)
        assert not psutil.pid_exists(node.list_started()[0])
        node.end.touch()
        _wait(lambda: codes == [7])


def test_a_node_goes_on_while_its_busy_head_refuses_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch)
    [port] = processes.claim_free_ports(1)
    monkeypatch.setattr(ray_node, "wait_listening", lambda *_: None)
    with ray_node.listen_for_workers(port):
        threading.Timer(2, node.end.touch).start()
        assert ray_node.run_worker("127.0.0.1", port, node.command) == 7
    assert len(node.list_started()) == 1


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
