from __future__ import annotations

from collections.abc import Sequence

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving.aws.session import AwsSession
from llm_serving.operations import non_empty_stores
from llm_serving.settings.errors import Unavailable

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


def empty_repository(passes: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Empty a repository; `passes` are the digests that ECR lists, and those that it then keeps."""
    client = boto3.Session("test", "test", region_name=REGION).client("ecr")
    reason = "Requested image referenced by manifest list"
    with Stubber(client) as stub:
        for listed, kept in passes:
            rows = [{"imageDigest": digest} for digest in listed]
            stub.add_response("list_images", {"imageIds": rows} if rows else {})
            if listed:
                failures = [{"imageId": {"imageDigest": digest}, "failureReason": reason} for digest in kept]
                stub.add_response("batch_delete_image", {"failures": failures})
        session = AwsSession(REGION)
        session._clients["ecr"] = client
        non_empty_stores.empty(session, non_empty_stores.NonEmptyStore("repository", "small/router", ""))
        stub.assert_no_pending_responses()


def test_images_of_a_list_go_after_it() -> None:
    """moto deletes them at once. docker's builder makes a list of every image, with where it was built."""
    children = [f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"]
    empty_repository([([*children, f"sha256:{'3' * 64}"], children), (children, []), ([], [])])


def test_images_that_ecr_keeps_are_said_and_not_asked_for_ever() -> None:
    digest = f"sha256:{'1' * 64}"
    with pytest.raises(Unavailable) as error:
        empty_repository([([digest], [digest])])
    assert str(error.value) == (
        "small/router: ECR deletes none of its images: Requested image referenced by manifest list"
    )


def test_an_object_that_s3_keeps_is_said() -> None:
    client = boto3.Session("test", "test", region_name=REGION).client("s3")
    with Stubber(client) as stub:
        stub.add_response("list_object_versions", {"Versions": [{"Key": "held", "VersionId": "1"}]})
        stub.add_response("delete_objects", {"Errors": [{"Key": "held", "Code": "AccessDenied", "Message": "denied"}]})
        session = AwsSession(REGION)
        session._clients["s3"] = client
        with pytest.raises(Unavailable, match="s3://held-models/held: S3 does not delete it: denied"):
            non_empty_stores.empty(session, non_empty_stores.NonEmptyStore("bucket", "held-models", ""))
