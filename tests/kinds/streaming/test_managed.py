"""What is shown of a stream on AWS, where no replicas of ours run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from llm_serving import paths
from llm_serving.catalog import images
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.kind import KIND
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.ecs import load_tasks, readiness, tasks
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
        return KIND.list_managed(plan.deployment, {"kinesisanalyticsv2": stubber.client}.__getitem__)


@pytest.fixture
def stubber() -> Stubber:
    client = boto3.client(
        "kinesisanalyticsv2", region_name="us-west-2", aws_access_key_id="none", aws_secret_access_key="none"
    )
    return Stubber(client)


def answer(stubber: Stubber, status: str) -> None:
    """Let AWS say once how the job is, as botocore's model of the API has it."""
    groups = [
        {"PropertyGroupId": "settings", "PropertyMap": {"00": "{}"}},
        {"PropertyGroupId": "place", "PropertyMap": {"brokers": "b-1.example:9098", "cache": "rediss://c:6379"}},
    ]
    properties = {"PropertyGroupDescriptions": groups}
    detail = {
        "ApplicationARN": "arn:aws:kinesisanalytics:us-west-2:123456789012:application/cotton-shop",
        "ApplicationName": "cotton-shop",
        "RuntimeEnvironment": "FLINK-1_20",
        "ApplicationStatus": status,
        "ApplicationVersionId": 1,
        "ApplicationConfigurationDescription": {"EnvironmentPropertyDescriptions": properties},
    }
    stubber.add_response("describe_application", {"ApplicationDetail": detail}, {"ApplicationName": "cotton-shop"})


@pytest.mark.parametrize(("status", "state"), [("RUNNING", "ready"), ("STARTING", "starting"), ("READY", "stopped")])
def test_status_shows_the_job(plan: DeploymentPlan, stubber: Stubber, status: str, state: str) -> None:
    answer(stubber, status)
    assert list_rows(plan, stubber) == [
        {"name": "cotton-shop", "role": "job", "state": state, "restarts": 0, "machine": "4 KPUs"}
    ]


def test_status_shows_nothing_of_a_stream_that_is_not_deployed(plan: DeploymentPlan, stubber: Stubber) -> None:
    stubber.add_client_error("describe_application", "ResourceNotFoundException")
    assert list_rows(plan, stubber) == []


def test_a_stream_has_no_endpoint_for_a_tunnel(plan: DeploymentPlan) -> None:
    with pytest.raises(InputError) as refused, tasks.open_tunnel(plan):
        pytest.fail("there is no tunnel")
    assert str(refused.value) == (
        "shop: nothing of it answers HTTP requests. Fix: send events from the fleet's network, and read its topics there."
    )


def test_check_says_what_aws_runs(plan: DeploymentPlan) -> None:
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


@pytest.mark.parametrize(
    ("sizes", "heap_gb"),
    [
        ("", ""),
        ("partitions: 64\naws: {parallelism: 64, brokers: 6}\n", "44 GB"),
        ("partitions: 64\naws: {parallelism: 64, brokers: 6}\ncheckpoint: 30s\n", ""),
    ],
)
def test_producers_that_fill_the_heap_of_the_brokers_have_a_note(
    plan: DeploymentPlan, sizes: str, heap_gb: str
) -> None:
    folder = plan.blueprint.path.parent
    (folder / "blueprint.yaml").write_text(BLUEPRINT + sizes)
    notes = planning.plan_offline(folder, Path("fleet.yaml"), "ecs").deployment.notes
    assert [f"take {heap_gb} of its heap" in note for note in notes] == [True] * bool(heap_gb)


def test_a_validation_learns_from_the_job_where_kafka_is(plan: DeploymentPlan, stubber: Stubber) -> None:
    assert isinstance(plan.deployment, StreamingDeployment)
    assert plan.deployment.brokers == ""
    answer(stubber, "RUNNING")
    with stubber:
        found = KIND.find_addresses(plan.deployment, {"kinesisanalyticsv2": stubber.client}.__getitem__)
    assert found.brokers == "b-1.example:9098"


