"""The storage stack: the fleet's key, the model and results buckets, and a registry for each image."""

from __future__ import annotations

from typing import Any

from infra.constructs.account import account
from infra.constructs.bucket import bucket
from infra.constructs.key import key
from infra.constructs.registry import registry
from infra.stacks import stack as stacks
from llm_serving.fleet.aws_limits import bucket_name, days
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document

NAME = "storage"


def add(app: Any, document: Document[Fleet]) -> None:
    """Adds the stack to the app. Outputs: model_bucket, results_bucket, kms_key_arn, repositories (URL by name)."""
    fleet = document.value
    kept = fleet.storage
    stack = stacks.new(app, NAME, document)
    here = account(stack, fleet)
    encryption = key(
        stack,
        "storage-key",
        alias=f"{fleet.name}-storage",
        description=f"Buckets and images of the fleet {fleet.name}",
        account=here,
    )
    models = bucket(
        stack,
        "models",
        bucket_name=bucket_name(fleet.name, "models", here.id, fleet.region),
        key_arn=encryption.arn,
        old_versions_days=days(kept.old_versions_kept),
    )
    results = bucket(
        stack,
        "results",
        bucket_name=bucket_name(fleet.name, "results", here.id, fleet.region),
        key_arn=encryption.arn,
        old_versions_days=days(kept.old_versions_kept),
        expire_days=days(kept.results_kept),
    )
    repositories = {
        image: registry(stack, f"image-{image}", repository_name=f"{fleet.name}/{image}", key_arn=encryption.arn)
        for image in kept.repositories
    }
    urls = {image: repository.repository_url for image, repository in repositories.items()}
    stacks.output(stack, "model_bucket", models.bucket, "Bucket of the models' weights")
    stacks.output(stack, "results_bucket", results.bucket, "Bucket of validation and batch results")
    stacks.output(stack, "kms_key_arn", encryption.arn, "Key that encrypts buckets and images")
    stacks.output(stack, "repositories", urls, "URL of each image's repository")
