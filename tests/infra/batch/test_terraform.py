"""Every resource of both shapes of batches on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from tests.infra.mocked_terraform import *  # noqa: F403 - its tests, with BROKEN of this folder
from tests.infra.workspace import Break

BROKEN = (
    Break(
        "stacks/batch-catalog",
        '"include_execution_data": false',
        '"include_execution_data": true',
        "the state machine logs its failures",
    ),
    Break("stacks/batch-catalog", '"rollback": true', '"rollback": false', "a deployment that fails is taken back"),
    Break(
        "stacks/batch-catalog",
        '"projection.enabled": "true"',
        '"projection.enabled": "false"',
        "the table shows the Parquet results",
    ),
    Break(
        "stacks/batch-catalog",
        '"sqs_managed_sse_enabled": true',
        '"sqs_managed_sse_enabled": false',
        "queues are encrypted",
    ),
)
"""What each stack says, what is written for it, and the assertion that then fails."""
