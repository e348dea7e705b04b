from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws import state_bucket as bootstrap
from llm_serving.aws.preflight import identity, state
from llm_serving.aws.preflight.check import Line
from llm_serving.aws.session import Aws

HEAD = "name: demo\nregion: us-west-2\nzones: [us-west-2a]\nstate: s3://my-state/fleets\n"
POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"


def _lines(aws: Aws, document: Any) -> list[Line]:
    who = identity.whoami(aws)
    return [line for one in state.questions(aws, document.value, who, "my fleet.yaml") for line in one.ask()]


def test_local_state_is_not_asked_about(stubbed: Any, fleet: Any) -> None:
    who = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    assert state.questions(stubbed, fleet(POOL).value, who, "fleet.yaml") == []


@pytest.mark.terraform
def test_a_bucket_that_is_not_there_yet_is_a_warning_with_the_command_that_makes_it(account: Aws, fleet: Any) -> None:
    (line,) = _lines(account, fleet(POOL, HEAD))
    assert (line.about, line.status, line.said) == ("s3://my-state", "warn", "it is not there yet")
    assert line.plain()["command"] == "blueprint state make --fleet 'my fleet.yaml'"


@pytest.mark.terraform
def test_a_bucket_without_versioning_fails_with_the_command_that_turns_it_on(account: Aws, fleet: Any) -> None:
    document = fleet(POOL, HEAD)
    bootstrap.ensure_state_bucket(document.value, agree=lambda: True, aws=account)
    assert [line.status for line in _lines(account, document)] == ["pass"]
    suspended = {"Status": "Suspended"}
    account.client("s3").put_bucket_versioning(Bucket="my-state", VersioningConfiguration=suspended)
    (line,) = _lines(account, document)
    assert line.status == "fail"
    assert line.said == "it keeps no versions: a state that is overwritten is lost"
    assert line.plain()["command"] == (
        'aws s3api put-bucket-versioning --bucket my-state --versioning-configuration \'{"Status": "Enabled"}\''
    )


@pytest.mark.terraform
def test_a_bare_bucket_fails_where_a_state_is_in_danger_and_warns_elsewhere(account: Aws, fleet: Any) -> None:
    where = {"LocationConstraint": "us-west-2"}
    account.client("s3").create_bucket(Bucket="my-state", CreateBucketConfiguration=where)
    found = {line.said: line.status for line in _lines(account, fleet(POOL, HEAD))}
    assert found["it may be opened to the public"] == "fail"
    assert found["it keeps no versions: a state that is overwritten is lost"] == "fail"
    assert found["it answers without TLS"] == "warn"


def test_a_bucket_of_somebody_else_fails(stubbed: Any, fleet: Any) -> None:
    # The embedded AWS owns every bucket; S3's refusal is recorded.
    who = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    stubbed.stub("s3").add_client_error("head_bucket", "403", "Forbidden", 403)
    (question,) = state.questions(stubbed, fleet(POOL, HEAD).value, who, "fleet.yaml")
    (line,) = question.ask()
    assert line.status == "fail"
    assert line.said == "it belongs to another account, or this identity may not see it"


def test_a_bucket_in_another_region_fails(stubbed: Any, fleet: Any) -> None:
    who = identity.Identity("123456789012", "arn:aws:iam::123456789012:user/anna")
    stubbed.stub("s3").add_response("head_bucket", {"BucketRegion": "eu-west-1"})
    (question,) = state.questions(stubbed, fleet(POOL, HEAD).value, who, "fleet.yaml")
    (line,) = question.ask()
    assert (line.status, line.said) == ("fail", "it is in eu-west-1, and the fleet in us-west-2")
