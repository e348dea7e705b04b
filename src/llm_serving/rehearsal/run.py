"""A whole rehearsal of a fleet: each stack planned with a mocked provider, applied, planned again and destroyed."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import console, processes
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, override, stacks
from llm_serving.settings.document import Document
from llm_serving.settings.units import format_count
from llm_serving.terraform import runner, stack_folder, state


@dataclass(frozen=True)
class StackResult:
    """How many of a stack's resources were tested in which way."""

    resources: int
    mocked: int
    """Planned by the real Terraform with a mocked provider."""

    applied: int | None
    """Applied to the embedded AWS, planned again without a change, and destroyed; None where only planned."""

    not_held: dict[str, int]
    """Resources that the embedded AWS does not support, by kind; see `override.REASONS`."""


@dataclass(frozen=True)
class Rehearsal:
    """What the rehearsal of one fleet did; times in seconds."""

    fleet: str
    terraform: str
    provider_from: str
    stacks: dict[str, StackResult]
    outputs: dict[str, dict[str, Any]]
    """Outputs of the applied stacks, by stack."""

    times: dict[str, float]


def plan(documents: Sequence[Document[Fleet]], *, out: Path, data: Path) -> list[Rehearsal]:
    """Synthesize the fleets, several in a folder each, and plan all their stacks with a mocked provider, in one go.

    Raises:
        CommandFailed: one cannot be planned.
    """
    with _lock_data(data):
        start = time.monotonic()
        several = len(documents) > 1
        folders_by_fleet: dict[str, Mapping[str, Path]] = {}
        for document in documents:
            name = document.value.name
            folders_by_fleet[name] = stacks.prepare(
                document, out=out / name if several else out, data=data / name, stacks=None
            )
        folders = {
            f"{fleet}_{name}": folder
            for fleet, stack_folders in folders_by_fleet.items()
            for name, folder in stack_folders.items()
        }
        synthesized = time.monotonic()
        program = stack_folder.find_terraform(folders, data)
        planned = plan_mocked(folders, program=program, data=data)
        times = {"synth_s": round(synthesized - start, 1), "mocked_s": round(time.monotonic() - synthesized, 1)}
    return [
        Rehearsal(
            fleet,
            str(program),
            program.provider_from,
            {name: _build_result(folder, planned[f"{fleet}_{name}"], None) for name, folder in stack_folders.items()},
            {},
            times,
        )
        for fleet, stack_folders in folders_by_fleet.items()
    ]


def rehearse(
    document: Document[Fleet], *, out: Path, data: Path, stack_names: Sequence[str] | None = None
) -> Rehearsal:
    """Plan with a mocked provider; apply to an embedded AWS, plan again, destroy, and check that nothing is left.

    Raises:
        CheckFailed: the second plan is not empty, or a resource is left after the destroy.
        CommandFailed: Terraform failed.
        Unavailable: another process rehearses the same fleet.
    """
    with _lock_data(data), emulator.start(data) as endpoint:
        folders = stacks.prepare(document, out=out, data=data, stacks=stack_names)
        times = [time.monotonic()]
        program = stack_folder.find_terraform(folders, data)
        planned = plan_mocked(folders, program=program, data=data)
        times.append(time.monotonic())
        outputs = stacks.apply(document, folders, program, endpoint)
        times.append(time.monotonic())
        stacks.check_unchanged(document, folders, program, endpoint)
        times.append(time.monotonic())
        stack_results = {
            name: _build_result(folder, planned[name], state.count_managed(folder)) for name, folder in folders.items()
        }
        stacks.destroy(folders, program, endpoint)
        times.append(time.monotonic())
        stacks.check_nothing_left(document, endpoint=endpoint)
    durations = [round(end - start, 1) for start, end in itertools.pairwise(times)]
    times_by_step = dict(zip(("mocked_s", "apply_s", "plan_s", "destroy_s"), durations, strict=True))
    return Rehearsal(document.value.name, str(program), program.provider_from, stack_results, outputs, times_by_step)


def _build_result(folder: Path, planned: int, applied: int | None) -> StackResult:
    return StackResult(
        stack_folder.count_resources(folder),
        planned,
        applied,
        override.count_gaps(stack_folder.read_stack(folder)),
    )


@contextlib.contextmanager
def _lock_data(data: Path) -> Iterator[None]:
    lock = data.with_name(f"{data.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with processes.lock_file(lock, f"another process rehearses in {console.shorten_path(data)}"):
        if data.exists():
            shutil.rmtree(data)  # of an earlier rehearsal, whose embedded AWS has ended
        yield


MOCKS = Path(__file__).with_name("mocks")
"""Answers of the mocked provider where the real one checks the form of a value."""

_TIMEOUT_S = 600.0


def plan_mocked(stacks: Mapping[str, Path], *, program: runner.Terraform, data: Path) -> dict[str, int]:
    """Plan all stacks with a mocked provider in one run of `terraform test`; return how many resources, by stack.

    It has the real one's schemas and checks of values. Resources that the embedded AWS does not support are planned
    too. Terraform makes up what AWS would answer, except for the values in mocks/, whose form the provider checks.
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
    blocks = []
    for name, subnet in lookups.get("aws_subnet", {}).items() if vpc else ():
        values = {"vpc_id": vpc, "availability_zone": name.removeprefix("private-"), "id": subnet["id"]}
        blocks.append(
            f"  override_data {{\n    target = data.aws_subnet.{name}\n    values = {json.dumps(values)}\n  }}\n"
        )
    return "".join(blocks)
