"""Every resource of every shape of deployment on ECS, by the real Terraform with a mocked AWS provider."""

from __future__ import annotations

import pytest

from tests.infra.mocked_terraform import (
    test_a_broken_setting_is_reported,
    test_terraform_plans_and_applies_every_resource_as_expected,
    workspace,
)
from tests.infra.workspace import Break

__all__ = (
    "test_a_broken_setting_is_reported",
    "test_terraform_plans_and_applies_every_resource_as_expected",
    "workspace",
)

pytestmark = pytest.mark.terraform

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
