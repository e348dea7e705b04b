"""Where a fleet is worked on: an embedded AWS of its own begins with nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.operations import context
from llm_serving.operations.context import FleetContext
from llm_serving.services import inputs
from llm_serving.settings.errors import CheckFailed
from llm_serving.terraform.runner import Terraform
from llm_serving.terraform.state import StackState

FLEET = """\
name: kept
region: us-west-2
zones: us-west-2a
orchestrator: ecs
pools:
  general: {types: g6.xlarge, size: 1}
"""


@pytest.mark.terraform
def test_state_of_an_ended_emulator_is_removed_and_that_of_aws_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    document = inputs.read_fleet(Path("fleet.yaml"))
    emulator_state = context.build_data_path(document.value) / "cdktf.out/stacks/network/terraform.tfstate"
    aws = Path("cdktf.out/stacks/network/terraform.tfstate")
    for state in (emulator_state, aws):
        state.parent.mkdir(parents=True)
        state.write_text("{}")
    with context.use_emulator(document):
        assert not emulator_state.exists()
    assert aws.exists()


def build_context(tmp_path: Path) -> FleetContext:
    """Two stacks with local states, and no Terraform."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    folders = {name: tmp_path / "cdktf.out/stacks" / name for name in ("network", "ecs")}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        backend = {"local": {"path": f"../../../terraform.kept.{name}.tfstate"}}
        (folder / "cdk.tf.json").write_text(json.dumps({"terraform": {"backend": backend}}))
    return FleetContext(
        inputs.read_fleet(file),
        tmp_path,
        folders,
        Terraform("no-such-program", "terraform", "1.10.0", "linux_amd64", {}, "nowhere"),
        AwsSession("us-west-2"),
        "123456789012",
    )


def test_a_state_that_could_not_be_written_is_not_worked_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fleet_context = build_context(tmp_path)
    context._require_written_states(fleet_context)
    Path("cdktf.out/stacks/ecs/errored.tfstate").write_text("{}")
    with pytest.raises(CheckFailed) as error:
        context.initialize_stacks(fleet_context)
    assert str(error.value) == (
        "cdktf.out/stacks/ecs/errored.tfstate: an earlier command could not write this state where it belongs. Nothing "
        "was changed. Fix: run no-such-program -chdir=cdktf.out/stacks/ecs state push errored.tfstate, then delete the file."
    )


@pytest.mark.parametrize(("region", "account"), [("us-west-2", "210987654321"), ("eu-west-1", "123456789012")])
def test_a_local_state_of_another_account_or_region_is_refused(tmp_path: Path, region: str, account: str) -> None:
    fleet_context = build_context(tmp_path)
    file = tmp_path / "terraform.kept.network.tfstate"

    def write_state(*arns: str) -> None:
        instances = [{"attributes": {"arn": arn}} for arn in arns]
        vpc = {"mode": "managed", "type": "aws_vpc", "name": "vpc", "instances": instances}
        shared = [{"attributes": {"arn": "arn:aws:ec2:us-west-2:999999999999:subnet/subnet-1"}}]
        file.write_text(json.dumps({"outputs": {}, "resources": [vpc, {**vpc, "mode": "data", "instances": shared}]}))

    write_state("arn:aws:ec2:us-west-2:123456789012:vpc/vpc-1", "arn:aws:iam::123456789012:role/x", "arn:aws:s3:::x")
    context._require_own_states(fleet_context)
    write_state(f"arn:aws:ec2:{region}:{account}:vpc/vpc-1")
    with pytest.raises(CheckFailed) as error:
        context._require_own_states(fleet_context)
    assert str(error.value) == (
        f"{tmp_path}/fleet.yaml: the local state of the stack network has resources in {region} of the account "
        f"{account}, and this is us-west-2 of 123456789012: Terraform would take them for deleted. Nothing was changed. "
        f"Fix: sign in to {account} with region: {region}, or give another fleet another name."
    )


def test_a_bucket_takes_the_place_of_local_states_only_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet_context = build_context(tmp_path)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{FLEET}state: s3://my-states/fleets\n")
    fleet_context = replace(fleet_context, document=inputs.read_fleet(file))
    instance = {"mode": "managed", "type": "aws_vpc", "name": "vpc", "instances": [{}]}
    destroyed = json.dumps({"outputs": {}, "resources": []})
    for name in ("network", "serving-other"):
        Path(f"terraform.kept.{name}.tfstate").write_text(json.dumps({"outputs": {}, "resources": [instance]}))
    with pytest.raises(CheckFailed) as error:
        context.initialize_stacks(fleet_context)
    folder = "no-such-program -chdir=cdktf.out/stacks/network"
    assert str(error.value) == (
        f"{file}: state: s3://my-states/fleets: the stack network is in terraform.kept.network.tfstate, and Terraform "
        f"would make it a second time. Nothing was changed. Fix: run `blueprint state make`, then {folder} init "
        f"-reconfigure, then {folder} state push {tmp_path}/terraform.kept.network.tfstate, then delete the file."
    )
    Path("terraform.kept.network.tfstate").write_text(destroyed)
    context._require_moved_states(fleet_context)


def test_a_local_state_is_read_without_terraform(tmp_path: Path) -> None:
    fleet_context = build_context(tmp_path)
    instance = {"mode": "managed", "type": "aws_vpc", "name": "vpc", "instances": [{}]}
    recorded = {"outputs": {"vpc_id": {"value": "vpc-1"}}, "resources": [instance, {**instance, "mode": "data"}]}
    (tmp_path / "terraform.kept.network.tfstate").write_text(json.dumps(recorded))
    assert context.read_states(fleet_context) == {
        "network": StackState({"vpc_id": "vpc-1"}, ("aws_vpc.vpc",)),
        "ecs": StackState({}, ()),
    }
    assert list(context.read_states(fleet_context, ["ecs"])) == ["ecs"]


def test_a_cluster_that_the_file_has_no_more_is_found_by_its_state(tmp_path: Path) -> None:
    fleet_context = build_context(tmp_path)
    instance = {"mode": "managed", "type": "aws_eks_cluster", "name": "cluster", "instances": [{}]}
    for name in ("eks", "ecs", "serving-other"):
        file = tmp_path / f"terraform.kept.{name}.tfstate"
        file.write_text(json.dumps({"outputs": {}, "resources": [instance]}))
    assert context.find_orphan_clusters(fleet_context) == ["eks"]
    assert context.find_orphan_stacks(fleet_context) == ["eks", "serving-other"]
    (tmp_path / "terraform.kept.eks.tfstate").write_text(json.dumps({"outputs": {}, "resources": []}))
    assert context.find_orphan_clusters(fleet_context) == []
