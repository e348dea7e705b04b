"""Routers that ask for keys: their role reads the keys' secret, and nothing else of Secrets Manager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra import stack_rules
from llm_serving.fleet import loading
from tests.infra import deployments
from tests.infra.deployments import Stack
from tests.infra.serving.conftest import write_blueprint

FLEET = """\
name: fabric
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: both
pools:
  tasks: {types: g6e.2xlarge, size: 0..8, orchestrator: ecs}
  pods: {types: g6e.2xlarge, size: 0..8, orchestrator: eks}
"""
KMS_KEY = "arn:aws:kms:us-west-2:123456789012:key/12345678-1234-1234-1234-123456789012"
BLUEPRINT = """\
pattern: aggregated
model: Qwen/Qwen3-0.6B
roles: {{worker: {{pool: {pool}}}}}
auth: {{keys: {{secret: llm/keys, key: "{key}"}}, requests_per_minute: {{search: 60}}}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys-fleet") / "fleet.yaml"
    file.write_text(FLEET)
    return file


@pytest.fixture(scope="module")
def rendered(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file with the stack's data, by target."""
    folder, files = tmp_path_factory.mktemp("keys"), {}
    for target, pool in (("ecs", "tasks"), ("eks", "pods")):
        blueprint = write_blueprint(folder, f"on-{target}", BLUEPRINT.format(pool=pool, key=KMS_KEY))
        values = deployments.render(folder, blueprint, fleet, target)
        files[target] = values.with_name("stack.yaml") if target == "eks" else values
    return files


@pytest.fixture(scope="module")
def stacks(rendered: dict[str, Path], fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stack]:
    files = {f"serving-on-{target}": file for target, file in rendered.items()}
    out = deployments.synthesize(tmp_path_factory.mktemp("keys-stacks"), fleet, files)
    return {target: deployments.read_stack(out, f"serving-on-{target}") for target in rendered}


@pytest.mark.parametrize(("target", "purpose"), [("ecs", "on-ecs-route"), ("eks", "on-eks-route")])
def test_the_router_s_role_reads_the_secret_alone_and_decrypts_with_its_key(
    stacks: dict[str, Stack], target: str, purpose: str
) -> None:
    found: dict[str, list[tuple[list[str], object]]] = {}
    for address, statement in stack_rules.list_statements(stacks[target]):
        if statement.get("Sid") in ("Secrets", "SecretKeys") and "-start-" not in address:
            found.setdefault(address.split(".")[1], []).append((statement["Action"], statement["Resource"]))
    [(role, statements)] = found.items()
    assert role.startswith(purpose)
    assert statements == [
        (["secretsmanager:GetSecretValue"], ["${data.aws_secretsmanager_secret.secret-0.arn}"]),
        (["kms:Decrypt"], [KMS_KEY]),
    ]
    assert stacks[target]["data"]["aws_secretsmanager_secret"]["secret-0"]["name"] == "llm/keys"


@pytest.mark.parametrize("target", ["ecs", "eks"])
def test_the_stack_follows_the_rules_of_all_stacks(stacks: dict[str, Stack], fleet: Path, target: str) -> None:
    assert list(stack_rules.find_violations(loading.load_fleet(fleet).value, {target: stacks[target]})) == []


def test_on_eks_the_stack_is_the_role_of_the_chart_s_service_account(stacks: dict[str, Stack]) -> None:
    resources = stacks["eks"]["resource"]
    assert sorted(resources) == ["aws_eks_pod_identity_association", "aws_iam_role", "aws_iam_role_policy"]
    association = resources["aws_eks_pod_identity_association"]["router-identity"]
    assert (association["namespace"], association["service_account"]) == ("serving", "on-eks-router")


def test_on_ecs_the_test_request_has_no_key_and_asks_whether_the_router_is_ready(stacks: dict[str, Stack]) -> None:
    [container] = json.loads(stacks["ecs"]["resource"]["aws_ecs_task_definition"]["ask-task"]["container_definitions"])
    assert container["command"] == ["http://on-ecs-router.fabric.internal:8080/readiness", "", "120"]


def test_on_ecs_the_vpc_reads_what_teams_used(stacks: dict[str, Stack]) -> None:
    rule = stacks["ecs"]["resource"]["aws_vpc_security_group_ingress_rule"]["router-usage-from-vpc"]
    assert (rule["from_port"], rule["to_port"], rule["ip_protocol"]) == (9092, 9092, "tcp")
