"""Plans as `show -json` prints them, in the form of Terraform 1.11 and of OpenTofu 1.10."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def build_change(
    address: str, *actions: str, after: object = None, mode: str = "managed", registry: str = "registry.terraform.io"
) -> dict[str, Any]:
    """One entry of `resource_changes`."""
    kind, _, name = address.rpartition(".")
    return {
        "address": address,
        "mode": mode,
        "type": kind,
        "name": name,
        "provider_name": f"{registry}/hashicorp/aws",
        "change": {"actions": list(actions), "before": None, "after": after, "after_unknown": {}},
    }


def build_plan(
    *changes: Mapping[str, Any], outputs: Mapping[str, str] | None = None, format_version: str = "1.2", **more: object
) -> str:
    """A whole plan.

    Args:
        outputs: the action of each output, by name.
    """
    return json.dumps(
        {
            "format_version": format_version,
            "terraform_version": "1.11.4",
            "resource_changes": list(changes),
            "output_changes": {
                name: {"actions": [action], "before": None, "after": "x"} for name, action in (outputs or {}).items()
            },
            "errored": False,
            **more,
        }
    )
