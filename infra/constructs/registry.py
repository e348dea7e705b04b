"""An ECR repository whose tags never move, scanned on push."""

from __future__ import annotations

import json

from infra.bindings import aws
from infra.constructs.fleet_stack import FleetStack

_UNTAGGED_DAYS = 14
"""Layers of a failed or replaced push; a tagged image stays, since a deployment may name it."""


def add_repository(
    stack: FleetStack, name: str, *, repository_name: str, key_arn: str
) -> aws.ecr_repository.EcrRepository:
    ecr = aws.ecr_repository
    repository = ecr.EcrRepository(
        stack,
        name,
        name=repository_name,
        image_tag_mutability="IMMUTABLE",
        image_scanning_configuration=ecr.EcrRepositoryImageScanningConfiguration(scan_on_push=True),
        encryption_configuration=[ecr.EcrRepositoryEncryptionConfiguration(encryption_type="KMS", kms_key=key_arn)],
        force_delete=False,
    )
    aws.ecr_lifecycle_policy.EcrLifecyclePolicy(
        stack, f"{name}-lifecycle", repository=repository.name, policy=_build_lifecycle_policy()
    )
    return repository


def _build_lifecycle_policy() -> str:
    rule = {
        "rulePriority": 1,
        "description": f"Images without a tag go after {_UNTAGGED_DAYS} days",
        "selection": {
            "tagStatus": "untagged",
            "countType": "sinceImagePushed",
            "countUnit": "days",
            "countNumber": _UNTAGGED_DAYS,
        },
        "action": {"type": "expire"},
    }
    return json.dumps({"rules": [rule]})
