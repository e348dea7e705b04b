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
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_serving import console
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.terraform import events, provider_reattach
from llm_serving.terraform.events import Event, EventLog
from llm_serving.terraform.plan import Plan, parse_plan

BINARY_VARIABLE = "TERRAFORM_BINARY_NAME"
"""Environment variable that names the program; the one that CDKTF's own command line reads."""

MIRROR_VARIABLE = "BLUEPRINT_PROVIDER_MIRROR"
"""Environment variable that names a provider mirror: a folder with registry.terraform.io/hashicorp/aws in it."""

MIN_VERSION = (1, 10)
"""First with a lock file beside a state in S3, of Terraform and of OpenTofu alike."""

_KINDS = {"Terraform": "terraform", "OpenTofu": "tofu"}
"""By the name that the program prints."""

_VERSION = re.compile(r"^(Terraform|OpenTofu) v(\d+\.\d+\.\d+)\S*\non (\S+)$", re.MULTILINE)
"""Its name, its version without what follows a hyphen, and the platform."""

_REGISTRIES = {"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}
_SYSTEM_PREFIXES = ("/opt", "/usr/local/share", "/usr/share", "/usr/local/lib", "/var/lib", "/srv")
_PREFIXES = (*_SYSTEM_PREFIXES, "~/.terraform.d", "~/.local/share", "~")
_GO_ENV = {} if "GOGC" in os.environ else {"GOGC": "400"}
"""Go's garbage collector run less often: 30% less CPU for 180 MB more memory, measured with provider 5.100.0 on apply,
plan and destroy of 49 resources. Most of the work is reading the provider's 1,500 schemas."""

_INSTALL_HINT = (
    "Fix: install Terraform (https://developer.hashicorp.com/terraform/install) or OpenTofu "
    f"(https://opentofu.org/docs/intro/install), or name the program in {BINARY_VARIABLE}."
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

    reuse_provider: bool = False
    """Whether a run of it has one process of the provider; see `provider_reattach`."""

    hidden_environment: Mapping[str, str] = field(default_factory=dict)
    """Set too, and not printed: the AWS session that its commands belong to."""

    def __str__(self) -> str:
        return f"{'OpenTofu' if self.kind == 'tofu' else 'Terraform'} {self.version}"


def find_terraform(data: Path, provider_version: str) -> Terraform:
    """Look for the program, then for the AWS provider of that version.

    Below `data` are a configuration of our own and the plugin cache, where they are needed.

    Raises:
        Unavailable: there is no Terraform, or it is too old.
        InputError: an environment variable names something that is not there.
    """
    program = _find_program()
    kind, version, platform = _read_version(program)
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        raise Unavailable(f"{program}: {version}: the stacks need {minimum} or later. {_INSTALL_HINT}")
    environment, provider_from = _resolve_provider(data, kind, provider_version, platform)
    return Terraform(
        program, kind, version, platform, {**_GO_ENV, **_build_neutral_env(), **environment}, provider_from
    )


def _find_program() -> str:
    if program := os.environ.get(BINARY_VARIABLE):
        if not shutil.which(program):
            raise InputError(
                f"{BINARY_VARIABLE}: {program}: this machine has no such program. Fix: write its path, or unset it."
            )
        return program
    for name in ("terraform", "tofu"):
        if shutil.which(name):
            return name
    raise Unavailable(f"there is no terraform or tofu on this machine's PATH. {_INSTALL_HINT}")


def _read_version(program: str) -> tuple[str, str, str]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run([program, "version"], capture_output=True, text=True, timeout=60, check=True)
        if match := _VERSION.search(result.stdout):
            return _KINDS[match[1]], match[2], match[3]
    raise Unavailable(f"{program} does not answer `version` as Terraform does. {_INSTALL_HINT}")


def _build_neutral_env() -> dict[str, str]:
    """Return settings of the user's other projects that would change a run, emptied where they are set."""
    names = (
        "TF_WORKSPACE",
        "TF_DATA_DIR",
        "TF_CLI_ARGS",
        *(key for key in os.environ if key.startswith("TF_CLI_ARGS_")),
    )
    return {name: "" for name in names if os.environ.get(name)}


def _resolve_provider(data: Path, kind: str, version: str, platform: str) -> tuple[dict[str, str], str]:
    """Return the environment that leads Terraform to the AWS provider, and where that is."""
    registry = _REGISTRIES[kind]
    user_config = _find_user_config(kind)
    configured = os.environ.get(MIRROR_VARIABLE)
    if configured and not _has_provider(Path(configured).expanduser(), registry, version, platform):
        raise InputError(
            f"{MIRROR_VARIABLE}: {configured}: it has no {registry}/hashicorp/aws {version} for {platform}. "
            "Fix: name the folder of a mirror that `terraform providers mirror` made, or unset it."
        )
    if user_config and not configured and "provider_installation" in user_config.read_text(errors="replace"):
        return {}, f"as {user_config} says"
    if (
        mirror := Path(configured).expanduser()
        if configured
        else next(_find_mirrors(registry, version, platform), None)
    ):
        return {"TF_CLI_CONFIG_FILE": str(_write_config(data, mirror, registry))}, str(mirror)
    if os.environ.get("TF_PLUGIN_CACHE_DIR") or (
        user_config and "plugin_cache_dir" in user_config.read_text(errors="replace")
    ):
        return {}, registry
    cache = data / "plugin-cache"
    cache.mkdir(parents=True, exist_ok=True)
    # 700 MB once, not once a stack. The second stack has no lock file yet, which is when Terraform asks for the leave.
    return {
        "TF_PLUGIN_CACHE_DIR": str(cache.resolve()),
        "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE": "true",
    }, registry


def _find_user_config(kind: str) -> Path | None:
    configured = os.environ.get("TF_CLI_CONFIG_FILE")
    candidates = (
        [configured] if configured else ["~/.tofurc", "~/.terraformrc"] if kind == "tofu" else ["~/.terraformrc"]
    )
    return next((path for candidate in candidates if (path := Path(candidate).expanduser()).is_file()), None)


def _find_mirrors(registry: str, version: str, platform: str) -> Iterator[Path]:
    """Yield provider mirrors one or two folders below the prefixes that systems keep such things under."""
    for prefix in _PREFIXES:
        for pattern in (registry, f"*/{registry}", f"*/*/{registry}"):
            if pattern.startswith("*/*") and prefix == "~":
                continue  # a home folder is large
            for path in sorted(_glob_paths(Path(prefix).expanduser(), pattern)):
                if _has_provider(path.parent, registry, version, platform):
                    yield path.parent


def _glob_paths(prefix: Path, pattern: str) -> list[Path]:
    try:
        return list(prefix.glob(pattern))
    except OSError:  # a folder that we may not read holds no mirror for us
        return []


def _has_provider(mirror: Path, registry: str, version: str, platform: str) -> bool:
    """Return whether a mirror has the AWS provider, unpacked or as the registry's own archive."""
    folder = mirror / registry / "hashicorp" / "aws"
    archive = folder / f"terraform-provider-aws_{version}_{platform}.zip"
    return (folder / version / platform).is_dir() or archive.is_file()


def _write_config(data: Path, mirror: Path, registry: str) -> Path:
    """Write a configuration that takes the AWS provider from the mirror and everything else from its registry."""
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


_STREAMED_COMMANDS = ("plan", "apply", "destroy", "test")
"""Commands that write JSON lines with `-json`, and ask the provider more than once. The others ask it nothing."""


@dataclass(frozen=True)
class Result:
    """How one stack's command ended."""

    code: int
    output: str
    events: Sequence[Event] = ()
    """Messages of a command that streams them."""


class TerraformFailed(console.CommandFailed):
    """Terraform failed; carries its errors as it reported them."""

    def __init__(self, command: Sequence[str], log: EventLog, failure: str) -> None:
        super().__init__(command, log.text, failure)
        if errors := events.list_errors(log.events):
            listing = "\n".join(f"    {line}" for error in errors for line in error.splitlines())
            title = f"{shlex.join(command)}\n  {failure}; the full log is {console.shorten_path(log.text)}:"
            self.args = (f"{title}\n{listing}{_suggest_fix(command, listing)}",)


def _suggest_fix(command: Sequence[str], errors: str) -> str:
    """Return what mends what a command leaves that was killed: a lock, and resources that its state does not have."""
    terraform = shlex.join(command[:2])
    if match := re.search(r"acquiring the state lock.*\sID:\s+(\S+)", errors, re.DOTALL):
        unlock = f"{terraform} force-unlock {match[1]}"
        return f"\n  Fix: wait for who has the lock; if that command was killed, run `{unlock}`."
    if re.search("Already(Exists|OwnedByYou)", errors):
        adopt = f"run `{terraform} import ADDRESS ID` with its address, which is in brackets"
        left_over = f"delete it where it is empty, or {adopt}, and then this again"
        return f"\n  Fix: if an apply that was killed left it over, {left_over}; else choose another name."
    return ""


def run(
    terraform: Terraform,
    folders: Mapping[str, Path],
    arguments: Sequence[str],
    *,
    success_codes: tuple[int, ...] = (0,),
    timeout_s: float = 1200.0,
    grace_s: float = 20.0,
    on_progress: Callable[[str], None] = lambda _: None,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Result]:
    """Run one Terraform command on several stacks side by side, each with its log in the stack's folder.

    Args:
        folders: each stack's working folder, by the stack's name.
        grace_s: how long Terraform may take to record what it made, when interrupted.
        on_progress: called with how far the stacks are, whenever that changes.
        environments: by stack, open for several commands; of this command only where left out.

    Raises:
        CommandFailed: it failed for one of them.
    """
    subcommand, *options = arguments
    is_streamed = subcommand in _STREAMED_COMMANDS
    logs = {
        name: EventLog(folder / f"{subcommand}.{'jsonl' if is_streamed else 'log'}", folder / f"{subcommand}.log")
        for name, folder in folders.items()
    }
    for log in logs.values():
        log.text.unlink(missing_ok=True)
        log.stream.unlink(missing_ok=True)
        log.stream.touch(mode=0o600)  # values of a plan may be secret
    options = [*(["-json"] if is_streamed else []), *options, "-no-color"]
    with contextlib.ExitStack() as stack:
        if environments is None:
            environments = stack.enter_context(_open_environments(terraform, folders, asks_provider=is_streamed))
        commands = [
            console.Command(
                [terraform.program, f"-chdir={console.shorten_path(folder)}", subcommand, *options],
                logs[name].stream,
                environment=terraform.environment,
                hidden_environment={**terraform.hidden_environment, **environments[name]},
                accepted_codes=success_codes,
            )
            for name, folder in folders.items()
        ]
        results = _run_commands(
            commands, logs, is_streamed=is_streamed, timeout_s=timeout_s, grace_s=grace_s, on_progress=on_progress
        )
        return {
            name: Result(result.code, logs[name].read_text() if is_streamed else result.output, logs[name].events)
            for name, result in zip(folders, results, strict=True)
        }


def plan(terraform: Terraform, folders: Mapping[str, Path], file: str) -> dict[str, Plan]:
    """Plan several stacks, and save each plan as `file` in the stack's folder, readable for its owner only.

    Return the changes that each saved plan holds, by the stack's name.

    Raises:
        CommandFailed: Terraform failed.
    """
    for folder in folders.values():
        (folder / file).unlink(missing_ok=True)
    with _open_environments(terraform, folders, asks_provider=True) as environments:
        run(terraform, folders, ("plan", "-input=false", f"-out={file}"), environments=environments)
        for folder in folders.values():
            (folder / file).chmod(0o600)
        results = run(terraform, folders, ("show", "-json", file), environments=environments)
    for folder in folders.values():
        (folder / "show.log").unlink()
    return {name: parse_plan(result.output) for name, result in results.items()}


@contextlib.contextmanager
def _open_environments(
    terraform: Terraform, folders: Mapping[str, Path], *, asks_provider: bool
) -> Iterator[dict[str, dict[str, str]]]:
    """Yield the environment of each folder's commands: a temporary directory, and one provider where it is shared.

    Terraform and its providers leave sockets in the temporary directory; both end with the block.
    """
    with contextlib.ExitStack() as stack:
        environments: dict[str, dict[str, str]] = {}
        for name, folder in folders.items():
            environment = {"TMPDIR": stack.enter_context(_make_temp_dir(folder))}
            if terraform.reuse_provider and not asks_provider:
                environment |= provider_reattach.skip_provider(folder)
            elif terraform.reuse_provider:
                settings = {**terraform.hidden_environment, **terraform.environment, **environment}
                environment |= stack.enter_context(provider_reattach.start_provider(folder, settings))
            environments[name] = environment
        yield environments


_MAX_TEMP_PATH = 80
"""Characters: a socket's path has 107 at most, and the providers' names of sockets take some 20."""


@contextlib.contextmanager
def _make_temp_dir(folder: Path) -> Iterator[str]:
    """Yield a temporary directory: the stack's folder, or the system's if the path is too long for a socket."""
    own = folder.absolute() / "tmp"
    if len(str(own)) > _MAX_TEMP_PATH:
        with tempfile.TemporaryDirectory(prefix="blueprint-terraform-", ignore_cleanup_errors=True) as path:
            yield path
        return
    own.mkdir(mode=0o700, exist_ok=True)
    try:
        yield str(own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _run_commands(
    commands: Sequence[console.Command],
    logs: Mapping[str, EventLog],
    *,
    is_streamed: bool,
    timeout_s: float,
    grace_s: float,
    on_progress: Callable[[str], None],
) -> list[console.CommandResult]:
    """Run the commands side by side, and write what they stream as text while they run."""

    def update_logs() -> None:
        for log in logs.values():
            log.update()
        on_progress(_format_progress(logs))

    try:
        return console.run_together(
            commands,
            timeout_s=timeout_s,
            on_poll=update_logs if is_streamed else lambda: None,
            grace_s=grace_s,
            # Providers are in the same process group. They leave an interrupt to Terraform, and die at once of any
            # other signal: what they were making would be made, and be in no state.
            stop_signal=signal.SIGINT,
        )
    except console.CommandFailed as error:
        if not is_streamed:
            raise
        [log] = [log for log in logs.values() if log.stream == error.log]
        log.update(final=True)
        raise TerraformFailed(error.command, log, error.failure) from None
    finally:
        if is_streamed:
            for log in logs.values():
                log.update(final=True)


def _format_progress(logs: Mapping[str, EventLog]) -> str:
    """Return how far each stack is, as in `network 12/49, storage 14/18 (aws_s3_bucket.models)`."""
    return ", ".join(
        f"{name} {progress}" for name, log in logs.items() if (progress := events.format_progress(log.events))
    )
