"""An ECS fleet whose pool loses a zone, and that finds the log group of an earlier one; by the real Terraform."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.cli import main
from llm_serving.rehearsal import emulator
from tests.infra import deployments

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(900)]

REGION = "us-west-2"
TWO_ZONES, ONE_ZONE = f"[{REGION}a, {REGION}b]", f"[{REGION}b]"
FLEET = """\
name: moved
region: us-west-2
zones: [us-west-2a, us-west-2b]
orchestrator: ecs
network: {flow_logs: off}  # the lifecycle of their bucket takes the provider a minute
pools:
  general: {types: g6.xlarge, size: 0..2, zones: ZONES}
"""
PROVIDERS = {zone: f"cp-moved-general-g6-{zone}-od" for zone in "ab"}
FARGATE = {"FARGATE", "FARGATE_SPOT"}
LATE_GROUP = "/aws/ecs/containerinsights/moved/performance"


def write_fleet(zones: str) -> None:
    Path("fleet.yaml").write_text(FLEET.replace("ZONES", zones))


@pytest.fixture(scope="module")
def applied(emulator_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The working folder of an applied fleet with two zones, after one whose log was written to after its destroy."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.build_client_env(emulator_endpoint, REGION).items():
            patch.setenv(name, value)
        patch.chdir(tmp_path_factory.mktemp("moved"))
        deployments.synthesize_here(patch)
        logs = AwsSession(REGION).client("logs")
        logs.create_log_group(logGroupName=LATE_GROUP)
        logs.create_log_stream(logGroupName=LATE_GROUP, logStreamName="late")
        write_fleet(TWO_ZONES)
        assert main.run(["fleet", "apply", "network", "ecs", "--yes"]) == 0
        yield
        assert main.run(["fleet", "destroy", "--yes", "--with-data"]) == 0
        assert not logs.describe_log_groups(logGroupNamePrefix=LATE_GROUP)["logGroups"]


def list_events(kind: str) -> list[str]:
    """What the last apply of the ECS stack did, in order: `TYPE.NAME ACTION`."""
    lines = Path(".blueprint/fleet.moved/cdktf.out/stacks/ecs/apply.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        f"{entry['hook']['resource']['resource_type']} {entry['hook']['action']}"
        for entry in entries
        if entry["type"] == kind
    ]


def list_providers(ecs: Any) -> set[str]:
    return set(ecs.describe_clusters(clusters=["moved"])["clusters"][0]["capacityProviders"])


def test_a_log_group_that_was_written_to_after_a_destroy_is_taken_over(applied: None) -> None:
    logs = AwsSession(REGION).client("logs")
    [group] = logs.describe_log_groups(logGroupNamePrefix=LATE_GROUP)["logGroups"]
    assert (group["retentionInDays"], "kmsKeyId" in group) == (90, True)
    assert logs.describe_log_streams(logGroupName=LATE_GROUP)["logStreams"][0]["logStreamName"] == "late"


def test_a_zone_leaves_the_cluster_before_its_capacity_provider_is_deleted(applied: None) -> None:
    ecs = AwsSession(REGION).client("ecs")
    assert list_providers(ecs) == {*PROVIDERS.values(), *FARGATE}
    write_fleet(ONE_ZONE)
    assert main.run(["fleet", "apply", "ecs", "--yes"]) == 0
    done = list_events("apply_complete")
    order = [
        done.index(step)
        for step in (
            "aws_ecs_cluster_capacity_providers update",
            "aws_ecs_capacity_provider delete",
            "aws_autoscaling_group delete",
        )
    ]
    assert order == sorted(order)
    assert list_providers(ecs) == {PROVIDERS["b"], *FARGATE}


def test_a_zone_that_the_fleet_has_no_more_leaves_the_network_after_the_cluster(
    applied: None, capsys: pytest.CaptureFixture[str]
) -> None:
    ec2 = AwsSession(REGION).client("ec2")
    own = [{"Name": "tag:fleet", "Values": ["moved"]}]
    write_fleet(ONE_ZONE)
    file = Path("fleet.yaml")
    file.write_text(file.read_text().replace(TWO_ZONES, ONE_ZONE))
    assert main.run(["fleet", "apply", "network", "ecs", "--yes"]) == 0
    steps = [line for line in capsys.readouterr().err.splitlines() if line.startswith("✓ Apply")]
    assert [step.split()[2] for step in steps][-1] == "network"
    zones = {subnet["AvailabilityZone"] for subnet in ec2.describe_subnets(Filters=own)["Subnets"]}
    assert zones == {f"{REGION}b"}


@pytest.mark.parametrize(
    ("lifecycle", "order"),
    [
        ({}, ["provider", "association"]),  # ECS would refuse: the cluster still has it
        ({"lifecycle": {"create_before_destroy": True}}, ["association", "provider"]),
    ],
)
def test_terraform_deletes_first_what_others_still_name_unless_told_otherwise(
    tmp_path: Path, lifecycle: dict[str, object], order: list[str]
) -> None:
    """Terraform alone, with the resource that it brings: the provider's own behaviour has no part in the order."""
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull}

    def apply(providers: int) -> list[str]:
        rows: dict[str, object] = {f"provider{index}": {"input": index, **lifecycle} for index in range(providers)}
        named = [f"${{terraform_data.{name}.id}}" for name in rows]
        config = {"resource": {"terraform_data": {**rows, "association": {"input": named}}}}
        (tmp_path / "main.tf.json").write_text(json.dumps(config))
        for command in (["init", "-input=false"], ["apply", "-auto-approve", "-json"]):
            result = subprocess.run(
                ["terraform", *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
            )
        entries = [json.loads(line) for line in result.stdout.splitlines()]
        return [
            entry["hook"]["resource"]["resource_name"].rstrip("01")
            for entry in entries
            if entry["type"] == "apply_complete"
        ]

    apply(2)
    assert apply(1) == order
