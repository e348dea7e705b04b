"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

from tests.infra.mocked_terraform import *  # noqa: F403 - its tests, with BROKEN of this folder
from tests.infra.workspace import Break

BROKEN = (
    Break(
        "stacks/serving-disaggregated",
        '"referenced_security_group_id": "${aws_security_group.engine-group.id}",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        '"referenced_security_group_id": "sg-0fffffffffffffff0",\n        "security_group_id": "${aws_security_group.engine-group.id}"',
        "prefill and decode reach each other, in and out",
    ),
    Break(
        "stacks/serving-disaggregated",
        "/dev/infiniband/uverbs15",
        "/dev/infiniband/uverbs16",
        "tasks see EFA's devices",
    ),
    Break(
        "stacks/serving-aggregated", '"rollback": true', '"rollback": false', "a deployment that fails is taken back"
    ),
)
"""What each stack says, what is written for it, and the assertion that then fails."""
