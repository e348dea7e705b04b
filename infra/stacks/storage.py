"""The storage stack: the fleet's key, the model and results buckets, a registry for each image, and the image cache.

What watches the whole fleet is here too, because every fleet has this stack: its budget and its quotas.
"""

from __future__ import annotations

from infra.bindings import aws
from infra.bindings.cdktf import App
from infra.constructs import registry
from infra.constructs.bucket import add_bucket
from infra.constructs.capacity_watch import add_budget, add_capacity_watch
from infra.constructs.key import add_key
from infra.constructs.registry import add_repository
from infra.stacks import base
from llm_serving.fleet.aws_limits import build_bucket_name, convert_to_days
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document

NAME = "storage"
NEEDS: tuple[str, ...] = ()


def is_enabled(_fleet: Fleet) -> bool:
    """Every fleet has it."""
    return True


def add(app: App, document: Document[Fleet]) -> None:
    """Add the stack to the app. Outputs: model_bucket, results_bucket, kms_key_arn, repositories (URL by name)."""
    fleet = document.value
    storage = fleet.storage
    stack = base.create_stack(app, NAME, document)
    account = stack.account
    kms_key = add_key(
        stack, "storage-key", alias=f"{fleet.name}-storage", description=f"Buckets and images of the fleet {fleet.name}"
    )
    models = add_bucket(
        stack,
        "models",
        bucket_name=build_bucket_name(fleet.name, "models", account.id, fleet.region),
        key_arn=kms_key.arn,
        old_versions_days=convert_to_days(storage.old_versions_kept),
    )
    results = add_bucket(
        stack,
        "results",
        bucket_name=build_bucket_name(fleet.name, "results", account.id, fleet.region),
        key_arn=kms_key.arn,
        old_versions_days=convert_to_days(storage.old_versions_kept),
        expire_days=convert_to_days(storage.results_kept),
    )
    # So that rules of EventBridge hear of files that are put into a batch's inboxes.
    aws.s3_bucket_notification.S3BucketNotification(stack, "results-events", bucket=results.bucket, eventbridge=True)
    repositories = {
        image: add_repository(stack, f"image-{image}", repository_name=f"{fleet.name}/{image}", key_arn=kms_key.arn)
        for image in storage.repositories
    }
    registry.add_rules(stack)
    if fleet.budget_to and fleet.spend_limit:
        add_budget(stack, fleet.spend_limit)
    if fleet.alarms_to:
        add_capacity_watch(stack)
    urls = {image: repository.repository_url for image, repository in repositories.items()}
    base.add_output(stack, "model_bucket", models.bucket, "Bucket of the models' weights")
    base.add_output(stack, "results_bucket", results.bucket, "Bucket of validation and batch results")
    base.add_output(stack, "kms_key_arn", kms_key.arn, "Key that encrypts buckets and images")
    base.add_output(stack, "repositories", urls, "URL of each image's repository")
