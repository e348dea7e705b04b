"""The AWS provider's bindings, one module a resource type: `aws.s3_bucket.S3Bucket`. Imported when first used."""

from typing import Any

from infra.bindings import runtime as runtime

# isort: split
import cdktf_cdktf_provider_aws as _bindings


def __getattr__(name: str) -> Any:
    return getattr(_bindings, name)
