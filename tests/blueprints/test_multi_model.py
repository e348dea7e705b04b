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
from llm_serving.kinds.serving import adapter_loading
from llm_serving.kinds.serving.validation import validate as run
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import supervisor
from llm_serving.validation.base import ValidationOptions
from tests import serving

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def multi_model_plan(
    tmp_path_factory: pytest.TempPathFactory,
    start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]],
) -> Iterator[DeploymentPlan]:
    """Deploy a copy of the pattern with the adapter named in its comment; tests must restore its state."""
    root = tmp_path_factory.mktemp("many")
    folder = root / "mine"
    shutil.copytree(ROOT / "blueprints" / "multi-model", folder)
    make_tiny.make_adapter(folder / "adapters" / "tone")
    file = folder / "blueprint.yaml"
    assert "# adapters: {tone" in file.read_text()
    file.write_text(file.read_text().replace("# adapters: {tone", "adapters: {tone"))
    with start_blueprint(folder, root) as plan:
        processes.wait_until(
            lambda: _list_routed_names(plan) >= {"small", "long", "tone"}, "all names at the router", 60
        )
        yield plan


def _list_routed_names(plan: DeploymentPlan) -> set[str]:
    """The names that the router knows."""
    try:
        with urllib.request.urlopen(f"{plan.deployment.url}/v1/models", timeout=60) as response:
            return set(map(str, json.load(response)["models"]))
    except (OSError, ValueError, KeyError):
        return set()


def _find_engine(plan: DeploymentPlan, role: str) -> Service:
    return next(process for process in plan.deployment.workers if process.name.startswith(role))


def _count_requests(plan: DeploymentPlan) -> dict[str, float]:
    return {
        role: serving.read_counter(_find_engine(plan, role), "vllm:request_success_total") for role in ("small", "long")
    }


@pytest.mark.parametrize(("name", "role"), [("small", "small"), ("long", "long"), ("tone", "long")])
def test_the_name_in_model_decides_which_engine_answers(multi_model_plan: DeploymentPlan, name: str, role: str) -> None:
    before = _count_requests(multi_model_plan)
    for number in range(4):
        serving.complete(multi_model_plan.deployment.url, model=name, prompt=f"{serving.PROMPT} {number}")
    requests = {engine: count - before[engine] for engine, count in _count_requests(multi_model_plan).items()}
    assert requests == {engine: 4 if engine == role else 0 for engine in before}


def test_an_unknown_model_name_gets_404(multi_model_plan: DeploymentPlan) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        serving.request_completion(multi_model_plan.deployment.url, model="nobody")
    assert error.value.code == 404


def test_an_adapter_changes_its_own_text_and_not_its_models(multi_model_plan: DeploymentPlan) -> None:
    url = multi_model_plan.deployment.url
    model, adapter, repeated = (serving.complete(url, model=name, max_tokens=16) for name in ("long", "tone", "long"))
    assert adapter != model
    assert repeated == model == serving.complete(url, model="small", max_tokens=16), "both are the same model"


def test_an_adapter_is_loaded_and_unloaded_at_run_time_and_the_router_follows(
    multi_model_plan: DeploymentPlan, tmp_path: Path
) -> None:
    folder = make_tiny.make_adapter(tmp_path / "late")
    adapter_loading.load(multi_model_plan.deployment, "long", "late", folder)
    processes.wait_until(lambda: "late" in _list_routed_names(multi_model_plan), "the new name at the router", 90)
    texts = {
        name: serving.complete(multi_model_plan.deployment.url, model=name, max_tokens=16)
        for name in ("long", "tone", "late")
    }
    assert len(set(texts.values())) == 3, texts
    adapter_loading.unload(multi_model_plan.deployment, "long", "late")
    with pytest.raises(urllib.error.HTTPError):
        serving.request_completion(serving.get_url(_find_engine(multi_model_plan, "long")), model="late")
    processes.wait_until(
        lambda: _list_routed_names(multi_model_plan) == {"small", "long", "tone"}, "the name gone from the router", 90
    )
    assert serving.complete(multi_model_plan.deployment.url, model="tone", max_tokens=16) == texts["tone"]


def test_a_restarted_router_knows_all_names(multi_model_plan: DeploymentPlan) -> None:
    supervisord = supervisor.find_running(multi_model_plan.directory)
    assert supervisord is not None
    before = {state.name: state.pid for state in supervisord.list_states()}
    for process in psutil.Process(before["router"]).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the one ends with the other
            process.kill()
    processes.wait_until(lambda: supervisord.read_state("router").pid != before["router"], "the router", 60)
    processes.wait_until(
        lambda: _list_routed_names(multi_model_plan) >= {"small", "long", "tone"}, "all names at the router", 60
    )
    for name in ("small", "long", "tone"):
        assert serving.complete(multi_model_plan.deployment.url, model=name)
    after = {state.name: state.pid for state in supervisord.list_states()}
    assert {name for name in after if after[name] != before[name]} == {"router"}


def test_a_validation_asks_all_names_in_turn(multi_model_plan: DeploymentPlan, tmp_path: Path) -> None:
    before = _count_requests(multi_model_plan)
    options = ValidationOptions(logs=multi_model_plan.directory.logs, runs=tmp_path / "runs", requests=30)
    report, folder = run.validate(multi_model_plan.deployment, options)
    assert (report.requests.total, report.requests.failed) == (30, 0)
    assert report.settings["models"] == ["small", "long", "tone"]
    requests = {role: count - before[role] for role, count in _count_requests(multi_model_plan).items()}
    assert requests["small"] >= 10
    assert requests["long"] >= 20, "its own and its adapter's"
    assert (folder / "report.html").is_file()
