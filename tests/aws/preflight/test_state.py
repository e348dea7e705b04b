from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws import state_bucket as bootstrap
from llm_serving.aws.preflight import identity, state
from llm_serving.aws.preflight.check import CheckResult
from llm_serving.aws.session import AwsSession

HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\nstate: s3://my-state/fleets\n"
POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"


def _collect_lines(aws: AwsSession, document: Any) -> list[CheckResult]:
    caller = identity.fetch_identity(aws)
    return [
        line
        for check in state.list_checks(aws, document.value, caller, "my fleet.yaml")
        for line in check.list_results()
    ]


def test_local_state_is_not_asked_about(stubbed_aws: Any, read_fleet: Any) -> None:
    caller = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    assert state.list_checks(stubbed_aws, read_fleet(POOL).value, caller, "fleet.yaml") == []


@pytest.mark.terraform
def test_a_missing_bucket_is_a_warning_with_the_command_that_creates_it(account: AwsSession, read_fleet: Any) -> None:
    (line,) = _collect_lines(account, read_fleet(POOL, HEAD))
    assert (line.name, line.status, line.message) == ("s3://my-state", "warn", "does not exist yet")
    assert line.build_payload()["command"] == "blueprint state make --fleet 'my fleet.yaml'"


@pytest.mark.terraform
def test_a_bucket_without_versioning_fails_with_the_command_that_turns_it_on(
    account: AwsSession, read_fleet: Any
) -> None:
    document = read_fleet(POOL, HEAD)
    bootstrap.ensure_state_bucket(document.value, account, confirm=lambda: True)
    assert [line.status for line in _collect_lines(account, document)] == ["pass"]
    suspended = {"Status": "Suspended"}
    account.client("s3").put_bucket_versioning(Bucket="my-state", VersioningConfiguration=suspended)
    (line,) = _collect_lines(account, document)
    assert line.status == "fail"
    assert line.message == "it has no versioning: a state that is overwritten is lost"
    assert line.build_payload()["command"] == (
        'aws s3api put-bucket-versioning --bucket my-state --versioning-configuration \'{"Status": "Enabled"}\''
    )


@pytest.mark.terraform
def test_a_bare_bucket_fails_where_a_state_is_in_danger_and_warns_elsewhere(
    account: AwsSession, read_fleet: Any
) -> None:
    bucket_config = {"LocationConstraint": "us-west-2"}
    account.client("s3").create_bucket(Bucket="my-state", CreateBucketConfiguration=bucket_config)
    status_by_message = {line.message: line.status for line in _collect_lines(account, read_fleet(POOL, HEAD))}
    assert status_by_message["it allows public access"] == "fail"
    assert status_by_message["it has no versioning: a state that is overwritten is lost"] == "fail"
    assert status_by_message["it allows access without TLS"] == "warn"


def test_a_bucket_of_somebody_else_fails(stubbed_aws: Any, read_fleet: Any) -> None:
    # The embedded AWS owns every bucket; S3's refusal is recorded.
    caller = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    stubbed_aws.stub("s3").add_client_error("head_bucket", "403", "Forbidden", 403)
    (check,) = state.list_checks(stubbed_aws, read_fleet(POOL, HEAD).value, caller, "fleet.yaml")
    (line,) = check.list_results()
    assert line.status == "fail"
    assert line.message == "it belongs to another account, or this identity has no access to it"


def test_a_bucket_in_another_region_fails(stubbed_aws: Any, read_fleet: Any) -> None:
    caller = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    stubbed_aws.stub("s3").add_response("head_bucket", {"BucketRegion": "eu-west-1"})
    (check,) = state.list_checks(stubbed_aws, read_fleet(POOL, HEAD).value, caller, "fleet.yaml")
    (line,) = check.list_results()
    assert (line.status, line.message) == ("fail", "it is in eu-west-1, and the fleet in us-west-2")
