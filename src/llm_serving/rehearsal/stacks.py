"""Applies the stacks to the embedded AWS with the real Terraform and the real AWS provider, and takes them away again.

What is applied is the synthesized stack, byte for byte what AWS would get. Beside it, in a folder of the run's own,
lies an override file, which Terraform reads on top: the provider talks to the embedded AWS, the state stays there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.fleet import names
from llm_serving.fleet.model import ExistingNetwork, Fleet
from llm_serving.rehearsal import emulator, emulator_gaps, inventory, seed_resources
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.terraform import runner

_DESTRUCTIBLE = {"aws_s3_bucket": {"force_destroy": True}, "aws_ecr_repository": {"force_delete": True}}
"""On AWS a bucket or registry with something in it stays; a rehearsal must be able to take its own away."""

_STATE = "terraform.tfstate"


def apply(
    document: Document[Fleet],
    *,
    out: Path,
    data: Path,
    endpoint: str,
    stacks: Sequence[str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Synthesizes to `out`/stacks/STACK/cdk.tf.json and applies; what is there already stays as it is.

    A run that was broken off before is gone on with.

    Args:
        data: folder of the run: Terraform's state, working folders and logs.
        endpoint: URL of the embedded AWS.
        stacks: names of the stacks; all where None.

    Returns:
        each stack's outputs, by the stack's name.

    Raises:
        InputError: the fleet cannot be made, or a stack's name is wrong.
        Unavailable: Terraform is missing, or the embedded AWS stopped answering.
        CommandFailed: Terraform failed.
    """
    folders = prepare(document, out=out, data=data, stacks=stacks)
    return apply_prepared(document, folders, data=data, endpoint=endpoint)


def apply_prepared(
    document: Document[Fleet], folders: Mapping[str, Path], *, data: Path, endpoint: str
) -> dict[str, dict[str, Any]]:
    """The same for stacks that `prepare` made."""
    program = find_terraform(folders, data)
    _reconcile(document.value, data, endpoint)
    for folder in folders.values():
        write_override(folder, document.value, endpoint)
    with console.step(f"Apply {_join_names(folders)} to the embedded AWS with {program}") as step:
        try:
            initialize(program, folders)
            results: dict[str, console.CommandResult] = {}
            for wave in split_waves(folders):
                results |= runner.run(program, wave, _APPLY, on_progress=lambda note: setattr(step, "note", note))
        except console.CommandFailed:
            _require_emulator(endpoint)
            raise
        step.note = ", ".join(f"{name} {_format_counts(result.output)}" for name, result in results.items())
    return {name: runner.read_outputs(folder / _STATE) for name, folder in folders.items()}


_PLAN = ("plan", "-detailed-exitcode", "-input=false")
# The embedded AWS answers at once, and the provider waits 5 to 10 s for many a resource all the same: 40 at a time.
_APPLY = ("apply", "-auto-approve", "-input=false", "-parallelism=40")
_DESTROY = ("destroy", "-auto-approve", "-input=false", "-parallelism=40")


def check_unchanged(
    document: Document[Fleet], *, data: Path, endpoint: str, stacks: Sequence[str] | None = None
) -> None:
    """Plans what is applied once more.

    Raises:
        AnswerIsNo: the plan would change something; the message names what.
    """
    folders = _find_applied(data, stacks)
    program = find_terraform(folders, data)
    with console.step(f"Plan {_join_names(folders)} again: nothing may change") as step:
        try:
            results = runner.run(program, folders, _PLAN, success_codes=(0, 2))
        except console.CommandFailed:
            _require_emulator(endpoint)
            raise
        changes = {name: _parse_changes(result.output) for name, result in results.items() if result.code == 2}
        if changes:
            listing = "\n".join(f"  {name}: {line}" for name, lines in changes.items() for line in lines)
            logs = ", ".join(console.shorten_path(folders[name] / "plan.log") for name in changes)
            raise CheckFailed(
                f"{document.path}: after the apply a plan must be empty, and Terraform would change "
                f"{_join_names(changes)} (all of it in {logs}):\n{listing}"
            )
        step.note = "no changes"


def destroy(document: Document[Fleet], *, data: Path, endpoint: str, stacks: Sequence[str] | None = None) -> None:
    """Takes the stacks away, with everything that is in their buckets; does nothing where nothing is applied.

    Raises:
        Unavailable: Terraform is missing, or the embedded AWS stopped answering.
        CommandFailed: Terraform failed.
    """
    _reconcile(document.value, data, endpoint)
    folders = {name: folder for name, folder in _find_applied(data, stacks).items() if (folder / _STATE).is_file()}
    if not folders:
        return
    for folder in folders.values():
        write_override(folder, document.value, endpoint)
    program = find_terraform(folders, data)
    with console.step(f"Destroy {_join_names(folders)} in the embedded AWS") as step:
        try:
            initialize(program, folders)
            for wave in reversed(split_waves(folders)):
                runner.run(program, wave, _DESTROY, on_progress=lambda note: setattr(step, "note", note))
        except console.CommandFailed:
            _require_emulator(endpoint)
            raise
        for folder in folders.values():
            delete_state(folder)
        step.note = "done"


