"""What Ray's processes on this machine do when they start: listen on one address, know one secret, announce their ports."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

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
