"""Dashboards of synthesized stacks, held against the form that CloudWatch's reference gives a dashboard's body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = json.loads(Path(__file__).with_name("dashboard_body.schema.json").read_text())


def read(stack: dict[str, Any]) -> dict[str, Any]:
    """Read the body of a stack's only dashboard."""
    [dashboard] = stack["resource"]["aws_cloudwatch_dashboard"].values()
    body: dict[str, Any] = json.loads(dashboard["dashboard_body"])
    return body


def list_errors(body: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]


def list_metrics(body: dict[str, Any]) -> list[tuple[str, str, str, dict[str, str]]]:
    """List the statistic, namespace, name and dimensions of every curve."""
    found = []
    for widget in body["widgets"]:
        for namespace, name, *dimensions, drawn in widget["properties"].get("metrics", ()):
            assert drawn.keys() == {"label"}
            pairs = dict(zip(dimensions[::2], dimensions[1::2], strict=True))
            found.append((widget["properties"]["stat"], namespace, name, pairs))
    return found
