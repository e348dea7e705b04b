"""The Java client in front of a real engine, llama.cpp."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from llm_serving import processes
from llm_serving.catalog import gguf
from llm_serving.hub import make_gguf
from llm_serving.kinds.streaming import programs
from llm_serving.targets.local import engine_setups
from tests import maven

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    maven.REQUIRED,
]

LIMIT_S = 90
TOKENS = 60_000
"""Far more than an engine computes by the deadline."""


def _read_metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        [value] = re.findall(rf"^llamacpp:{name} (\S+)$", response.read().decode(), re.MULTILINE)
    return float(value)


def test_a_deadline_that_passes_frees_the_slot_of_the_engine(tmp_path: Path) -> None:
    setup = engine_setups.find("llama.cpp")
    setup.ensure()
    programs.install(lambda _: None)
    [port] = processes.claim_free_ports(1)
    url, log = f"http://127.0.0.1:{port}", tmp_path / "server.log"
    model = make_gguf.make("tiny", tmp_path / "tiny") / gguf.FILE
    command = [str(setup.executables / "llama-server"), "--model", str(model), "--alias", "tiny", "--offline"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", "1", "--ctx-size", "65536", "--metrics"]
    with log.open("wb") as output:
        server = processes.spawn([*command, "--threads", "1"], output=output)
    try:
        processes.wait_until(lambda: "listening on" in log.read_text(), "llama-server", LIMIT_S)
        program = str(Path(__file__).with_name("PassDeadline.java"))
        client = subprocess.Popen(
            [*programs.build_java(heap_mb=128), program, url, str(TOKENS), "8"], stdout=subprocess.PIPE, text=True
        )
        processes.wait_until(lambda: _read_metric(url, "requests_processing") == 1, "a running request", LIMIT_S, 0.02)
        said, _ = client.communicate(timeout=LIMIT_S)
        assert said == "DeadlineExceeded\n"
        # llama-server looks whether clients left once no request had a result for a second; reading its metrics is a request.
        processes.wait_until(lambda: _read_metric(url, "requests_processing") == 0, "the free slot", LIMIT_S, 3)
        assert _read_metric(url, "tokens_predicted_total") < TOKENS, "the request ended by itself"
    finally:
        processes.stop(server)