def check_nothing_left(document: Document[Fleet], *, endpoint: str) -> None:
    """Asks the embedded AWS itself whether anything of the fleet is still there.

    Raises:
        AnswerIsNo: something is; the message names it.
    """
    fleet = document.value
    if remaining := inventory.list_resources(endpoint, fleet.region, fleet.name):
        listing = "\n".join(f"  {resource}" for resource in remaining)
        raise CheckFailed(f"{document.path}: the destroy left {len(remaining)} of the fleet's resources:\n{listing}")


def prepare(document: Document[Fleet], *, out: Path, data: Path, stacks: Sequence[str] | None) -> dict[str, Path]:
    """Synthesizes to `out`, and fills each stack's working folder in `data`; returns those by the stack's name."""
    with console.step(f"Synthesize the stacks of {console.shorten_path(document.path)}") as step:
        from infra import main  # starts Node: only where something is synthesized

        synthesized = main.synthesize(document, out)
        step.note = ", ".join(console.shorten_path(folder / "cdk.tf.json") for folder in synthesized.values())
    if unknown := set(stacks or ()) - set(synthesized):
        raise InputError(f"there is no stack {_join_names(sorted(unknown))}. Fix: one of {', '.join(synthesized)}")
    folders = {name: data / "stacks" / name for name in stacks or synthesized}
    for name, folder in folders.items():
        shutil.copytree(synthesized[name], folder, dirs_exist_ok=True)
    return folders


def _find_applied(data: Path, stacks: Sequence[str] | None) -> dict[str, Path]:
    """Working folders of the stacks that `prepare` made earlier."""
    folders = sorted(path.parent for path in (data / "stacks").glob("*/cdk.tf.json"))
    return {folder.name: folder for folder in folders if stacks is None or folder.name in stacks}


OVERRIDE = "rehearsal_override.tf.json"
"""What takes a stack to the embedded AWS; Terraform reads it on top of the stack."""


def write_override(
    folder: Path, fleet: Fleet, endpoint: str, *, state: Mapping[str, Any] | None = None, keep_data: bool = False
) -> None:
    """Writes the override beside a stack.

    Args:
        state: the backend that keeps the state; a file in the stack's folder where left out.
        keep_data: a bucket or registry with something in it stays, as on AWS.
    """
    stack = read_stack(folder)
    resources: dict[str, Any] = emulator_gaps.build_override(stack)
    for kind, settings in () if keep_data else _DESTRUCTIBLE.items():
        if kind in stack.get("resource", {}):
            resources[kind] = dict.fromkeys(stack["resource"][kind], settings)
    override: dict[str, Any] = {
        "terraform": {"backend": state or {"local": {"path": _STATE}}},
        "provider": {"aws": _PROVIDER},
    }
    if resources:
        override["resource"] = resources
    lookups = stack.get("data", {})
    if isinstance(fleet.network, ExistingNetwork) and "aws_vpc" in lookups:
        override["data"] = seed_resources.seed_network(fleet, fleet.network, endpoint)
    if "aws_ssm_parameter" in lookups:
        override.setdefault("data", {}).update(seed_resources.build_image_override(lookups["aws_ssm_parameter"]))
    (folder / _PROFILE).write_text(f"[default]\nendpoint_url = {endpoint}\n")
    (folder / OVERRIDE).write_text(json.dumps(override, indent=2))


def read_stack(folder: Path) -> dict[str, Any]:
    """The synthesized stack in a working folder."""
    stack: dict[str, Any] = json.loads((folder / "cdk.tf.json").read_text())
    return stack


def split_waves(folders: Mapping[str, Path]) -> list[dict[str, Path]]:
    """Stacks that may be applied side by side, wave by wave: first those that others look things up in."""
    base = {name: folder for name, folder in folders.items() if name in names.BASE_STACKS}
    dependent = {name: folder for name, folder in folders.items() if name not in names.BASE_STACKS}
    return [wave for wave in (base, dependent) if wave]


_PROFILE = "rehearsal.aws.ini"
"""The AWS configuration beside the override: where the embedded AWS is, and nothing of the user's. The provider's own
`endpoints` would say the same; checking that block takes it 2 s of CPU, two or three times in every run of Terraform
(measured with 5.100.0: it writes the block's 280 settings out again for each of them)."""

_PROVIDER = {
    "s3_use_path_style": True,
    "access_key": emulator.DUMMY_KEY,
    "secret_key": emulator.DUMMY_KEY,
    "profile": "default",
    "shared_config_files": [_PROFILE],
    "shared_credentials_files": ["/dev/null"],
    "skip_metadata_api_check": True,
    # The provider's own 25 would wait for many minutes on an embedded AWS that has ended.
    "max_retries": 3,
}
"""Settings that take the AWS provider to the embedded AWS, and shut it off from the user's own AWS settings."""


