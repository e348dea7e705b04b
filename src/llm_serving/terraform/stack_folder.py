"""The working folder of a synthesized stack: what its cdk.tf.json holds, and Terraform's start in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_serving.aws.session import AwsSession
from llm_serving.terraform import runner

FILE = "cdk.tf.json"

_ENDPOINT_VARIABLE = re.compile(r"AWS_ENDPOINT_URL\w*|AWS_IGNORE_CONFIGURED_ENDPOINT_URLS|(TF_)?AWS_[A-Z0-9]+_ENDPOINT")
"""Environment variables that set an endpoint of the AWS provider, or make it ignore those of a configuration."""


def read_stack(folder: Path) -> dict[str, Any]:
    stack: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return stack


def count_resources(folder: Path) -> int:
    return sum(map(len, read_stack(folder).get("resource", {}).values()))


def find_terraform(folders: Mapping[str, Path], data: Path, aws: AwsSession | None = None) -> runner.Terraform:
    """Return the program, and the provider in the version that the stacks ask for; see `runner.find_terraform`.

    Args:
        aws: None for the embedded AWS only, where an override beside each stack has all settings. For an embedded AWS,
            endpoints in the user's environment, which would win over its own, are cleared, and the provider is started
            once a run.
    """
    program = runner.find_terraform(data, _read_provider_version(next(iter(folders.values()))))
    if aws and not aws.is_emulated:
        return replace(program, hidden_environment=aws.child_env)
    cleared = {name: "" for name, value in os.environ.items() if value and _ENDPOINT_VARIABLE.fullmatch(name)}
    settings = {
        name: value for name, value in (aws.child_env if aws else {}).items() if not _ENDPOINT_VARIABLE.fullmatch(name)
    }
    return replace(
        program, environment={**program.environment, **cleared}, hidden_environment=settings, reuse_provider=True
    )


def initialize(program: runner.Terraform, folders: Mapping[str, Path], *, backend: str = "") -> None:
    """Run `init` one stack after the other, for Terraform's plugin cache allows one at a time; once a folder.

    Args:
        backend: where the state is kept. Another backend means another `init`, which moves no state.
    """
    for name, folder in folders.items():
        marker = folder / ".terraform" / "initialized"
        signature = (
            f"{program}, provider {_read_provider_version(folder)} from {program.provider_from}, state {backend}"
        )
        if not marker.is_file() or marker.read_text() != signature:
            runner.run(program, {name: folder}, ("init", "-input=false", "-reconfigure"))
            marker.write_text(signature)


def _read_provider_version(folder: Path) -> str:
    return str(read_stack(folder)["terraform"]["required_providers"]["aws"]["version"])
