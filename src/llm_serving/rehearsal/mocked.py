"""Plans stacks with a mocked AWS provider: the real one's schemas and its checks of values, and no AWS behind it.

Every resource is planned, those too that the embedded AWS does not hold. What AWS would answer is made up, but for the
values in mocks/, whose form the provider checks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from llm_serving import console
from llm_serving.terraform import runner

MOCKS = Path(__file__).with_name("mocks")
"""What the mocked provider answers where the real one checks the form of a value."""

_TIMEOUT_S = 600.0


def plan(stacks: Mapping[str, Path], *, program: runner.Terraform, data: Path) -> dict[str, int]:
    """Plans all stacks in one run of `terraform test`.

    Args:
        stacks: folder of each synthesized stack, by a name of a-z, 0-9, - and _.
        data: folder of the run; the log is mocked/test.log in it.

    Returns:
        how many resources were planned, by stack.

    Raises:
        CommandFailed: one cannot be planned; the log says which, and why.
    """
    folder = data / "mocked"
    if folder.exists():
        shutil.rmtree(folder)
    for name, stack in stacks.items():
        shutil.copytree(
            stack, folder / name, ignore=shutil.ignore_patterns("*_override.tf.json", ".terraform*", "*.log")
        )
    (folder / "main.tf.json").write_text("{}")
    (folder / "stacks.tftest.hcl").write_text(_render_test(stacks))
    with console.step(f"Plan {_format_count(stacks)} with a mocked AWS provider") as step:
        runner.run(program, {"mocked": folder}, ("init", "-input=false"))
        runner.run(program, {"mocked": folder}, ("test",), timeout_s=_TIMEOUT_S)
        planned = {name: count_resources(folder / name) for name in stacks}
        step.note = f"{sum(planned.values())} resources"
    return planned


def count_resources(folder: Path) -> int:
    """How many resources a synthesized stack has."""
    resources = json.loads((folder / "cdk.tf.json").read_text()).get("resource", {})
    return sum(len(by_name) for by_name in resources.values())


def _render_test(stacks: Mapping[str, Path]) -> str:
    """Terraform's test file: each stack is a module that is planned."""
    blocks = (
        f'run "{name}" {{\n  command = plan\n  module {{\n    source = "./{name}"\n  }}\n{_render_subnet_overrides(folder)}}}\n'
        for name, folder in stacks.items()
    )
    return "\n".join((f'mock_provider "aws" {{\n  source = {json.dumps(str(MOCKS))}\n}}\n', *blocks))


def _render_subnet_overrides(folder: Path) -> str:
    """Answers for subnets that are there already: their stack checks whether they are what the fleet takes them for."""
    lookups = json.loads((folder / "cdk.tf.json").read_text()).get("data", {})
    vpc = lookups.get("aws_vpc", {}).get("vpc", {}).get("id")
    return "".join(
        f"  override_data {{\n    target = data.aws_subnet.{name}\n    values = {json.dumps(values)}\n  }}\n"
        for name, subnet in lookups.get("aws_subnet", {}).items()
        if vpc
        for values in [{"vpc_id": vpc, "availability_zone": name.removeprefix("private-"), "id": subnet["id"]}]
    )


def _format_count(stacks: Mapping[str, Path]) -> str:
    return f"{len(stacks)} stack{'s' * (len(stacks) != 1)}"