def find_terraform(folders: Mapping[str, Path], data: Path, *, emulated: bool = True) -> runner.Terraform:
    """The program, and the provider in the version that the stacks ask for; see `terraform.find`.

    Args:
        embedded: for the embedded AWS: endpoints in the user's environment are emptied, which would win over its own,
            and the provider is started once a run.
    """
    program = runner.find_terraform(data, _read_provider_version(next(iter(folders.values()))))
    cleared = {
        name: "" for name, value in os.environ.items() if emulated and value and _ENDPOINT_VARIABLE.fullmatch(name)
    }
    return replace(program, environment={**program.environment, **cleared}, reuse_provider=emulated)


_ENDPOINT_VARIABLE = re.compile(r"AWS_ENDPOINT_URL\w*|AWS_IGNORE_CONFIGURED_ENDPOINT_URLS|(TF_)?AWS_[A-Z0-9]+_ENDPOINT")
"""Environment variables by which the AWS provider is told of an endpoint, or to leave out those of a configuration."""


def _read_provider_version(folder: Path) -> str:
    stack = json.loads((folder / "cdk.tf.json").read_text())
    return str(stack["terraform"]["required_providers"]["aws"]["version"])


def initialize(program: runner.Terraform, folders: Mapping[str, Path], *, state: str = "") -> None:
    """One after the other: Terraform's plugin cache bears no two at once. Does nothing where it is done.

    Args:
        state: where the state is kept: a change of place is a new start, and moves nothing.
    """
    for name, folder in folders.items():
        marker = folder / ".terraform" / "initialized"
        signature = f"{program}, provider {_read_provider_version(folder)} from {program.provider_from}, state {state}"
        if not marker.is_file() or marker.read_text() != signature:
            runner.run(program, {name: folder}, ("init", "-input=false", "-reconfigure"))
            marker.write_text(signature)


def _reconcile(fleet: Fleet, data: Path, endpoint: str) -> None:
    """Makes what is in the embedded AWS and what Terraform knows of it agree, after a run that was broken off.

    A Terraform that was killed may have made a resource and not have written it down; nothing could then make it again,
    nor destroy it. And an embedded AWS that has ended took its resources along. Both begin anew.

    Raises:
        Unavailable: the embedded AWS does not answer.
    """
    _require_emulator(endpoint)
    folders = _find_applied(data, None)
    states = {name: folder / _STATE for name, folder in folders.items() if (folder / _STATE).is_file()}
    known_ids = {identity for state in states.values() for identity in _list_managed_ids(state)}
    existing = inventory.list_resources(endpoint, fleet.region, fleet.name)
    unknown = [resource for resource in existing if resource.id not in known_ids]
    if unknown:
        console.err.print(
            f"  a run that was broken off left {len(unknown)} resource(s) that Terraform does not know "
            f"({unknown[0]}{', …' if unknown[1:] else ''}): the embedded AWS is emptied",
            markup=False,
        )
        emulator.reset(endpoint)
    if unknown or not existing:
        for folder in folders.values():
            delete_state(folder)


def delete_state(folder: Path) -> None:
    """Removes what Terraform knows of a stack, whose AWS has ended."""
    for state in folder.glob(f"{_STATE}*"):
        state.unlink()


def list_applied_ids(folder: Path) -> list[str]:
    """The id of each resource that was applied from a working folder."""
    return _list_managed_ids(folder / _STATE)


def _list_managed_ids(state: Path) -> list[str]:
    """The id of each resource in a state; none where a killed Terraform left half a file."""
    try:
        resources = json.loads(state.read_text())["resources"]
        return [
            instance["attributes"]["id"]
            for resource in resources
            if resource["mode"] == "managed"
            for instance in resource["instances"]
        ]
    except (ValueError, KeyError):
        return []


def _require_emulator(endpoint: str) -> None:
    """Says so where the embedded AWS is gone: it is then the cause of whatever failed."""
    if not emulator.is_reachable(endpoint):
        raise Unavailable(f"the embedded AWS at {endpoint} does not answer. Run the command again: it goes on")


_CHANGE = re.compile(r"^  # (\S+ (?:will|must) be .+)$", re.MULTILINE)
_COUNTS = re.compile(r"Resources: (\d+) added, (\d+) changed, (\d+) destroyed")


def _parse_changes(plan: str) -> list[str]:
    return _CHANGE.findall(plan) or ["its outputs"]


def _format_counts(output: str) -> str:
    match = _COUNTS.search(output)
    return f"+{match[1]} ~{match[2]} -{match[3]}" if match else "done"


def _join_names(items: Mapping[str, Any] | Sequence[str]) -> str:
    *leading, last = items
    return f"{', '.join(leading)} and {last}" if leading else last
