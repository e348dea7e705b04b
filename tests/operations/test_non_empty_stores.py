from __future__ import annotations

import pytest

from llm_serving.aws.session import AwsSession
from llm_serving.operations import non_empty_stores

REGION = "us-west-2"


@pytest.fixture
def bucket(aws: str) -> str:
    s3 = AwsSession(REGION).client("s3")
    s3.create_bucket(Bucket="held-models", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_versioning(Bucket="held-models", VersioningConfiguration={"Status": "Enabled"})
    yield "held-models"
    non_empty_stores.empty(AwsSession(REGION), non_empty_stores.NonEmptyStore("bucket", "held-models", ""))
    s3.delete_bucket(Bucket="held-models")


def test_an_empty_bucket_and_a_deleted_bucket_are_empty_stores(bucket: str) -> None:
    outputs = {"model_bucket": bucket, "results_bucket": "held-gone", "repositories": {"none": "url"}}
    assert non_empty_stores.find(AwsSession(REGION), outputs, "small") == []


def test_old_versions_and_deletion_markers_count_and_all_of_them_go(bucket: str) -> None:
    s3 = AwsSession(REGION).client("s3")
    s3.put_object(Bucket=bucket, Key="config.json", Body=b"{}")
    s3.put_object(Bucket=bucket, Key="config.json", Body=b"{ }")
    s3.delete_object(Bucket=bucket, Key="config.json")
    stores = non_empty_stores.find(AwsSession(REGION), {"model_bucket": bucket}, "small")
    assert stores == [non_empty_stores.NonEmptyStore("bucket", bucket, "3 objects with old versions, 5 B")]
    non_empty_stores.empty(AwsSession(REGION), stores[0])
    assert non_empty_stores.find(AwsSession(REGION), {"model_bucket": bucket}, "small") == []


def test_images_of_a_registry_count_and_go(aws: str) -> None:
    ecr = AwsSession(REGION).client("ecr")
    ecr.create_repository(repositoryName="small/vllm")
    manifest = '{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": []}'
    ecr.put_image(repositoryName="small/vllm", imageManifest=manifest, imageTag="1")
    outputs = {"repositories": {"vllm": "url"}}
    stores = non_empty_stores.find(AwsSession(REGION), outputs, "small")
    assert stores == [non_empty_stores.NonEmptyStore("repository", "small/vllm", "1 image")]
    non_empty_stores.empty(AwsSession(REGION), stores[0])
    assert non_empty_stores.find(AwsSession(REGION), outputs, "small") == []
    ecr.delete_repository(repositoryName="small/vllm")
