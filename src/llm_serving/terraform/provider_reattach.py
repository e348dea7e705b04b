"""One process of the AWS provider for a whole run of Terraform, instead of one for each of its steps.

The provider takes most of a second of CPU to start, and Terraform starts it three or four times in a run. In its debug
mode (`-debug`, which Terraform's and OpenTofu's documentation describe for developers of providers) it keeps running,
and prints the environment variable by which they find it. That saves a third of the CPU of apply, plan and destroy of
49 resources, measured with 5.100.0. Only for mocked providers and the embedded AWS: for AWS, Terraform starts its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llm_serving import processes
from llm_serving.settings.errors import Unavailable

_LOCK_ENTRY = re.compile(r'provider "(\S+/hashicorp/aws)" \{\s+version\s+= "([^"]+)"')
_REATTACH = re.compile(r"TF_REATTACH_PROVIDERS='(\{.*\})'")
_VARIABLE = "TF_REATTACH_PROVIDERS"
_NOBODY = {"Protocol": "grpc", "ProtocolVersion": 5, "Test": True, "Addr": {"Network": "unix", "String": ""}}
_DEFAULT_ADDRESS = "registry.terraform.io/hashicorp/aws"
_START_LIMIT_S = 60.0

_PROVIDER_ENV = {
    # Set up twice, as in an apply, it refuses a bundle of certificates the second time.
    "AWS_CA_BUNDLE": "",
    # By itself it writes megabytes of traces here, requests and all, that Terraform otherwise would throw away.
    "TF_LOG_SDK": "ERROR",
    "TF_LOG_PROVIDER_AWS": "ERROR",
}


@contextmanager
def start_provider(folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Start a provider for the time of the block; yield the environment variable by which Terraform finds it.

    That is {} where the user's Terraform configuration takes the provider from elsewhere.

    Args:
        folder: an initialized working folder, which has the provider; its log is provider.log in it.
        environment: of the Terraform that it is for, on top of this process's own.

    Raises:
        Unavailable: it did not start; the message names the log.
    """
    installed = _find_installed(folder)
    if installed is None:
        yield {}
        return
    name, executable = installed
    log = folder / "provider.log"
    with log.open("wb") as output:
        process = processes.spawn(
            [str(executable), "-debug"], cwd=folder, environment={**environment, **_PROVIDER_ENV}, output=output
        )

    def is_up() -> bool:
        if process.poll() is not None:
            raise Unavailable(f"it ended with {process.returncode}")
        return _read_address(log) is not None

    try:
        try:
            processes.wait_until(is_up, "its address", _START_LIMIT_S)
        except Unavailable as error:
            raise Unavailable(f"the AWS provider did not start: {error}. Its log: {log}") from None
        # Tofu looks for it under the registry that it got it from.
        yield {_VARIABLE: str(_read_address(log)).replace(_DEFAULT_ADDRESS, name)}
    finally:
        processes.stop(process)


def skip_provider(folder: Path) -> dict[str, str]:
    """Return the environment variable for a command that asks the provider nothing; {} before the first `init`.

    Terraform reads the 700 MB of a provider for their hash before each command, and twice for another `init`: half a
    second of CPU each. A provider that is said to be running it leaves alone.
    """
    installed = _find_installed(folder)
    return {_VARIABLE: json.dumps({installed[0]: _NOBODY})} if installed else {}


def _find_installed(folder: Path) -> tuple[str, Path] | None:
    """Return the provider's name, and its program as `init` laid it down; None where it laid none down."""
    lock = folder / ".terraform.lock.hcl"
    if not lock.is_file() or not (match := _LOCK_ENTRY.search(lock.read_text())):
        return None
    name, version = match.groups()
    programs = (folder / ".terraform/providers" / name / version).glob("*/terraform-provider-aws_v*")
    return next(((name, program.resolve()) for program in programs), None)


def _read_address(log: Path) -> str | None:
    match = _REATTACH.search(log.read_text(errors="replace"))
    return match[1] if match else None
