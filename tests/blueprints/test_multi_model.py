"""Many models behind one endpoint as real processes: the name in `model` decides, and adapters come and go."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from llm_serving import processes
from llm_serving.hub import make_tiny
from llm_serving.targets.local import adapters, supervisor
from llm_serving.targets.local.deploy import Plan
from llm_serving.validation import run
from llm_serving.workloads.serving.deployment import Process
from tests import serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def many(
    tmp_path_factory: pytest.TempPathFactory, brought_up: Callable[[Path, Path], AbstractContextManager[Plan]]
) -> Iterator[Plan]:
    """The pattern as it is copied, with the adapter that its comment speaks of: a test leaves it as it was."""
    root = tmp_path_factory.mktemp("many")
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "multi-model", folder)
    make_tiny.make_adapter(folder / "adapters" / "tone")
    file = folder / "blueprint.yaml"
    assert "# adapters: {tone" in file.read_text()
    file.write_text(file.read_text().replace("# adapters: {tone", "adapters: {tone"))
    with brought_up(folder, root) as plan:
        processes.wait_until(lambda: _routed(plan) >= {"small", "long", "tone"}, "all names at the router", 60)
        yield plan


def _routed(plan: Plan) -> set[str]:
    """The names that the router knows."""
    try:
        with urllib.request.urlopen(f"{plan.deployment.url}/v1/models", timeout=10) as answer:
            return set(map(str, json.load(answer)["models"]))
    except (OSError, ValueError, KeyError):
        return set()


def _engine(plan: Plan, role: str) -> Process:
    return next(process for process in plan.deployment.replicas if process.name.startswith(role))


def _answered(plan: Plan) -> dict[str, float]:
    return {role: serving.counter(_engine(plan, role), "vllm:request_success_total") for role in ("small", "long")}


@pytest.mark.parametrize(("name", "role"), [("small", "small"), ("long", "long"), ("tone", "long")])
def test_the_name_in_model_decides_which_engine_answers(many: Plan, name: str, role: str) -> None:
    before = _answered(many)
    for number in range(4):
        serving.text(many.deployment.url, model=name, prompt=f"{serving.PROMPT} {number}")
    gained = {engine: count - before[engine] for engine, count in _answered(many).items()}
    assert gained == {engine: 4 if engine == role else 0 for engine in before}


def test_a_name_that_nobody_serves_gets_404(many: Plan) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        serving.ask(many.deployment.url, model="nobody")
    assert refused.value.code == 404


def test_an_adapter_says_something_else_and_leaves_its_model_as_it_was(many: Plan) -> None:
    url = many.deployment.url
    model, adapter, again = (serving.text(url, model=name, max_tokens=16) for name in ("long", "tone", "long"))
    assert adapter != model
    assert again == model == serving.text(url, model="small", max_tokens=16), "both are the same model"


def test_an_adapter_is_loaded_and_unloaded_at_run_time_and_the_router_follows(many: Plan, tmp_path: Path) -> None:
    folder = make_tiny.make_adapter(tmp_path / "late")
    adapters.load(many.deployment, "long", "late", folder)
    processes.wait_until(lambda: "late" in _routed(many), "the new name at the router", 30)
    texts = {name: serving.text(many.deployment.url, model=name, max_tokens=16) for name in ("long", "tone", "late")}
    assert len(set(texts.values())) == 3, texts
    adapters.unload(many.deployment, "long", "late")
    with pytest.raises(urllib.error.HTTPError):
        serving.ask(serving.url(_engine(many, "long")), model="late")
    processes.wait_until(lambda: _routed(many) == {"small", "long", "tone"}, "the name gone from the router", 30)
    assert serving.text(many.deployment.url, model="tone", max_tokens=16) == texts["tone"]


def test_a_router_that_was_killed_knows_all_names_again(many: Plan) -> None:
    up = supervisor.running(many.run)
    assert up is not None
    before = {state.name: state.pid for state in up.states()}
    for process in psutil.Process(before["router"]).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the one ends with the other
            process.kill()
    processes.wait_until(lambda: up.state("router").pid != before["router"], "the router", 60)
    processes.wait_until(lambda: _routed(many) >= {"small", "long", "tone"}, "all names at the router", 60)
    for name in ("small", "long", "tone"):
        assert serving.text(many.deployment.url, model=name)
    after = {state.name: state.pid for state in up.states()}
    assert {name for name in after if after[name] != before[name]} == {"router"}


def test_a_validation_asks_all_names_in_turn(many: Plan, tmp_path: Path) -> None:
    before = _answered(many)
    report, folder = run.validate(many.deployment, logs=many.run.logs, runs=tmp_path / "runs", requests=30)
    assert (report.requests.total, report.requests.failed) == (30, 0)
    assert report.settings["models"] == ["small", "long", "tone"]
    gained = {role: count - before[role] for role, count in _answered(many).items()}
    assert gained["small"] >= 10
    assert gained["long"] >= 20, "its own and its adapter's"
    assert (folder / "report.html").is_file()
