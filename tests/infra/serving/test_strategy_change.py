"""A service whose capacity providers change, planned by the real AWS provider from a state that is written down here.

No AWS answers: the plan refreshes nothing, and the provider asks for nothing to compare the two.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.constructs.task_service import FORCE_VARIABLE
from llm_serving.terraform import provider_reattach, runner

pytestmark = pytest.mark.terraform

ARN = "arn:aws:ecs:us-west-2:123456789012:service/fabric/single-worker"
OFFLINE = {
    "region": "us-west-2",
    "access_key": "x",
    "secret_key": "x",
    "skip_credentials_validation": True,
    "skip_requesting_account_id": True,
    "skip_metadata_api_check": "true",
}


def build_config(stack: dict[str, Any]) -> dict[str, Any]:
    """The stack's variable and one service of it, in so far as the strategy goes."""
    service = stack["resource"]["aws_ecs_service"]["worker-0"]
    settings = {key: service[key] for key in ("name", "capacity_provider_strategy", "force_new_deployment")}
    literals = {"cluster": "fabric", "task_definition": "worker:1", "desired_count": 1}
    return {
        "terraform": {"required_providers": {"aws": stack["terraform"]["required_providers"]["aws"]}},
        "provider": {"aws": OFFLINE},
        "variable": stack["variable"],
        "resource": {"aws_ecs_service": {"worker": {**settings, **literals}}},
    }


def build_state(config: dict[str, Any]) -> dict[str, Any]:
    """The state of the same service in another zone."""
    service = config["resource"]["aws_ecs_service"]["worker"]
    strategy = [{"base": 0, "capacity_provider": "cp-fabric-elsewhere", "weight": 1}]
    attributes = {
        **{key: service[key] for key in ("name", "cluster", "task_definition", "desired_count")},
        "id": ARN,
        "scheduling_strategy": "REPLICA",
        "capacity_provider_strategy": strategy,
        "force_new_deployment": True,
    }
    instance = {"schema_version": 1, "attributes": attributes}
    resource = {
        "mode": "managed",
        "type": "aws_ecs_service",
        "name": "worker",
        "provider": 'provider["registry.terraform.io/hashicorp/aws"]',
        "instances": [instance],
    }
    return {"version": 4, "terraform_version": "1.10.0", "serial": 1, "lineage": "x", "resources": [resource]}


@pytest.fixture(scope="module")
def run_terraform(stacks: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Terraform in an initialized folder with the service's stack and state."""
    folder = tmp_path_factory.mktemp("change")
    config = build_config(stacks["single"])
    (folder / "main.tf.json").write_text(json.dumps(config))
    (folder / "terraform.tfstate").write_text(json.dumps(build_state(config)))
    program = runner.find_terraform(folder, config["terraform"]["required_providers"]["aws"]["version"])
    environment = {**os.environ, **program.environment}

    def run(*words: str) -> str:
        command = [program.program, *words]
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run("init", "-input=false")
    with provider_reattach.start_provider(folder, program.environment) as reattached:
        environment |= reattached
        yield run


def plan_change(run_terraform: Callable[..., str], *arguments: str) -> tuple[list[str], list[list[str]]]:
    """What Terraform does to the service, and for which attributes it replaces it."""
    run_terraform("plan", "-refresh=false", "-input=false", "-out=plan", *arguments)
    [change] = json.loads(run_terraform("show", "-json", "plan"))["resource_changes"]
    return change["change"]["actions"], [path[:1] for path in change["change"].get("replace_paths", [])]


def test_tasks_move_and_the_service_stays(run_terraform: Callable[..., str]) -> None:
    assert plan_change(run_terraform) == (["update"], [])


def test_without_the_variable_the_provider_replaces_the_service(run_terraform: Callable[..., str]) -> None:
    actions, attributes = plan_change(run_terraform, f"-var={FORCE_VARIABLE}=false")
    assert actions == ["delete", "create"]
    assert attributes and all(path == ["capacity_provider_strategy"] for path in attributes)
