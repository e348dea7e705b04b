"""Summary of a batch deployment for `blueprint check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_serving.kinds.batch.blueprint import Blueprint
from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.settings.document import Document


def describe(
    blueprint: Document[Blueprint],  # noqa: ARG001 - the deployment has all
    deployment: BatchDeployment,
) -> Iterator[tuple[str, str]]:
    """Describe the deployment in rows: a label of at most 10 characters, and its text."""
    own = f"{deployment.model}, its own replicas" if deployment.serving else deployment.endpoint_url
    yield "endpoint", own
    for name, team in deployment.teams.items():
        quota = f", at most {team.tokens_per_day:,} tokens a day" if team.tokens_per_day else ""
        deadline = f", deadline {team.deadline:g} s" if team.deadline else ""
        yield "team", f"{name}: weight {team.weight}, priority {team.priority}{deadline}{quota}"
    yield "workers", f"{deployment.worker_count}, rows in s3://{deployment.bucket}/{deployment.prefix}/"


def build_payload(deployment: BatchDeployment) -> dict[str, Any]:
    """Build the output of `check --json`."""
    return {
        "endpoint": deployment.endpoint_url,
        "model": deployment.model,
        "teams": {name: team.model_dump() for name, team in deployment.teams.items()},
        "workers": deployment.worker_count,
        "results": f"s3://{deployment.bucket}/{deployment.prefix}/",
    }
