"""Where a fleet is worked on: an embedded AWS of its own begins with nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_serving.operations import context
from llm_serving.workloads import inputs

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
