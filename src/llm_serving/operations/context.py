"""The context in which a fleet's stacks are planned, applied and destroyed: on AWS, or on the embedded AWS.

On AWS the working folders are the synthesized ones, as they are: each command that is shown can be run again by hand.
For the embedded AWS they are a copy in the run's own folder with an override beside each stack.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from llm_serving import console, processes
from llm_serving.aws import session, state_bucket
from llm_serving.aws.preflight import identity
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet
from llm_serving.fleet.pool import Orchestrator
from llm_serving.rehearsal import emulator, override
from llm_serving.settings.document import Document
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.terraform import runner, stack_folder, state, synthesis
from llm_serving.terraform.runner import Terraform
from llm_serving.terraform.state import StackState

FOLDER = Path(".blueprint")

_NO_STATE_FILE = "no_state_override.tf.json"
"""Beside a stack whose state bucket does not exist yet: a plan can be shown before anything is created."""

_EMULATOR_OUT = "cdktf.out"
"""Stacks for the embedded AWS, in the fleet's data directory; the state of each beside it."""

_UNWRITTEN_STATE = "errored.tfstate"
"""Source: hashicorp/terraform 1.11, internal/backend/local/backend_apply.go, stateWriteBackedUpError."""

_PLACEHOLDER_BACKEND = {"local": {"path": "not-yet.tfstate"}}

_STATE_TIMEOUT_S = 300.0
"""Reading a state takes seconds; from a bucket on another continent a little longer."""


@dataclass(frozen=True)
class FleetContext:
    """Stacks that Terraform is initialized for, and the AWS session to apply them with."""

    document: Document[Fleet]
    data: Path
    """The fleet's data directory: logs, checkpoints, Terraform's own configuration where it needs one."""

    folders: Mapping[str, Path]
    """The working folder of each stack, in the order to apply them in."""

    program: Terraform
    aws: AwsSession
    account: str

    @property
    def fleet(self) -> Fleet:
        return self.document.value

    @property
    def endpoint(self) -> str | None:
        """URL of the embedded AWS; None for AWS itself."""
        return self.aws.emulator

    @property
    def cloud_name(self) -> str:
        return "the embedded AWS" if self.endpoint else "AWS"

    @property
    def waves(self) -> list[dict[str, Path]]:
        """Stacks that can be applied side by side, wave by wave: first those that others need."""
        return synthesis.split_waves(self.folders)


def build_data_path(fleet: Fleet) -> Path:
    """Return the fleet's data directory. No deployment's name has a dot, so no deployment has the same."""
    return FOLDER / f"fleet.{fleet.name}"


def open_session(region: str) -> AwsSession:
    """Return the session of the user's own environment, which may lead to an embedded AWS that the user started."""
    aws = AwsSession.from_environment(region)
    endpoint = aws.find_endpoint("ec2")
    return aws.with_emulator(endpoint) if endpoint and emulator.is_reachable(endpoint) else aws


@contextmanager
def use_emulator(document: Document[Fleet]) -> Iterator[AwsSession]:
    """Start an embedded AWS for the time of the block."""
    region, data_folder = document.value.region, build_data_path(document.value)
    with emulator.start(data_folder) as endpoint:
        for folder in (data_folder / _EMULATOR_OUT / "stacks").glob("*"):
            state.delete(folder)  # of an embedded AWS that has ended, with its resources
        yield emulator.open_session(endpoint, region, is_rehearsal=True)


@contextmanager
def use_aws_or_emulator(document: Document[Fleet], *, rehearse: bool | None) -> Iterator[AwsSession]:
    """Yield a session of AWS, or of an embedded AWS for the time of the block.

    Args:
        rehearse: None starts an embedded AWS where there are no credentials; False never does.

    Raises:
        Unavailable: there are no credentials, and the fleet file names an account or a bucket of its state.
    """
    aws = open_session(document.value.region)
    if rehearse is None and not aws.has_credentials():
        _require_no_account(document)
        console.err.print(f"No AWS credentials found: {emulator.EMULATION_NOTE}", markup=False)
        rehearse = True
    if not rehearse or aws.is_emulated:
        yield aws
        return
    with use_emulator(document) as own:
        yield own


def _require_no_account(document: Document[Fleet]) -> None:
    """Refuse a rehearsal that nobody asked for: a pipeline whose login is broken would end well, by another account."""
    fleet = document.value
    fields = {"account": fleet.account, "state": "" if fleet.state == "local" else fleet.state}
    for name, value in fields.items():
        if value:
            reason = "it is in an AWS account, and no AWS credentials were found"
            fix = f"sign in (`aws sso login`), or run blueprint rehearse --fleet {console.shorten_path(document.path)}"
            raise Unavailable(str(document.build_mistake((name,), value, reason, fix)))


