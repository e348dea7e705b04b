"""Where a fleet is worked on: an embedded AWS of its own begins with nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.operations import context
from llm_serving.services import inputs
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


def test_a_local_state_is_read_without_terraform(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    folders = {name: tmp_path / "cdktf.out/stacks" / name for name in ("network", "ecs")}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        backend = {"local": {"path": f"../../../terraform.kept.{name}.tfstate"}}
        (folder / "cdk.tf.json").write_text(json.dumps({"terraform": {"backend": backend}}))
    instance = {"mode": "managed", "type": "aws_vpc", "name": "vpc", "instances": [{}]}
    recorded = {"outputs": {"vpc_id": {"value": "vpc-1"}}, "resources": [instance, {**instance, "mode": "data"}]}
    (tmp_path / "terraform.kept.network.tfstate").write_text(json.dumps(recorded))
    fleet_context = context.FleetContext(
        inputs.read_fleet(file),
        tmp_path,
        folders,
        Terraform("no-such-program", "terraform", "1.10.0", "linux_amd64", {}, "nowhere"),
        AwsSession("us-west-2"),
        "123456789012",
    )
    assert context.read_states(fleet_context) == {
        "network": StackState({"vpc_id": "vpc-1"}, ("aws_vpc.vpc",)),
        "ecs": StackState({}, ()),
    }
    assert list(context.read_states(fleet_context, ["ecs"])) == ["ecs"]
