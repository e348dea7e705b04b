from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws import state_bucket
from llm_serving.aws.session import AwsSession
from llm_serving.fleet.model import Fleet, Pool
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.settings.units import Bounds

ARN = "arn:aws:iam::123456789012:user/anna"


def _build_fleet(location: str = "s3://my-state/fleets", region: str = "us-west-2") -> Fleet:
    pool = Pool(types=("g6e.xlarge",), size=Bounds(0, 1))
    return Fleet(name="demo", region=region, zones=(f"{region}a",), state=location, pools={"general": pool})


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("aws"), bare=True) as url:
        yield url


@pytest.fixture(scope="module")
def clients(endpoint: str) -> Iterator[AwsSession]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in emulator.build_client_env(endpoint, "us-west-2").items():
            environment.setenv(name, value)
        yield AwsSession("us-west-2")


@pytest.fixture
def aws(endpoint: str, clients: AwsSession) -> AwsSession:
    """An empty embedded account."""
    emulator.reset(endpoint)
    return clients


def _ensure(aws: AwsSession | None = None) -> bool:
    return state_bucket.ensure_state_bucket(_build_fleet(), aws or AwsSession("us-west-2"), confirm=lambda: True)


def _remove(aws: AwsSession) -> bool:
    return state_bucket.remove_state_bucket(_build_fleet(), aws, confirm=lambda: True)


@pytest.mark.terraform
def test_the_bucket_is_versioned_encrypted_private_and_tls_only(aws: AwsSession) -> None:
    assert _ensure(aws)
    s3 = aws.client("s3")
    assert s3.get_bucket_versioning(Bucket="my-state")["Status"] == "Enabled"
    rules = s3.get_bucket_encryption(Bucket="my-state")["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert all(s3.get_public_access_block(Bucket="my-state")["PublicAccessBlockConfiguration"].values())
    (statement,) = json.loads(s3.get_bucket_policy(Bucket="my-state")["Policy"])["Statement"]
    assert statement["Resource"] == ["arn:aws:s3:::my-state", "arn:aws:s3:::my-state/*"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert s3.get_bucket_location(Bucket="my-state")["LocationConstraint"] == "us-west-2"


@pytest.mark.terraform
def test_made_twice_it_changes_nothing_the_second_time(aws: AwsSession) -> None:
    questions: list[bool] = []
    assert _ensure(aws)
    assert not state_bucket.ensure_state_bucket(_build_fleet(), aws, confirm=lambda: questions.append(True) or True)
    assert questions == []


@pytest.mark.terraform
def test_all_calls_are_shown_before_the_question_and_a_no_makes_nothing(
    aws: AwsSession, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs: list[str] = []

    def refuse() -> bool:
        outputs.append(capsys.readouterr().err)
        return False

    with pytest.raises(CheckFailed, match="nothing was created"):
        state_bucket.ensure_state_bucket(_build_fleet(), aws, confirm=refuse)
    assert "$ aws s3api create-bucket --bucket my-state --create-bucket-configuration" in outputs[0]
    assert "$ aws s3api put-bucket-versioning --bucket my-state" in outputs[0]
    assert not state_bucket.inspect_bucket(aws, state_bucket.resolve_state_bucket(_build_fleet(), ARN)).exists


@pytest.mark.terraform
def test_missing_settings_are_added_and_the_buckets_policy_is_kept(aws: AwsSession) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="my-state", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    own_statement = {"Sid": "Own", "Effect": "Deny", "Principal": "*", "Action": "s3:PutBucketAcl", "Resource": "*"}
    s3.put_bucket_policy(Bucket="my-state", Policy=json.dumps({"Version": "2012-10-17", "Statement": own_statement}))
    assert _ensure(aws)
    statements = json.loads(s3.get_bucket_policy(Bucket="my-state")["Policy"])["Statement"]
    assert [statement["Sid"] for statement in statements] == ["Own", "TlsOnly"]
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket="my-state")["Rules"]
    assert rule["Filter"] == {"Prefix": "fleets/"}, "old versions of others are theirs to delete"
    assert state_bucket.inspect_bucket(aws, state_bucket.resolve_state_bucket(_build_fleet(), ARN)).changes == ()


@pytest.mark.terraform
def test_in_us_east_1_no_location_is_named(endpoint: str, aws: AwsSession) -> None:
    location = state_bucket.resolve_state_bucket(_build_fleet(region="us-east-1"), ARN)
    created = state_bucket.inspect_bucket(aws, location).changes[0]
    assert "CreateBucketConfiguration" not in created.parameters


def test_in_china_the_policy_names_its_partition() -> None:
    location = state_bucket.resolve_state_bucket(
        _build_fleet(region="cn-north-1"), "arn:aws-cn:iam::123456789012:user/anna"
    )
    assert location.partition == "aws-cn"
    policy = [
        call for call in state_bucket._find_changes(location, lambda _: {}) if call.operation == "put_bucket_policy"
    ]
    assert "arn:aws-cn:s3:::my-state/*" in policy[0].parameters["Policy"]


@pytest.mark.terraform
def test_it_is_removed_with_all_old_versions_when_no_state_holds_a_thing(aws: AwsSession) -> None:
    _ensure(aws)
    s3 = aws.client("s3")
    for resources in ([{"type": "aws_vpc"}], []):
        s3.put_object(Bucket="my-state", Key="fleets/demo/network.tfstate", Body=json.dumps({"resources": resources}))
    assert _remove(aws)
    assert not state_bucket.inspect_bucket(aws, state_bucket.resolve_state_bucket(_build_fleet(), ARN)).exists
    assert not _remove(aws)


@pytest.mark.terraform
@pytest.mark.parametrize(
    ("key", "body", "text"),
    [
        (
            "fleets/demo/network.tfstate",
            {"resources": [{"type": "aws_vpc"}, {"type": "aws_subnet"}]},
            "s3://my-state/fleets/demo/network.tfstate: still 2 resources, which would be orphaned. "
            "Fix: destroy its stack first.",
        ),
        (
            "fleets/demo/network.tfstate.tflock",
            {},
            "s3://my-state/fleets/demo/network.tfstate.tflock: Terraform is running, or was interrupted. "
            "Fix: wait, or run `terraform force-unlock` in its stack.",
        ),
        (
            "notes.txt",
            {},
            "s3://my-state: 1 objects are not Terraform states, notes.txt among them. Fix: move them to another bucket.",
        ),
    ],
)
def test_it_is_not_removed_while_something_is_in_it(aws: AwsSession, key: str, body: Any, text: str) -> None:
    _ensure(aws)
    aws.client("s3").put_object(Bucket="my-state", Key=key, Body=json.dumps(body))
    with pytest.raises(CheckFailed) as error:
        _remove(aws)
    assert str(error.value) == text
    assert state_bucket.inspect_bucket(aws, state_bucket.resolve_state_bucket(_build_fleet(), ARN)).exists


def test_a_fleet_with_local_state_has_no_bucket() -> None:
    with pytest.raises(InputError) as error:
        state_bucket.resolve_state_bucket(_build_fleet("local"), ARN)
    assert str(error.value) == "state: local: the fleet's state is a local file. Fix: write state: s3://BUCKET/PREFIX."


def test_without_credentials_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [variable for variable in os.environ if variable.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(Unavailable, match=r"no AWS credentials found\. Fix: sign in"):
        _ensure()