def test_where_kafka_is_of_a_stream_that_is_not_deployed_is_unknown(plan: DeploymentPlan, stubber: Stubber) -> None:
    assert isinstance(plan.deployment, StreamingDeployment)
    stubber.add_client_error("describe_application", "ResourceNotFoundException")
    with stubber, pytest.raises(Unavailable) as error:
        KIND.find_addresses(plan.deployment, {"kinesisanalyticsv2": stubber.client}.__getitem__)
    assert str(error.value) == "shop: not deployed on ecs. Fix: run blueprint deploy."


@pytest.fixture
def deployed(plan: DeploymentPlan, stubber: Stubber, monkeypatch: pytest.MonkeyPatch) -> DeploymentPlan:
    monkeypatch.setattr(readiness, "_POLL_INTERVAL_S", 0.0)
    session: Any = SimpleNamespace(client={"kinesisanalyticsv2": stubber.client}.__getitem__)
    return dataclasses.replace(plan, aws=session)


def test_a_validation_waits_until_the_job_runs(deployed: DeploymentPlan, stubber: Stubber) -> None:
    for status in ("STARTING", "STARTING", "RUNNING"):
        answer(stubber, status)
    with stubber:
        readiness.wait_until_managed_run(deployed)
    stubber.assert_no_pending_responses()


def test_a_job_that_does_not_start_is_named_with_its_state(
    deployed: DeploymentPlan, stubber: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_MANAGED_TIMEOUT_S", -1)
    answer(stubber, "READY")  # AWS's word for one that is stopped
    with stubber, pytest.raises(CheckFailed) as error:
        readiness.wait_until_managed_run(deployed)
    assert str(error.value) == "shop does not run: cotton-shop is stopped. Fix: see `blueprint logs`."


def test_a_validation_of_what_is_not_deployed_is_refused(deployed: DeploymentPlan, stubber: Stubber) -> None:
    stubber.add_client_error("describe_application", "ResourceNotFoundException")
    with stubber, pytest.raises(Unavailable) as error:
        readiness.wait_until_managed_run(deployed)
    assert str(error.value) == "shop: not deployed on ecs. Fix: run blueprint deploy."


def test_the_driver_runs_in_javas_image_with_the_jobs_jar_its_role_and_both_groups(plan: DeploymentPlan) -> None:
    assert isinstance(plan.deployment, StreamingDeployment) and plan.deployment.stack
    program = KIND.build_load_program(plan.deployment)
    assert program
    assert program.image == images.pin(images.JAVA) and "@sha256:" in program.image
    assert program.archive == f"s3://{plan.deployment.stack.bucket}/{plan.deployment.stack.archive_key}"
    definition = load_tasks.build_definition(
        dataclasses.replace(plan, aws=_SIGNED_IN), "arn:of:the:secret", ["A"], program
    )
    assert definition["taskRoleArn"] == "arn:aws:iam::123456789012:role/cotton-us-west-2-shop-send"
    [container] = definition["containerDefinitions"]
    assert container["user"] == "65532:65532"
    assert program.security_groups == ("cotton-shop-clients",)


_SIGNED_IN: Any = SimpleNamespace(
    client=lambda _: SimpleNamespace(
        get_caller_identity=lambda: {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me"}
    )
)


def test_the_driver_goes_through_the_fleets_image_cache(plan: DeploymentPlan) -> None:
    assert isinstance(plan.deployment, StreamingDeployment)
    environment = plan.deployment.environment.model_copy(update={"image_prefixes": {"public.ecr.aws": "r/cotton-ecr"}})
    program = KIND.build_load_program(plan.deployment.model_copy(update={"environment": environment}))
    assert program and program.image.startswith("r/cotton-ecr/docker/library/eclipse-temurin:17")