@contextmanager
def lock_fleet(fleet: Fleet) -> Iterator[Path]:
    """Lock the fleet against a second command in this directory, and yield its data directory.

    Raises:
        Unavailable: another command is running.
    """
    data_folder = build_data_path(fleet)
    data_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with processes.lock_file(
        data_folder / ".busy", f"another command is running on the fleet {fleet.name} in this directory"
    ):
        yield data_folder


def prepare(document: Document[Fleet], aws: AwsSession, *, out: Path, requested: Sequence[str] = ()) -> FleetContext:
    """Synthesize, find Terraform, and initialize it for every stack; change nothing in the account.

    Args:
        out: directory of the stacks for AWS; those for the embedded AWS go to the fleet's data directory.
        requested: names of stacks that must exist.

    Raises:
        InputError: the fleet is invalid or for another account, or there is no stack of such a name.
        CheckFailed: a local state is of another account or region.
        Unavailable: Terraform is missing, or AWS cannot be asked.
    """
    data_folder = build_data_path(document.value)
    account = identity.require_account(document, aws).account
    with console.step(f"Synthesize the stacks of {console.shorten_path(document.path)}") as step:
        folders = synthesis.synthesize(document, data_folder / _EMULATOR_OUT if aws.is_emulated else out)
        step.note = f"{console.shorten_path(next(iter(folders.values())).parent)}/{{{','.join(folders)}}}/cdk.tf.json"
    if unknown := [name for name in requested if name not in folders]:
        names = ", ".join(unknown)
        raise InputError(f"stacks: {names}: this fleet has no such stack. Fix: write one of {', '.join(folders)}.")
    program = stack_folder.find_terraform(folders, data_folder, aws)
    context = FleetContext(document, data_folder, folders, program, aws, account)
    initialize_stacks(context)
    return context


def initialize_stacks(context: FleetContext) -> None:
    """Initialize Terraform for every stack; again once the bucket of its state was created.

    Raises:
        CheckFailed: a local state is of another account or region, or is not in the bucket that the file names.
    """
    if not context.endpoint:
        _require_written_states(context)
        if context.fleet.state == "local":
            _require_own_states(context)
        else:
            _require_moved_states(context)
    state_exists = _has_state_store(context)
    backends = {}
    for name, folder in context.folders.items():
        backend = override.build_backend(folder, context.endpoint) if state_exists else _PLACEHOLDER_BACKEND
        backends[name] = json.dumps(backend, sort_keys=True)
        if context.endpoint:
            override.write_override(folder, context.fleet, context.endpoint, backend=backend, keep_data=True)
        elif state_exists:
            (folder / _NO_STATE_FILE).unlink(missing_ok=True)
        else:
            (folder / _NO_STATE_FILE).write_text(json.dumps({"terraform": {"backend": backend}}, indent=2))
    with console.step(f"Initialize {context.program} in {', '.join(context.folders)}") as step:
        for name, folder in context.folders.items():
            stack_folder.initialize(context.program, {name: folder}, backend=backends[name])
        step.note = (
            f"provider from {context.program.provider_from}; state {_describe_state(context.fleet, state_exists)}"
        )


def _require_written_states(context: FleetContext) -> None:
    """Require that each state is where it belongs; Terraform leaves one in the folder that it could not write there.

    So it is where credentials end in an apply. Another apply would know nothing of what that one made.
    """
    for folder in map(console.shorten_path, context.folders.values()):
        if Path(folder, _UNWRITTEN_STATE).is_file():
            push = console.quote_command(
                (context.program.program, f"-chdir={folder}", "state", "push", _UNWRITTEN_STATE)
            )
            raise CheckFailed(
                f"{folder}/{_UNWRITTEN_STATE}: an earlier command could not write this state where it belongs. "
                f"Nothing was changed. Fix: run {push}, then delete the file."
            )


def _require_own_states(context: FleetContext) -> None:
    """Require that local states are of this account and region; a bucket of states is of its own.

    Terraform finds nothing in another one, takes all for deleted, and forgets what goes on to cost.
    """
    own_place = (context.fleet.region, context.account)
    for name, stack_state in read_states(context).items():
        for region, account in stack_state.places - {own_place}:
            raise CheckFailed(
                f"{context.document.path}: the local state of the stack {name} has resources in {region} of the "
                f"account {account}, and this is {own_place[0]} of {own_place[1]}: Terraform would take them for "
                f"deleted. Nothing was changed. Fix: sign in to {account} with region: {region}, or give another fleet "
                "another name."
            )


