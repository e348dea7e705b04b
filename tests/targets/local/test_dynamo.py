"""Dynamo's real frontend and workers: found, reached by loopback alone, chosen by their caches, and replaced."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from llm_serving.kinds.serving.validation import validate
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings import yaml_edit
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import engine_setups
from llm_serving.validation.base import ValidationOptions
from tests import serving

ROOT = Path(__file__).resolve().parents[3]
SETUP = engine_setups.find("vllm", "dynamo")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not SETUP.is_ready(),
        reason="Dynamo is not set up: .venv/bin/python -m llm_serving.targets.local.engine_setups vllm dynamo",
    ),
]


@pytest.fixture(scope="module")
def plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """Two workers behind the frontend."""
    root = tmp_path_factory.mktemp("dynamo")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    file = root / "mine" / "blueprint.yaml"
    file.write_text(yaml_edit.set_value(file, ("framework",), "dynamo", after="model"))
    with start_blueprint(root / "mine", root) as started:
        yield started


def test_it_listens_on_loopback_addresses_alone(plan: DeploymentPlan) -> None:
    sockets = serving.list_listening(plan)
    assert len(sockets) > len(plan.deployment.services)
    assert [address for address in sockets if not address.is_loopback] == []


def test_the_report_counts_every_request_at_the_replica_that_answered(plan: DeploymentPlan, tmp_path: Path) -> None:
    traffic = {"users": 4, "requests": 20, "input_tokens": "80..120", "output_tokens": "4..12", "deadline": "5min"}
    deployment = plan.deployment.model_copy(update={"traffic": Traffic.model_validate(traffic), "slo": Slo()})
    measured, _ = validate.validate(deployment, ValidationOptions(logs=plan.directory.logs, runs=tmp_path))
    assert (measured.requests.total, measured.requests.failed) == (20, 0)
    assert sum(replica.requests or 0 for replica in measured.replicas) == 20
    assert (measured.tokens.input_exact, measured.tokens.output_exact) == (1, 1)


def test_a_prompt_goes_where_its_beginning_was_seen(plan: DeploymentPlan) -> None:
    prompt = "The router sends a request to the worker that has seen it. " * 20
    answers = {serving.complete(plan.deployment.url, prompt=prompt) for _ in range(5)}
    assert len(answers) == 1
    queried, hits = (
        [serving.read_counter(worker, f"vllm:prefix_cache_{name}_total") for worker in plan.deployment.workers]
        for name in ("queries", "hits")
    )
    assert max(hits) >= 4 * 128, "four of five found whole blocks"
    assert hits[queried.index(min(queried))] == 0, "and the other worker got none of them"


def test_requests_go_on_when_their_worker_is_killed(plan: DeploymentPlan) -> None:
    [victim] = [each for each in serving.list_processes(plan) if "dynamo.vllm" in each.cmdline()][:1]
    with serving.Load(plan.deployment.url, deadline_s=300, users=2) as load:
        load.wait_answers(4)
        victim.kill()
        killed = time.monotonic()
        load.wait_answers(8)
    assert load.failed == []
    assert sum(start > killed for start in load.start_times) > 0
