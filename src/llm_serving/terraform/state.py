"""Terraform's state of a stack: its outputs, and the resources that it manages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import Unavailable

FILE = "terraform.tfstate"
"""A local state in a stack's working folder."""


_ARN = re.compile(r"arn:[a-z-]+:[a-z0-9-]+:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):.+")
"""Of a resource of one account and region; those of IAM and S3 have no region."""


class StackState(NamedTuple):
    """What Terraform has recorded of a stack."""

    outputs: Mapping[str, Any]
    resources: tuple[str, ...]
    """Addresses of the resources that it manages, as in `aws_vpc.vpc`."""

    places: frozenset[tuple[str, str]] = frozenset()
    """Region and account of the resources that it manages, by their ARNs."""


def parse_state(name: str, text: str) -> StackState:
    """Return the state of the stack `name` as `state pull` prints it; empty where nothing was applied.

    Raises:
        Unavailable: it cannot be read.
    """
    if "{" not in text:
        return StackState({}, ())
    try:
        payload = untrusted_json.parse(text[text.index("{") :])
        managed = [resource for resource in payload["resources"] if resource["mode"] == "managed"]
        arns = (
            str(instance.get("attributes", {}).get("arn")) for resource in managed for instance in resource["instances"]
        )
        return StackState(
            {key: output["value"] for key, output in payload["outputs"].items()},
            tuple(f"{resource['type']}.{resource['name']}" for resource in managed if resource["instances"]),
            frozenset((match["region"], match["account"]) for match in map(_ARN.fullmatch, arns) if match),
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
