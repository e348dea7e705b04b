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
from llm_serving.cli import main
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.services.environment import Environment
from llm_serving.services.models import ServedModel, Weights
from llm_serving.services.service import Service
from llm_serving.settings.units import Bounds
from llm_serving.targets.local.environment import CONVENTIONS
from tests import known_server
from tests.cli.commands.conftest import Ended, RunCommand
from tests.known_server import Behaviour
from tests.validation.conftest import ignore_busy_machine

_PATTERN = Path(__file__).parents[3] / "blueprints" / "aggregated"

LIMIT_MS = 50_000
"""Of the time to first token: more than a busy machine adds to it."""

_BLUEPRINT = """
pattern: aggregated
model: tiny
roles:
  worker: {{pool: general}}
traffic:
  users: 4
  requests: 60
  output_tokens: 8
  warm_up: 1
slo:
  ttft_ms: {{p95: {limit}}}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with known_server.run_server(Behaviour(0.02, 0.002)) as url:
        yield url


@pytest.fixture
def working_folder(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the blueprint `mine`, deployed at the server with known delays."""
    monkeypatch.chdir(tmp_path)
    _write_blueprint(tmp_path, LIMIT_MS)
    _write_deployment(tmp_path, server)
    return tmp_path


@pytest.fixture
def validate(run_command: RunCommand) -> RunCommand:
    """Runs `blueprint validate` on a machine that others may keep busy."""

    def _validate(*words: str) -> Ended:
        with ignore_busy_machine():
            return run_command("validate", *words)

    return _validate


def _write_blueprint(root: Path, limit: float) -> None:
    shutil.copytree(_PATTERN, root / "mine", dirs_exist_ok=True)
    (root / "mine" / "blueprint.yaml").write_text(_BLUEPRINT.format(limit=limit))


def _write_deployment(root: Path, url: str) -> None:
    port = urlsplit(url).port or 0

    weights = Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=True)
    tiny = ServedModel(model="tiny", name="tiny", weights=weights, context=4096)

    def build_role(kind: str, name: str, serves: ServedModel | None = None) -> Role:
        return Role.model_validate(
            {
                "name": name,
                "kind": kind,
                "served_model": serves,
                "replicas": Bounds(1, 1),
            }
        )

    services = [
        Service(name=f"{role}-0", role=role, is_entry=role == "router", command=("true",), port=port)
        for role in ("worker", "router")
    ]
    deployment = ServingDeployment.model_validate(
        {
            "name": "mine", "pattern": "aggregated", "target": "local", "fleet": "demo", "engine": "vllm",
            "framework": "plain", "objects": "plain", "services": services, "url": url, "roles": (build_role("engine", "worker", tiny), build_role("router", "router")),
            "disruption": {}, "traffic": {"users": 1}, "slo": {}, "request_timeout_s": 1800,
            "environment": Environment(target="local", conventions=CONVENTIONS, region="us-west-2", bucket="models"), "emulated": ("A stand-in.",),
        }
    )  # fmt: skip
    folder = root / ".blueprint" / "mine"
    (folder / "logs").mkdir(parents=True)
    (folder / "deployment.json").write_text(deployment.model_dump_json())


def _build_command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from llm_serving.cli.main import main; main()", "validate", *words]


def test_a_met_slo_exits_0_with_the_path_of_the_report(working_folder: Path, validate: RunCommand) -> None:
    result = validate("mine")
    assert result.code == 0, result.err
    assert "PASS runs/mine/" in result.out
    assert "A stand-in." in result.out
    assert "-m llm_serving.validation.load.locust_process" in result.err
    assert (working_folder / "runs" / "latest" / "report.html").is_file()


def test_a_missed_slo_exits_1_and_names_the_metric_its_value_and_its_limit(
    working_folder: Path, validate: RunCommand
) -> None:
    _write_blueprint(working_folder, 0.001)
    result = validate("mine")
    assert result.code == 1
    assert "mine misses its SLO:" in result.err
    assert "ttft_ms.p95: " in result.err
    assert "ms; the limit is 0.001 ms" in result.err
    assert "Traceback" not in result.err
    assert json.loads((working_folder / "runs" / "latest" / "report.json").read_text())["verdict"] == "fail"


def test_json_prints_the_report_and_options_change_the_load(
    working_folder: Path, server: str, validate: RunCommand
) -> None:
    result = validate("mine", "--json", "--requests", "61", "--url", f"{server}/v1/")
    assert result.code == 0, result.err
    printed = json.loads(result.out)
    assert printed["requests"]["total"] == 61
    assert printed["settings"]["url"] == server
    assert printed == json.loads((working_folder / "runs" / "latest" / "report.json").read_text())


def test_a_load_too_small_for_a_verdict_exits_1_and_names_the_one_that_would_do(
    working_folder: Path, validate: RunCommand
) -> None:
    result = validate("mine", "--requests", "20")
    assert result.code == 1
    assert "this load does not show that mine meets its SLO:" in result.err
    assert "ttft_ms.p95 within 50000 ms: 20 requests do not bound it; needs 59 requests" in result.err
    assert "NOT SHOWN runs/mine/" in result.out
    written = json.loads((working_folder / "runs" / "latest" / "report.json").read_text())
    assert (written["verdict"], written["missed"]) == ("not shown", [])


def test_a_missing_deployment_is_reported_with_the_deploy_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_blueprint(tmp_path, LIMIT_MS)
    result = validate("mine")
    assert result.code == 3
    assert result.err == "mine: not deployed here. Fix: run blueprint deploy mine\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_validation_leaves_no_process_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validate: RunCommand, how: signal.Signals
) -> None:
    with known_server.run_server(Behaviour(0.02, 0.02)) as url:
        _write_blueprint(tmp_path, LIMIT_MS)
        _write_deployment(tmp_path, url)
        child = subprocess.Popen(_build_command("mine", "--requests", "5000"), cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            progress = tmp_path / ".blueprint" / "mine" / "logs" / "validation" / "progress.json"
            processes.wait_until(progress.exists, "the load", 60)
            children = psutil.Process(child.pid).children(recursive=True)
            assert any("llm_serving.validation.load.locust_process" in process.cmdline() for process in children)
            os.kill(child.pid, how)
            child.wait(60)
        finally:
            child.kill()
        exited, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []
        assert exited
        assert not list(tmp_path.glob("runs/**/*"))
        if how != signal.SIGKILL:
            return
        # What even a kill left behind is no obstacle to the next one.
        monkeypatch.chdir(tmp_path)
        repeated = validate("mine", "--requests", "60")
        assert repeated.code == 0, repeated.err


def test_another_driver_runs_on_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", "mine", "--target", "eks", "--driver", "guidellm", "--load-from", "cluster"]
    assert main.run(words) == 2
    assert (
        capsys.readouterr().err == '--load-from: "cluster": guidellm runs on this machine. Fix: use --load-from here.\n'
    )


@pytest.mark.parametrize(
    "url", ["gateway.example.com", "http://127.0.0.1:80a0", "http://127.0.0.1:80000", "http://[::1"]
)
def test_what_is_no_url_is_refused_before_a_load_starts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["validate", "mine", "--url", url]) == 2
    assert capsys.readouterr().err == f'--url: "{url}": it is not a URL. Fix: use one such as http://127.0.0.1:8000.\n'
