"""Every resource of a gateway on both orchestrators, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from tests.infra.mocked_terraform import *  # noqa: F403 - its tests, with BROKEN of this folder
from tests.infra.workspace import Break

BROKEN = (
    Break("stacks/gateway-edge", '"multi_az": true', '"multi_az": false', "with a standby in another zone"),
    Break(
        "stacks/gateway-edge",
        '"delete_automated_backups": false',
        '"delete_automated_backups": true',
        "also after it is gone",
    ),
    Break(
        "stacks/gateway-edge",
        '"multi_az_enabled": true',
        '"multi_az_enabled": false',
        "the cache fails over to another zone",
    ),
)
"""What each stack says, what is written for it, and the assertion that then fails."""
