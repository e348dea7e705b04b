"""Terraform's state of a stack: its outputs, and the resources that it manages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import Unavailable

FILE = "terraform.tfstate"
"""A local state in a stack's working folder."""


class StackState(NamedTuple):
    """What Terraform has recorded of a stack."""

    outputs: Mapping[str, Any]
    resources: tuple[str, ...]
    """Addresses of the resources that it manages, as in `aws_vpc.vpc`."""


def parse_state(name: str, text: str) -> StackState:
    """Return the state of the stack `name` as `state pull` prints it; empty where nothing was applied.

    Raises:
        Unavailable: it cannot be read.
    """
    if "{" not in text:
        return StackState({}, ())
    try:
        payload = untrusted_json.parse(text[text.index("{") :])
        return StackState(
            {key: output["value"] for key, output in payload["outputs"].items()},
            tuple(
                f"{resource['type']}.{resource['name']}"
                for resource in payload["resources"]
                if resource["mode"] == "managed" and resource["instances"]
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"{name}: Terraform's state cannot be read: {error}") from None


def read_outputs(folder: Path) -> dict[str, Any]:
    payload = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return {name: output["value"] for name, output in payload["outputs"].items()}


def count_managed(folder: Path) -> int:
    """Return the number of resources in a local state."""
    resources = json.loads((folder / FILE).read_text(encoding="utf-8"))["resources"]
    return sum(len(resource["instances"]) for resource in resources if resource["mode"] == "managed")


def delete(folder: Path) -> None:
    """Remove a local state and its backups: the embedded AWS that held the resources has ended."""
    for file in folder.glob(f"{FILE}*"):
        file.unlink()
