"""Every resource of both shapes of streams, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from tests.infra.mocked_terraform import *  # noqa: F403 - its tests, with BROKEN of this folder
from tests.infra.workspace import Break

BROKEN = (
    Break(
        "stacks/streaming-shop",
        '"client_broker": "TLS"',
        '"client_broker": "TLS_PLAINTEXT"',
        "clients of Kafka log in with a role",
    ),
    Break(
        "stacks/streaming-shop",
        '"multi_az_enabled": true',
        '"multi_az_enabled": false',
        "the cache fails over to another zone",
    ),
    Break(
        "stacks/streaming-shop",
        '"snapshots_enabled": true',
        '"snapshots_enabled": false',
        "keeps its state while it is stopped",
    ),
)
"""What each stack says, what is written for it, and the assertion that then fails."""