def _require_moved_states(context: FleetContext) -> None:
    """Require that no local state has what a bucket should: the file may have said `state: local` before.

    Terraform finds nothing in the bucket, and makes everything a second time.
    """
    texts = dict(_read_local_states(context))
    for name, folder in context.folders.items():
        if not state.parse_state(name, texts.get(name, "")).resources:
            continue
        file = _format_local_state(context, name)
        terraform = (context.program.program, f"-chdir={console.shorten_path(folder)}")
        init = console.quote_command((*terraform, "init", "-reconfigure"))
        push = console.quote_command((*terraform, "state", "push", str(file)))
        raise CheckFailed(
            f"{context.document.path}: state: {context.fleet.state}: the stack {name} is in "
            f"{console.shorten_path(file)}, and Terraform would make it a second time. Nothing was changed. Fix: run "
            f"`blueprint state make`, then {init}, then {push}, then delete the file."
        )


def _has_state_store(context: FleetContext) -> bool:
    """Return whether the bucket of the state exists; a local file needs none."""
    if context.fleet.state == "local":
        return True
    with session.translate_errors():
        caller_arn = context.aws.client("sts").get_caller_identity()["Arn"]
        bucket = state_bucket.resolve_state_bucket(context.fleet, caller_arn)
        return state_bucket.inspect_bucket(context.aws, bucket).exists


def _describe_state(fleet: Fleet, state_exists: bool) -> str:
    if fleet.state == "local":
        return "in a local file"
    return f"in {fleet.state}" if state_exists else f"not stored yet: the bucket of {fleet.state} does not exist"


def read_states(context: FleetContext, stack_names: Sequence[str] | None = None) -> dict[str, StackState]:
    """Return the state of each stack; empty where nothing was applied."""
    folders = {name: folder for name, folder in context.folders.items() if stack_names is None or name in stack_names}
    if context.fleet.state == "local":
        # Terraform would read the same file, and the provider's 700 MB before it, to check their hash.
        paths = {
            name: folder / override.build_backend(folder, context.endpoint)["local"]["path"]
            for name, folder in folders.items()
        }
        texts = {name: path.read_text(encoding="utf-8") if path.is_file() else "" for name, path in paths.items()}
        return {name: state.parse_state(name, text) for name, text in texts.items()}
    results = runner.run(context.program, folders, ("state", "pull"), timeout_s=_STATE_TIMEOUT_S)
    return {name: state.parse_state(name, result.output) for name, result in results.items()}


def find_orphan_stacks(context: FleetContext, among: Collection[str] | None = None) -> list[str]:
    """Return the fleet's stacks with resources that its file does not define, such as another orchestrator's."""
    read = _read_s3_states if context.fleet.state != "local" else _read_local_states
    others = ((name, text) for name, text in read(context, among) if name not in context.folders)
    return [name for name, text in others if state.parse_state(name, text).resources]


def find_orphan_clusters(context: FleetContext) -> list[str]:
    """Return the orchestrators whose cluster is still there, and that the fleet's file has no more."""
    return find_orphan_stacks(context, get_args(Orchestrator))


def _read_local_states(context: FleetContext, among: Collection[str] | None = None) -> Iterator[tuple[str, str]]:
    if context.endpoint:
        parent = next(iter(context.folders.values())).parent
        files = {file.parent.name: file for file in sorted(parent.glob("*/terraform.tfstate"))}
    else:
        prefix, suffix = _format_local_state(context, "*").name.split("*")
        states = sorted(context.document.path.absolute().parent.glob(f"{prefix}*{suffix}"))
        files = {file.name.removeprefix(prefix).removesuffix(suffix): file for file in states}
    for name, file in files.items():
        if among is None or name in among:
            yield name, file.read_text()


def _format_local_state(context: FleetContext, name: str) -> Path:
    """Return the file of a stack's local state on AWS, as `infra.stacks.base` names it."""
    return context.document.path.absolute().parent / f"terraform.{context.fleet.name}.{name}.tfstate"


def _read_s3_states(context: FleetContext, among: Collection[str] | None = None) -> Iterator[tuple[str, str]]:
    if not _has_state_store(context):
        return
    bucket, _, prefix = context.fleet.state.removeprefix("s3://").partition("/")
    folder = "/".join(filter(None, [prefix.strip("/"), context.fleet.name])) + "/"
    s3 = context.aws.client("s3")
    with session.translate_errors():
        for entry in session.list_all(s3, "list_objects_v2", "Contents", Bucket=bucket, Prefix=folder):
            name = entry["Key"].removeprefix(folder).removesuffix(".tfstate")
            is_own = entry["Key"].endswith(".tfstate") and "/" not in name  # below may be another fleet's, or anybody's
            if is_own and (among is None or name in among):
                yield name, s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read().decode()
