"""A tunnel to a deployment inside a network: open inside the block, closed afterwards, with its error reported."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import tunnel


def test_a_tunnel_answers_on_its_local_port_until_it_closes(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("ok")

    def build_command(port: int) -> list[str]:
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]

    with tunnel.open_tunnel(build_command, tmp_path / "tunnel.log", {}) as url:
        with urllib.request.urlopen(f"{url}/health", timeout=60) as response:
            assert response.read() == b"ok"
        port = int(url.rpartition(":")[2])
        assert not processes.is_free(port)
    assert processes.is_free(port)


def test_a_tunnel_that_fails_reports_its_error(tmp_path: Path) -> None:
    def build_command(_: int) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('error: services \"mine\" not found')"]

    with (
        pytest.raises(Unavailable, match='services "mine" not found'),
        tunnel.open_tunnel(build_command, tmp_path / "logs" / "tunnel.log", {}),
    ):
        pass
