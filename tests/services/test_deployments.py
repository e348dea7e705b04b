"""Deployments by name: on this machine what runs, on AWS an address that follows from the name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llm_serving import paths
from llm_serving.fleet.loading import load_fleet
from llm_serving.services import deployments, inputs, kinds
from llm_serving.targets import registry

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
