"""Deployments by name: on this machine what runs, on AWS an address that follows from the name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.fleet.loading import load_fleet
from llm_serving.services import deployments, inputs, kinds, rendered
from llm_serving.targets import planning, registry
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import deploy
from tests.infra.batch import conftest as batches
from tests.kinds.batch.test_blueprint import MINIMAL, resolve

FLEET = paths.ROOT / "fleet.yaml"


@pytest.fixture
def siblings(tmp_path: Path) -> Path:
    """A folder with the blueprint `talk`."""
    shutil.copytree(paths.PATTERNS / "aggregated", tmp_path / "talk")
    return tmp_path


def test_on_this_machine_it_is_what_was_deployed(siblings: Path) -> None:
    fleet, blueprint = load_fleet(FLEET), inputs.read_blueprint(siblings / "talk")
    environment = registry.load_target("local").assume_environment(blueprint.value, fleet.value, cores=2)
    environment = environment.model_copy(update={"data_folder": str(siblings / ".blueprint" / "batch")})
    assert deployments.find("talk", siblings, fleet, environment) is None, "it is not up"
    deployment = kinds.get_for(blueprint).resolve(blueprint, fleet, environment)
    (siblings / ".blueprint" / "talk").mkdir(parents=True)
    (siblings / ".blueprint" / "talk" / "deployment.json").write_text(deployment.model_dump_json())
    found = deployments.find("talk", siblings, fleet, environment)
    assert found is not None
    assert (found.kind, found.url, found.models) == ("serving", deployment.url, ("tiny",))
    assert found.usd_h is None, "this machine has no price"
    assert found.slo == deployment.slo
    assert len(found.metrics_urls) == 2
    assert found.metrics["ttft"] == "vllm:time_to_first_token_seconds"


def test_a_check_contacts_nothing(siblings: Path) -> None:
    fleet, blueprint = load_fleet(FLEET), inputs.read_blueprint(siblings / "talk")
    environment = registry.load_target("local").assume_environment(blueprint.value, fleet.value, cores=2)
    found = deployments.find("talk", siblings, fleet, environment)
    assert found is not None
    assert (found.kind, found.models) == ("", ())


def test_on_aws_the_rest_is_known_of_a_blueprint_that_is_here(siblings: Path) -> None:
    fleet, blueprint = load_fleet(FLEET), inputs.read_blueprint(siblings / "talk")
    environment = registry.load_target("eks").assume_environment(blueprint.value, fleet.value, cores=2)
    stranger = deployments.find("other", siblings, fleet, environment)
    assert stranger is not None
    assert (stranger.kind, stranger.url, stranger.usd_h) == ("", "http://other.serving.svc:8080", None)
    found = deployments.find("talk", siblings, fleet, environment)
    assert found is not None
    assert (found.kind, found.url) == ("serving", "http://talk.serving.svc:8080")
    assert found.metrics_urls == ("http://talk-engines.serving.svc:8000/metrics",)
    assert found.models == ("tiny",)


def test_who_calls_a_deployment_is_found_before_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(batches.FLEET)
    fleet = load_fleet(tmp_path / "fleet.yaml")
    for shape in batches.SHAPES:
        target = "ecs" if shape in batches.ON_ECS else "eks"
        plan = planning.plan_offline(batches.write_blueprint(tmp_path, shape), fleet.path, target)
        file = tmp_path / "rendered" / shape / target / f"{target}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(plan.text)
    assert rendered.find_callers("chat", fleet, tmp_path, "ecs") == ["catalog"]
    name = fleet.value.name
    own = {f'fleet: "{name}"': f"fleet: '{name}' # ours", "kind: batch": "kind: 'batch' # still"}
    for text, edited in own.items():
        assert f"\n{text}\n" in file.read_text()
        file.write_text(file.read_text().replace(f"\n{text}\n", f"\n{edited}\n"))
    assert rendered.read_kind(file, fleet.value) == "batch", "comments and quotes of a user change nothing"
    assert rendered.find_callers("chat", fleet, tmp_path, "eks") == ["pods"]
    assert rendered.find_callers("catalog", fleet, tmp_path, "ecs") == []


def test_who_calls_a_deployment_on_this_machine_is_found_by_its_url(tmp_path: Path) -> None:
    urls = {"chat": "", "batch": "http://127.0.0.1:1234", "other": "http://127.0.0.1:12345"}
    directory = DeploymentDir("chat", tmp_path)
    for name, url in urls.items():
        own = {"url": "http://127.0.0.1:1234", "endpoint_url": ""} if name == "chat" else {"endpoint_url": url}
        deployment = resolve(tmp_path / name, MINIMAL).model_copy(update=own)
        file = DeploymentDir(name, tmp_path).data / deployments.FILE
        file.parent.mkdir(parents=True)
        file.write_text(deployment.model_dump_json())
    assert deploy.find_callers(directory) == ["batch"]
