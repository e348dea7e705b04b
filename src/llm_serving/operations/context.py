"""Where a fleet's stacks are planned, applied and destroyed: AWS, or the embedded AWS that stands in for it.

On AWS the working folders are the synthesized ones, as they are: each command that is shown can be run again by hand.
For the embedded AWS they are a copy in the run's own folder with an override beside each stack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving import console, processes
from llm_serving.aws import session as clients
from llm_serving.aws import state_bucket as buckets
from llm_serving.aws.session import Aws
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator, stacks
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.terraform import runner
from llm_serving.terraform.runner import Terraform

FOLDER = Path(".blueprint")

_NO_STATE = "no_state_override.tf.json"
"""Beside a stack whose state bucket is not there yet: a plan can be shown before anything is made."""

_REHEARSED = "cdktf.out"
"""Stacks for the embedded AWS, in the fleet's own folder; the state of each beside it."""

_NOWHERE = {"local": {"path": "not-yet.tfstate"}}

_QUICK_S = 300.0
"""What asks the state alone takes seconds; a bucket in another continent a little longer."""


@dataclass(frozen=True)
class Site:
    """Stacks ready for Terraform, and who is to make them."""

    document: Document[Fleet]
    data: Path
    """The run's folder: logs, the journal, Terraform's own configuration where it needs one."""

    folders: Mapping[str, Path]
    """The working folder of each stack, in the order to apply them in."""

    program: Terraform
    endpoint: str | None
    """URL of the embedded AWS; None is AWS itself."""

    account: str

    @property
    def fleet(self) -> Fleet:
        """What the stacks rent."""
        return self.document.value

    @property
    def at(self) -> str:
        """Who makes them, for people."""
        return "the embedded AWS" if self.endpoint else "AWS"

    @property
    def waves(self) -> list[dict[str, Path]]:
        """Stacks that may be worked on side by side, wave by wave, first those that others look things up in."""
        return stacks.waves(self.folders)


def data_of(fleet: Fleet) -> Path:
    """The fleet's own folder, where the user stands. No deployment's name has a dot, so it is nobody else's."""
    return FOLDER / f"fleet.{fleet.name}"


def endpoint_here() -> str | None:
    """The embedded AWS that the environment leads to; None where that is AWS, or somebody's else."""
    named = Aws.endpoint("ec2")
    return named if named and emulator.answers(named) else None


@contextmanager
def rehearsed(document: Document[Fleet]) -> Iterator[str]:
    """An embedded AWS of one's own, which every AWS client of this process and its children takes for AWS meanwhile."""
    region, data = document.value.region, data_of(document.value)
    with (
        emulator.running(data) as endpoint,
        processes.lent(emulator.client_environment(endpoint, region)),
    ):
        for folder in (data / _REHEARSED / "stacks").glob("*"):
            stacks.forget(folder)  # what a run that was broken off had made went with its AWS
        yield endpoint


@contextmanager
def somewhere(document: Document[Fleet], *, rehearse: bool | None) -> Iterator[bool]:
    """AWS, or an embedded AWS for the time of the block; yields whether it is the latter.

    Args:
        rehearse: None leaves it to whether there are credentials; False leaves a lack of them to whoever asks AWS.
    """
    if rehearse is None and not signed_in(document.value.region):
        console.err.print(f"No AWS credentials were found: {emulator.EMULATED}", markup=False)
        rehearse = True
    if not rehearse or endpoint_here():
        yield False
        return
    with rehearsed(document):
        yield True


def signed_in(region: str) -> bool:
    """Whether AWS's own ways lead to credentials: environment, profile, role of the machine; whether they are good is
    for AWS to say."""
    with clients.refusals():
        return Aws(region).has_credentials()


@contextmanager
def alone(fleet: Fleet) -> Iterator[Path]:
    """Keeps a second command off the same fleet in this folder; the lock goes with the process, however it ends.

    Raises:
        Unavailable: one is at work.
    """
    data = data_of(fleet)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with processes.locked(data / ".busy", f"another command is at work on the fleet {fleet.name} from here"):
        yield data


def prepare(document: Document[Fleet], *, out: Path, named: Sequence[str] = ()) -> Site:
    """Synthesizes, finds Terraform, and starts it on every stack; changes nothing in the account.

    Args:
        out: where stacks for AWS are synthesized; those for the embedded AWS go to the run's folder.
        named: stacks that the user named; only whether they are there is looked at.

    Raises:
        InputError: the fleet cannot be made, or a stack's name is wrong.
        Unavailable: Terraform is missing, or AWS cannot be asked.
    """
    from llm_serving.aws.preflight import identity

    fleet, endpoint = document.value, endpoint_here()
    data = data_of(fleet)
    account = identity.whoami(Aws(fleet.region)).account
    with console.step(f"Synthesize the stacks of {console.near(document.path)}") as step:
        from infra import main  # starts Node: only where something is synthesized

        folders = main.synthesize(document, data / _REHEARSED if endpoint else out)
        step.note = f"{console.near(next(iter(folders.values())).parent)}/{{{','.join(folders)}}}/cdk.tf.json"
    if unknown := [name for name in named if name not in folders]:
        raise InputError(f"there is no stack {', '.join(unknown)}. Write one of {', '.join(folders)}")
    program = stacks.find_terraform(folders, data, embedded=endpoint is not None)
    site = Site(document, data, folders, program, endpoint, account)
    connect(site)
    return site


