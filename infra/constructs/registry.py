"""The fleet's registry: repositories whose tags never move, scanned on push, and ECR's pull-through cache."""

from __future__ import annotations

import json

from infra.bindings import aws
from infra.constructs import iam
from infra.constructs.fleet_stack import Account, FleetStack
from infra.constructs.iam import Statement
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import image_cache
from llm_serving.fleet.model import Fleet

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
        image_scanning_configuration={"scan_on_push": True},
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


def add_rules(stack: FleetStack) -> None:
    """Add a rule for each registry of the fleet's cache, and the template of the repositories that ECR makes for it."""
    for upstream in image_cache.list_upstreams(stack.fleet):
        prefix = image_cache.format_prefix(stack.fleet, upstream)
        rule = aws.ecr_pull_through_cache_rule.EcrPullThroughCacheRule(
            stack,
            f"cache-{upstream.suffix}",
            ecr_repository_prefix=prefix,
            upstream_registry_url=upstream.url,
            credential_arn=image_cache.get_secret(stack.fleet, upstream),
        )
        aws.ecr_repository_creation_template.EcrRepositoryCreationTemplate(
            stack,
            f"cache-{upstream.suffix}-template",
            prefix=prefix,
            applied_for=["PULL_THROUGH_CACHE"],
            description=f"Cached images of {upstream.host} for the fleet {stack.fleet.name}",
            # ECR moves a cached tag to what the registry has now.
            image_tag_mutability="MUTABLE",
            depends_on=[rule],
        )


def build_statements(stack: FleetStack) -> list[Statement]:
    """Return what a role needs that pulls images by the cache; nothing without one."""
    upstreams = image_cache.list_upstreams(stack.fleet)
    prefixes = [image_cache.format_prefix(stack.fleet, upstream) for upstream in upstreams]
    repositories = [stack.account.build_arn("ecr", f"repository/{prefix}/*") for prefix in prefixes]
    return iam.read_statements(stack, "image-cache", repositories=repositories)


def build_prefixes(fleet: Fleet, account: Account) -> dict[str, str]:
    """Prefixes of images' names by the host that each replaces."""
    registry = format_registry(account.id, account.region)
    return image_cache.build_prefixes(fleet, registry)
