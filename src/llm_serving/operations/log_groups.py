"""Log groups that a writer created again after a destroy, taken over by the next plan.

CloudWatch creates a missing log group for several of its writers: Container Insights, EKS's control plane and Lambda
send what they still hold after the stack is gone. Terraform would then refuse to create the group: it exists. An
`import` block in the plan takes it over with its events, and sets its retention and its key.

Source: Terraform language, "Import existing resources", from 1.5 on; OpenTofu's is the same; 2026-11.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_serving.aws import session
from llm_serving.operations.context import FleetContext, read_states
from llm_serving.terraform import stack_folder

KIND = "aws_cloudwatch_log_group"

FILE = "imports.tf.json"
"""Import blocks in a stack's folder, while its plan is made: the saved plan holds them."""


@contextmanager
def adopt_existing(context: FleetContext, folders: Mapping[str, Path]) -> Iterator[None]:
    """Add import blocks to the stacks in `folders` for log groups that exist and no state has."""
    existing_groups = _find_existing(context, folders)
    states = read_states(context, list(existing_groups)) if existing_groups else {}
    written = []
    try:
        for name, groups in existing_groups.items():
            blocks = [
                {"to": address, "id": group}
                for address, group in groups.items()
                if address not in states[name].resources
            ]
            if blocks:
                written.append(folders[name] / FILE)
                written[-1].write_text(json.dumps({"import": blocks}, indent=2), encoding="utf-8")
        yield
    finally:
        for file in written:
            file.unlink(missing_ok=True)


def _find_existing(context: FleetContext, folders: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    group_names = {name: _list_group_names(folder) for name, folder in folders.items()}
    logs = context.aws.client("logs") if any(group_names.values()) else None
    existing_groups: dict[str, dict[str, str]] = {}
    for name, groups in group_names.items():
        for address, group in groups.items():
            with session.translate_errors():
                if find_arn(logs, group):
                    existing_groups.setdefault(name, {})[address] = group
    return existing_groups


def find_arn(logs: Any, name: str) -> str | None:
    """Return the ARN of a log group; None where there is none of the name."""
    groups = logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return next((group["arn"].removesuffix(":*") for group in groups if group["logGroupName"] == name), None)


def _list_group_names(folder: Path) -> dict[str, str]:
    """Return the names of a stack's log groups by address; only those that do not depend on other resources."""
    resources = stack_folder.read_stack(folder).get("resource", {}).get(KIND, {})
    return {
        f"{KIND}.{address}": row["name"]
        for address, row in resources.items()
        if "${" not in row.get("name", "${") and row.get("count") != 0
    }
