"""Plans stacks with a mocked AWS provider: the real one's schemas and its checks of values, and no AWS behind it.

Every resource is planned, also those that the embedded AWS does not support. Terraform makes up what AWS would answer,
except for the values in mocks/, whose form the provider checks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from llm_serving import console
from llm_serving.settings.units import format_count
from llm_serving.terraform import runner, stack_folder

MOCKS = Path(__file__).with_name("mocks")
"""Answers of the mocked provider where the real one checks the form of a value."""

_TIMEOUT_S = 600.0


def plan(stacks: Mapping[str, Path], *, program: runner.Terraform, data: Path) -> dict[str, int]:
    """Plan all stacks in one run of `terraform test`.

    Args:
        stacks: folder of each synthesized stack, by a name of a-z, 0-9, - and _.
        data: folder of the run; the log is mocked/test.log in it.

    Returns:
        how many resources were planned, by stack.

    Raises:
        CommandFailed: one cannot be planned; the message names the resource and the reason.
    """
    folder = data / "mocked"
    if folder.exists():
        shutil.rmtree(folder)
    for name, stack in stacks.items():
        shutil.copytree(
            stack,
            folder / name,
            ignore=shutil.ignore_patterns("*_override.tf.json", ".terraform*", "*.log", "*.jsonl", "tmp"),
        )
    (folder / "main.tf.json").write_text("{}")
    (folder / "stacks.tftest.hcl").write_text(_render_test(stacks))
    with console.step(f"Plan {format_count(len(stacks), 'stack')} with a mocked AWS provider") as step:
        runner.run(program, {"mocked": folder}, ("init", "-input=false"))
        runner.run(program, {"mocked": folder}, ("test",), timeout_s=_TIMEOUT_S)
        planned = {name: stack_folder.count_resources(folder / name) for name in stacks}
        step.note = f"{sum(planned.values())} resources"
    return planned


def _render_test(stacks: Mapping[str, Path]) -> str:
    """Return Terraform's test file, which plans each stack as a module."""
    blocks = (
        f'run "{name}" {{\n  command = plan\n  module {{\n    source = "./{name}"\n  }}\n'
        f"{_render_subnet_overrides(folder)}}}\n"
        for name, folder in stacks.items()
    )
    return "\n".join((f'mock_provider "aws" {{\n  source = {json.dumps(str(MOCKS))}\n}}\n', *blocks))


def _render_subnet_overrides(folder: Path) -> str:
    """Return answers for existing subnets: their stack checks that they match the fleet."""
    lookups = stack_folder.read_stack(folder).get("data", {})
    vpc = lookups.get("aws_vpc", {}).get("vpc", {}).get("id")
    return "".join(
        f"  override_data {{\n    target = data.aws_subnet.{name}\n    values = {json.dumps(values)}\n  }}\n"
        for name, subnet in lookups.get("aws_subnet", {}).items()
        if vpc
        for values in [{"vpc_id": vpc, "availability_zone": name.removeprefix("private-"), "id": subnet["id"]}]
    )
