"""Ray's real nodes and Serve's replicas on them: reached by loopback alone, counted, replaced, and gone afterwards."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving.kinds.serving.validation import validate
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings import yaml_edit
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups
from llm_serving.validation.base import ValidationOptions
from tests import serving

ROOT = Path(__file__).resolve().parents[3]
SETUP = engine_setups.find("vllm", "ray")
REPLICA = "ray::ServeReplica:llm:LLMServer"
"""What a replica's process calls itself, before the model's name."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not SETUP.is_ready(),
        reason="Ray is not set up: .venv/bin/python -m llm_serving.targets.local.engine_setups vllm ray",
    ),
]


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """Two nodes with a replica each, and the head."""
    root = tmp_path_factory.mktemp("ray")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    file = root / "mine" / "blueprint.yaml"
    file.write_text(yaml_edit.set_value(file, ("framework",), "ray", after="model"))
    with start_blueprint(root / "mine", root) as started:
        yield started


def _list_replicas(plan: DeploymentPlan) -> list[psutil.Process]:
    found = []
    for process in serving.list_processes(plan):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "".join(process.cmdline()).startswith(REPLICA):
                found.append(process)
    return found


def test_it_listens_on_loopback_addresses_alone(plan: DeploymentPlan) -> None:
    sockets = serving.list_listening(plan)
    assert len(sockets) > 10
    assert [address for address in sockets if not address.is_loopback] == []


def _request_status(port: int, token: str = "") -> int:
    """Return the status of a page of an agent, or 0 where no server of HTTP is."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/api/ray/version", headers=headers), timeout=30
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


def test_its_agents_answer_those_alone_that_know_its_secret(plan: DeploymentPlan) -> None:
    token = (plan.directory.data / "ray-token").read_text()
    agents = [each for each in serving.list_processes(plan) if "DashboardAgent" in "".join(each.cmdline())]
    connections = [one for agent in agents for one in agent.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    closed = [one.laddr.port for one in connections if _request_status(one.laddr.port) == 401]
    assert len(closed) == len(plan.deployment.services)
    assert not {_request_status(port, token) for port in closed} & {0, 401, 403}


def test_the_report_counts_every_request_at_the_replica_that_answered(plan: DeploymentPlan, tmp_path: Path) -> None:
    traffic = {"users": 4, "requests": 20, "input_tokens": "80..120", "output_tokens": "4..12", "deadline": "5min"}
    deployment = plan.deployment.model_copy(update={"traffic": Traffic.model_validate(traffic), "slo": Slo()})
    measured, _ = validate.validate(deployment, ValidationOptions(logs=plan.directory.logs, runs=tmp_path))
    assert (measured.requests.total, measured.requests.failed) == (20, 0)
    assert sum(replica.requests or 0 for replica in measured.replicas) == 20
    assert (measured.tokens.input_exact, measured.tokens.output_exact) == (1, 1)


def test_a_killed_replica_is_replaced_while_the_other_answers(plan: DeploymentPlan) -> None:
    before = {each.pid for each in _list_replicas(plan)}
    assert len(before) == len(plan.deployment.workers) == 2
    victim = min(before)
    with serving.Load(plan.deployment.url, deadline_s=300, users=2) as load:
        load.wait_answers(4)
        psutil.Process(victim).kill()
        load.wait_answers(8)
        deadline = time.monotonic() + 300
        while len({each.pid for each in _list_replicas(plan)} - {victim}) < 2 and time.monotonic() < deadline:
            time.sleep(1)
    assert len({each.pid for each in _list_replicas(plan)} - before) == 1
    assert len(load.failed) <= 2, "each user had at most the one request that the replica was answering"


def test_destroying_it_leaves_nothing(plan: DeploymentPlan) -> None:
    processes = serving.list_processes(plan)
    assert deploy.destroy(plan.directory)
    assert [each for each in processes if each.is_running()] == []
    assert not plan.directory.data.exists() and not plan.directory.sockets.exists()
