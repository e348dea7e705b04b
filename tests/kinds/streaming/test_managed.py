"""What is shown of a stream on AWS, where no replicas of ours run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving import paths
from llm_serving.kinds.streaming import managed
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import stack
from tests.infra.streaming.conftest import FLEET

BLUEPRINT = """\
kind: streaming
pattern: near-real-time
endpoint: {url: "https://llm.example.com", model: tiny}
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentPlan:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(paths.PATTERNS / "near-real-time", tmp_path / "shop"))
    (folder / "blueprint.yaml").write_text(BLUEPRINT)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return planning.plan_offline(folder, tmp_path / "fleet.yaml", "ecs")


def list_rows(plan: DeploymentPlan, stubber: Stubber) -> list[dict[str, Any]]:
    assert isinstance(plan.deployment, StreamingDeployment)
    with stubber:
        return managed.list_rows(plan.deployment, {"kinesisanalyticsv2": stubber.client}.__getitem__)


@pytest.fixture
def stubber() -> Stubber:
    client = boto3.client(
        "kinesisanalyticsv2", region_name="us-west-2", aws_access_key_id="none", aws_secret_access_key="none"
    )
    return Stubber(client)


@pytest.mark.parametrize(("status", "state"), [("RUNNING", "ready"), ("STARTING", "starting")])
def test_status_shows_the_job(plan: DeploymentPlan, stubber: Stubber, status: str, state: str) -> None:
    detail = {
        "ApplicationARN": "arn:aws:kinesisanalytics:us-west-2:123456789012:application/cotton-shop",
        "ApplicationName": "cotton-shop",
        "RuntimeEnvironment": "FLINK-1_20",
        "ApplicationStatus": status,
        "ApplicationVersionId": 1,
    }
    stubber.add_response("describe_application", {"ApplicationDetail": detail}, {"ApplicationName": "cotton-shop"})
    assert list_rows(plan, stubber) == [
        {"name": "cotton-shop", "role": "job", "state": state, "restarts": 0, "machine": "4 KPUs"}
    ]


def test_status_shows_nothing_of_a_stream_that_is_not_deployed(plan: DeploymentPlan, stubber: Stubber) -> None:
    stubber.add_client_error("describe_application", "ResourceNotFoundException")
    assert list_rows(plan, stubber) == []


def test_a_stream_has_no_endpoint_for_a_tunnel(plan: DeploymentPlan) -> None:
    with pytest.raises(InputError) as refused:
        stack.open_tunnel(plan)
    assert str(refused.value) == (
        "shop: nothing of it answers HTTP requests. Fix: send events from the fleet's network, and read its topics there."
    )


def test_check_says_what_aws_runs(plan: DeploymentPlan) -> None:
    from llm_serving.kinds.streaming.kind import KIND

    assert isinstance(plan.deployment, StreamingDeployment)
    deployment = plan.deployment.model_copy(update={"answer_files": "s3://shop/answers/"})
    listed = list(KIND.describe(plan.blueprint, deployment))
    rows = dict(listed)
    assert len(rows) == len(listed), "nothing is said twice"
    assert rows["kafka"] == "3 x kafka.m7g.large of MSK, 100 GiB each"
    assert rows["job"] == "4 KPUs of Managed Service for Apache Flink, and one to manage them"
    assert rows["cache"] == "2 x cache.m7g.large of ElastiCache for Valkey"
    assert rows["parquet"] == "s3://shop/answers/"
    plain = dict(KIND.describe(plan.blueprint, plan.deployment))
    assert (plain["cache"], "parquet" in plain) == (rows["cache"], False)
