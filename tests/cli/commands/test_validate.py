from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from llm_serving import processes
from llm_serving.settings.units import Bounds
from llm_serving.workloads.serving.deployment import Deployment, Place, Process, Role, Served, Weights
from scripts.benchmarks import known_server
from scripts.benchmarks.known_server import Behaviour

_PATTERN = Path(__file__).parents[3] / "blueprints" / "aggregated"

_BLUEPRINT = """
pattern: aggregated
model: tiny
roles:
  worker: {{pool: general}}
traffic:
  users: 4
  requests: 12
  output_tokens: 8
  warm_up: 1
slo:
  ttft_ms: {{p95: {limit}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with known_server.running(Behaviour(0.02, 0.002)) as url:
        yield url


@pytest.fixture
def here(tmp_path: Path, server: str) -> Path:
    """A folder with the blueprint `mine`, deployed at the server with known delays."""
    _write(tmp_path, 5000)
    _deployed(tmp_path, server)
    return tmp_path


def _write(root: Path, limit: float) -> None:
    shutil.copytree(_PATTERN, root / "mine", dirs_exist_ok=True)
    (root / "mine" / "blueprint.yaml").write_text(_BLUEPRINT.format(limit=limit))


def _deployed(root: Path, url: str) -> None:
    port = urlsplit(url).port or 0

    weights = Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=True)
    tiny = Served(model="tiny", name="tiny", weights=weights, context=4096)

    def role(kind: str, name: str, serves: Served | None = None) -> Role:
        process = Process(name=f"{name}-0", command=("true",), environment={}, port=port)
        return Role.model_validate(
            {"name": name, "kind": kind, "serves": serves, "count": Bounds(1, 1), "processes": (process,)}
        )

    made = Deployment.model_validate(
        {
            "name": "mine", "pattern": "aggregated", "target": "local", "fleet": "demo", "engine": "vllm",
            "framework": "plain", "url": url, "roles": (role("engine", "worker", tiny), role("router", "router")),
            "disruption": {}, "traffic": {"users": 1}, "slo": {},
            "place": Place(target="local", region="us-west-2", bucket="models"), "emulated": ("A stand-in.",),
        }
    )  # fmt: skip
    folder = root / ".blueprint" / "mine"
    (folder / "logs").mkdir(parents=True)
    (folder / "deployment.json").write_text(made.model_dump_json())


def _command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from llm_serving.cli.main import main; main()", "validate", *words]


def _validate(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*words), cwd=root, capture_output=True, text=True, timeout=120, check=False)


def test_an_slo_that_holds_exits_0_and_says_where_the_report_lies(here: Path) -> None:
    done = _validate(here, "mine")
    assert done.returncode == 0, done.stderr
    assert "PASS runs/mine/" in done.stdout
    assert "A stand-in." in done.stdout
    assert "locust --headless" in done.stderr
    assert (here / "runs" / "latest" / "report.html").is_file()


def test_an_slo_that_cannot_hold_exits_1_and_names_the_metric_its_value_and_its_limit(here: Path) -> None:
    _write(here, 0.001)
    done = _validate(here, "mine")
    assert done.returncode == 1
    assert "mine misses its SLO:" in done.stderr
    assert "ttft_ms.p95: " in done.stderr
    assert "ms, the limit is 0.001 ms" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((here / "runs" / "latest" / "report.json").read_text())["verdict"] == "fail"


def test_json_prints_the_report_and_options_change_the_load(here: Path, server: str) -> None:
    done = _validate(here, "mine", "--json", "--requests", "5", "--url", f"{server}/v1/")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["requests"]["total"] == 5
    assert printed["settings"]["url"] == server
    assert printed == json.loads((here / "runs" / "latest" / "report.json").read_text())


def test_what_is_not_deployed_is_said_with_how_to_deploy_it(tmp_path: Path) -> None:
    _write(tmp_path, 5000)
    done = _validate(tmp_path, "mine")
    assert done.returncode == 3
    assert done.stderr == "mine is not deployed from here; `blueprint deploy mine` brings it up\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_and_no_report(tmp_path: Path, how: signal.Signals) -> None:
    with known_server.running(Behaviour(0.02, 0.02)) as url:
        _write(tmp_path, 5000)
        _deployed(tmp_path, url)
        child = subprocess.Popen(_command("mine", "--requests", "5000"), cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            progress = tmp_path / ".blueprint" / "mine" / "logs" / "validation" / "progress.json"
            processes.wait_until(progress.exists, "the load", 60)
            below = psutil.Process(child.pid).children(recursive=True)
            assert any("locust" in one.cmdline() for one in below)
            os.kill(child.pid, how)
            child.wait(30)
        finally:
            child.kill()
        gone, alive = psutil.wait_procs(below, timeout=20)
        assert alive == []
        assert gone
        assert not list(tmp_path.glob("runs/**/*"))
        if how != signal.SIGKILL:
            return
        # What even a kill left behind is no obstacle to the next one.
        again = _validate(tmp_path, "mine", "--requests", "1")
        assert again.returncode == 0, again.stderr
