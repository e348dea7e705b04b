"""Finds Terraform (OpenTofu works too) and its AWS provider on this machine, and runs it on stacks side by side.

Terraform's own ways come first: its command-line configuration, its plugin cache, the mirror folders that it looks into
by itself, and its registry. Only where the user has configured nothing, and a mirror lies where Terraform would not
look, a configuration that names the mirror is written into the run's own folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_serving import console
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.terraform import provider_reattach

BINARY = "TERRAFORM_BINARY_NAME"
"""Environment variable that names the program; the one that CDKTF's own command line reads."""

MIRROR = "BLUEPRINT_PROVIDER_MIRROR"
"""Environment variable that names a provider mirror: a folder with registry.terraform.io/hashicorp/aws in it."""

LEAST_VERSION = (1, 10)
"""First with a lock file beside a state in S3, of Terraform and of OpenTofu alike."""

_REGISTRIES = {"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}
_SYSTEM = ("/opt", "/usr/local/share", "/usr/share", "/usr/local/lib", "/var/lib", "/srv")
_PREFIXES = (*_SYSTEM, "~/.terraform.d", "~/.local/share", "~")
_QUICK = {} if "GOGC" in os.environ else {"GOGC": "400"}
"""Go's garbage collector run less often: 30% less CPU for 180 MB more memory, measured with provider 5.100.0 on apply,
plan and destroy of 49 resources. Most of the work is reading the provider's 1,500 schemas."""

_HOW_TO_GET = (
    "Install Terraform (https://developer.hashicorp.com/terraform/install) or OpenTofu "
    f"(https://opentofu.org/docs/intro/install), or name the program in {BINARY}"
)


@dataclass(frozen=True)
class Terraform:
    """A program and the settings to run it with."""

    program: str
    kind: str
    """`terraform` or `tofu`."""

    version: str
    platform: str
    """As in linux_amd64."""

    environment: Mapping[str, str]
    """Printed with each command; holds nothing that is the same without it."""

    provider_from: str
    """Where the AWS provider comes from, for people."""

    attached: bool = False
    """Whether a run of it has one process of the provider; see `attached`."""

    def __str__(self) -> str:
        return f"{'OpenTofu' if self.kind == 'tofu' else 'Terraform'} {self.version}"


def find(data: Path, provider_version: str) -> Terraform:
    """Looks for the program, then for the AWS provider of that version.

    Args:
        data: folder for a configuration of our own and for the plugin cache, where they are needed.

    Raises:
        Unavailable: there is no Terraform, or it is too old.
        InputError: an environment variable names something that is not there.
    """
    program = _program()
    kind, version, platform = _identity(program)
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise Unavailable(f"{program} is version {version}, and the stacks need {least} or later. {_HOW_TO_GET}")
    environment, provider_from = _provider(data, kind, provider_version, platform)
    return Terraform(program, kind, version, platform, {**_QUICK, **_undisturbed(), **environment}, provider_from)


def _program() -> str:
    if named := os.environ.get(BINARY):
        if not shutil.which(named):
            raise InputError(
                f"{BINARY} names {named}, which is no program on this machine. Write its path, or unset it"
            )
        return named
    for name in ("terraform", "tofu"):
        if shutil.which(name):
            return name
    raise Unavailable(f"there is no terraform or tofu on this machine's PATH. {_HOW_TO_GET}")


def _identity(program: str) -> tuple[str, str, str]:
    """Kind, version and platform of a program."""
    try:
        said = subprocess.run([program, "version", "-json"], capture_output=True, text=True, timeout=60, check=True)
        # A warning about the user's configuration may stand before the JSON.
        answer = json.loads(said.stdout[said.stdout.index("{") :])
        version, platform = answer["terraform_version"].partition("-")[0], answer["platform"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        raise Unavailable(f"{program} does not answer `version -json` as Terraform does. {_HOW_TO_GET}") from None
    plain = subprocess.run([program, "version"], capture_output=True, text=True, timeout=60, check=False)
    return "tofu" if "OpenTofu" in plain.stdout else "terraform", version, platform


def _undisturbed() -> dict[str, str]:
    """Settings of the user's other projects that would change what a run does, emptied where they are set."""
    names = (
        "TF_WORKSPACE",
        "TF_DATA_DIR",
        "TF_CLI_ARGS",
        *(key for key in os.environ if key.startswith("TF_CLI_ARGS_")),
    )
    return {name: "" for name in names if os.environ.get(name)}


def _provider(data: Path, kind: str, version: str, platform: str) -> tuple[dict[str, str], str]:
    """Environment that leads Terraform to the AWS provider, and where that is."""
    registry = _REGISTRIES[kind]
    own = _own_configuration(kind)
    named = os.environ.get(MIRROR)
    if named and not _holds(Path(named).expanduser(), registry, version, platform):
        raise InputError(
            f"{MIRROR} names {named}, and {registry}/hashicorp/aws {version} for {platform} is not in it. "
            "Write the folder of a mirror that `terraform providers mirror` made, or unset it"
        )
    if own and not named and "provider_installation" in own.read_text(errors="replace"):
        return {}, f"as {own} says"
    if mirror := Path(named).expanduser() if named else next(_mirrors(registry, version, platform), None):
        return {"TF_CLI_CONFIG_FILE": str(_configuration(data, mirror, registry))}, str(mirror)
    if os.environ.get("TF_PLUGIN_CACHE_DIR") or (own and "plugin_cache_dir" in own.read_text(errors="replace")):
        return {}, registry
    cache = data / "plugin-cache"
    cache.mkdir(parents=True, exist_ok=True)
    # 700 MB once, not once a stack. The second stack has no lock file yet, which is when Terraform asks for the leave.
    return {
        "TF_PLUGIN_CACHE_DIR": str(cache.resolve()),
        "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "true",
    }, registry


def _own_configuration(kind: str) -> Path | None:
    """The user's own command-line configuration, where there is one."""
    named = os.environ.get("TF_CLI_CONFIG_FILE")
    places = [named] if named else ["~/.tofurc", "~/.terraformrc"] if kind == "tofu" else ["~/.terraformrc"]
    return next((path for place in places if (path := Path(place).expanduser()).is_file()), None)


def _mirrors(registry: str, version: str, platform: str) -> Iterator[Path]:
    """Provider mirrors one or two folders below the prefixes that systems keep such things under."""
    for prefix in _PREFIXES:
        for pattern in (registry, f"*/{registry}", f"*/*/{registry}"):
            if pattern.startswith("*/*") and prefix == "~":
                continue  # a home folder is large
            for found in sorted(_matches(Path(prefix).expanduser(), pattern)):
                if _holds(found.parent, registry, version, platform):
                    yield found.parent


def _matches(prefix: Path, pattern: str) -> list[Path]:
    try:
        return list(prefix.glob(pattern))
    except OSError:  # a folder that we may not read holds no mirror for us
        return []


def _holds(mirror: Path, registry: str, version: str, platform: str) -> bool:
    """Whether a mirror has the AWS provider, unpacked or as the registry's own archive."""
    folder = mirror / registry / "hashicorp" / "aws"
    archive = folder / f"terraform-provider-aws_{version}_{platform}.zip"
    return (folder / version / platform).is_dir() or archive.is_file()


def _configuration(data: Path, mirror: Path, registry: str) -> Path:
    """Writes a configuration that takes the AWS provider from the mirror and everything else from its registry."""
    source = json.dumps(f"{registry}/hashicorp/aws")
    path = data / "terraform.rc"
    data.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "provider_installation {\n"
        f"  filesystem_mirror {{\n    path    = {json.dumps(str(mirror.resolve()))}\n    include = [{source}]\n  }}\n"
        f"  direct {{\n    exclude = [{source}]\n  }}\n"
        "}\n"
    )
    return path.resolve()


def run(
    terraform: Terraform,
    folders: Mapping[str, Path],
    arguments: Sequence[str],
    *,
    good: tuple[int, ...] = (0,),
    timeout_s: float = 1200.0,
    grace_s: float = 20.0,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, console.Ended]:
    """Runs one Terraform command on several stacks side by side, each with its log in the stack's folder.

    Args:
        folders: each stack's working folder, by the stack's name.
        grace_s: how long Terraform may take to write down what it made, where this is interrupted.
        note: told how far the stacks are, whenever that changes.

    Raises:
        CommandFailed: it failed for one of them.
    """
    verb = arguments[0]
    logs = {name: folder / f"{verb}.log" for name, folder in folders.items()}
    for log in logs.values():
        log.unlink(missing_ok=True)
    with contextlib.ExitStack() as providers:
        commands = [
            console.Command(
                [terraform.program, f"-chdir={console.near(folder)}", *arguments, "-no-color"],
                logs[name],
                environment=terraform.environment,
                lent=providers.enter_context(provider_reattach.provider(folder, terraform.environment))
                if terraform.attached and verb in _ASKING
                else {},
                good=good,
            )
            for name, folder in folders.items()
        ]
        ended = console.run_together(
            commands,
            timeout_s=timeout_s,
            watch=lambda: note(_progress(logs)),
            grace_s=grace_s,
            # Providers that it starts are in the same group. They leave an interrupt to Terraform, and die at once of
            # anything else: what they were making would be made, and nobody would know.
            stop_by=signal.SIGINT,
        )
    return dict(zip(folders, ended, strict=True))


_ASKING = ("plan", "apply", "destroy", "test")
"""Commands that ask the provider more than once."""


_BEGUN = re.compile(r"^(\S+): (?:Creating|Modifying|Destroying)\.\.\.", re.MULTILINE)
_DONE = re.compile(r"^(\S+): (?:Creation|Modifications|Destruction) complete", re.MULTILINE)
_PLANNED = re.compile(r"^Plan: (\d+) to add, (\d+) to change, (\d+) to destroy", re.MULTILINE)


def _progress(logs: Mapping[str, Path]) -> str:
    """How far each stack is, as in `network 12/49, storage 14/18 (aws_s3_bucket_lifecycle_configuration.models)`."""
    return ", ".join(f"{name} {far}" for name, log in logs.items() if (far := _far(_text(log))))


def _far(log: str) -> str:
    planned, begun = _PLANNED.search(log), _BEGUN.findall(log)
    if not planned and not begun:
        return ""
    done = set(_DONE.findall(log))
    waiting = [address for address in begun if address not in done]
    # A plan that was kept is applied without being shown again, so nothing says how much it is in all.
    count = f"{len(done)}/{sum(map(int, planned.groups()))}" if planned else f"{len(done)} done"
    return f"{count} ({waiting[0]})" if waiting else count


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.is_file() else ""


def outputs(state: Path) -> dict[str, Any]:
    """A stack's outputs, as its state has them."""
    return {name: output["value"] for name, output in json.loads(state.read_text())["outputs"].items()}