def connect(site: Site) -> None:
    """Starts Terraform on every stack, with its state where it lies now; again after the state's bucket was made."""
    there = _state_there(site.fleet)
    kept = {}
    for name, folder in site.folders.items():
        backend = _backend(folder, site.endpoint) if there else _NOWHERE
        kept[name] = json.dumps(backend, sort_keys=True)
        if site.endpoint:
            stacks.point_at(folder, site.fleet, site.endpoint, state=backend, keep_data=True)
        else:
            _override(folder, None if there else _NOWHERE)
    with console.step(f"Start {site.program} on {', '.join(site.folders)}") as step:
        for name, folder in site.folders.items():
            stacks.initialize(site.program, {name: folder}, state=kept[name])
        step.note = f"provider from {site.program.provider_from}; state {_state_words(site.fleet, there)}"


def _state_there(fleet: Fleet) -> bool:
    """Whether the state's place is there; a local file needs none."""
    if fleet.state == "local":
        return True
    aws = Aws(fleet.region)
    with clients.refusals():
        return buckets.look(aws, buckets.place(fleet, aws.client("sts").get_caller_identity()["Arn"])).exists


def _state_words(fleet: Fleet, there: bool) -> str:
    if fleet.state == "local":
        return "in a file beside the fleet's"
    return f"in {fleet.state}" if there else f"nowhere yet: the bucket of {fleet.state} is not there"


def _override(folder: Path, backend: Mapping[str, Any] | None) -> None:
    file = folder / _NO_STATE
    if backend is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(json.dumps({"terraform": {"backend": backend}}, indent=2))


def _backend(folder: Path, endpoint: str | None) -> dict[str, Any]:
    """The backend of a stack; for the embedded AWS, led to its S3, or to a file in the stack's folder."""
    written: dict[str, Any] = json.loads((folder / "cdk.tf.json").read_text())["terraform"]["backend"]
    if endpoint is None:
        return written
    if "s3" not in written:
        return {"local": {"path": "terraform.tfstate"}}
    led = {
        "endpoints": {"s3": endpoint},
        "use_path_style": True,
        "access_key": emulator.KEY,
        "secret_key": emulator.KEY,
        "skip_credentials_validation": True,
        "skip_requesting_account_id": True,
        "skip_metadata_api_check": True,
        "skip_region_validation": True,
    }
    return {"s3": {**written["s3"], **led}}


class State(NamedTuple):
    """What Terraform has written down of a stack."""

    outputs: Mapping[str, Any]
    resources: tuple[str, ...]
    """Addresses of what it manages, as in `aws_vpc.vpc`."""


def states(site: Site, only: Sequence[str] | None = None) -> dict[str, State]:
    """The state of each stack; empty where nothing was applied.

    Args:
        only: names of the stacks to ask about; all where None.
    """
    folders = {name: folder for name, folder in site.folders.items() if only is None or name in only}
    ended = runner.run(site.program, folders, ("state", "pull"), timeout_s=_QUICK_S)
    return {name: _state(name, end.output) for name, end in ended.items()}


def _state(name: str, text: str) -> State:
    if "{" not in text:
        return State({}, ())
    try:
        found = json.loads(text[text.index("{") :])
        return State(
            {key: output["value"] for key, output in found["outputs"].items()},
            tuple(
                f"{one['type']}.{one['name']}"
                for one in found["resources"]
                if one["mode"] == "managed" and one["instances"]
            ),
        )
    except (ValueError, KeyError) as error:
        raise Unavailable(f"{name}: Terraform's state cannot be read: {error}") from None


def strangers(site: Site) -> list[str]:
    """Stacks of the same fleet whose state holds something, and that its file does not make: by another orchestrator.

    Raises:
        Unavailable: AWS refuses, or does not answer.
    """
    texts = _kept_in_s3(site) if site.fleet.state != "local" else _kept_here(site)
    return [name for name, text in texts if name not in site.folders and _state(name, text).resources]


def _kept_here(site: Site) -> Iterator[tuple[str, str]]:
    if site.endpoint:
        beside = next(iter(site.folders.values())).parent
        for file in sorted(beside.glob("*/terraform.tfstate")):
            yield file.parent.name, file.read_text()
        return
    start, end = f"terraform.{site.fleet.name}.", ".tfstate"
    for file in sorted(site.document.path.absolute().parent.glob(f"{start}*{end}")):
        yield file.name.removeprefix(start).removesuffix(end), file.read_text()


def _kept_in_s3(site: Site) -> Iterator[tuple[str, str]]:
    if not _state_there(site.fleet):
        return
    bucket, _, prefix = site.fleet.state.removeprefix("s3://").partition("/")
    folder = "/".join(filter(None, [prefix.strip("/"), site.fleet.name])) + "/"
    s3 = Aws(site.fleet.region).client("s3")
    with clients.refusals():
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder):
            for one in page.get("Contents", ()):
                name = one["Key"].removeprefix(folder)
                if name.endswith(".tfstate"):
                    text = s3.get_object(Bucket=bucket, Key=one["Key"])["Body"].read().decode()
                    yield name.removesuffix(".tfstate"), text
