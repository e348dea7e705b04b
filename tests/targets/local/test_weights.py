"""Weights put into the bucket of a deployment, and told where they are not whole, against a real S3 server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.local import deploy, weights
from llm_serving.targets.local.deployment_dir import Run
from llm_serving.workloads.serving.deployment import Deployment

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(embedded: str) -> Any:
    return emulator.client("s3", embedded, "us-west-2")


@pytest.fixture
def deployment(embedded: str, tmp_path: Path, client: Any, request: pytest.FixtureRequest) -> Deployment:
    """A deployment whose bucket is there and empty."""
    made = deploy.plan(ROOT / "blueprints/aggregated", ROOT / "fleet.yaml", root=tmp_path).deployment
    bucket = "w-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    place = made.place.model_copy(
        update={
            "bucket": bucket,
            "s3_endpoint": embedded,
            "environment": emulator.client_environment(embedded, "us-west-2"),
        }
    )
    return _serving(made.model_copy(update={"place": place}), f"s3://{bucket}/models/tiny/")


def _serving(deployment: Deployment, uri: str, model: str = "tiny") -> Deployment:
    """The deployment with its workers' weights at `uri`."""
    worker, router = deployment.roles
    assert worker.serves
    there = worker.serves.weights.model_copy(update={"uri": uri})
    serves = worker.serves.model_copy(update={"weights": there, "model": model})
    return deployment.model_copy(update={"roles": (worker.model_copy(update={"serves": serves}), router)})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("aggregated", tmp_path)


def _keys(client: Any, bucket: str) -> list[str]:
    return [one["Key"] for one in client.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_a_made_model_is_put_whole_and_only_once(deployment: Deployment, run: Run, client: Any) -> None:
    weights.put(run, deployment)
    # The files' headers come on top of the tensors.
    assert 0 < weights.check(deployment) - models.find("tiny").weight_bytes < 100_000
    stamps = {
        one["Key"]: one["LastModified"] for one in client.list_objects_v2(Bucket=deployment.place.bucket)["Contents"]
    }
    weights.put(run, deployment)
    assert stamps == {
        one["Key"]: one["LastModified"] for one in client.list_objects_v2(Bucket=deployment.place.bucket)["Contents"]
    }


def test_a_model_in_a_folder_is_put(deployment: Deployment, run: Run, client: Any, folder: Path) -> None:
    bucket = deployment.place.bucket
    weights.put(run, _serving(deployment, f"s3://{bucket}/models/model/", str(folder)))
    assert "models/model/config.json" in _keys(client, bucket)


def test_weights_of_ones_own_are_left_alone(deployment: Deployment, run: Run, client: Any) -> None:
    weights.put(run, _serving(deployment, f"s3://{deployment.place.bucket}/mine/"))
    assert _keys(client, deployment.place.bucket) == []


def test_an_emptied_bucket_is_told(deployment: Deployment) -> None:
    with pytest.raises(Unavailable) as refused:
        weights.check(deployment)
    assert str(refused.value) == (
        f"{deployment.models[0].weights.uri}: there is no model there, no config.json; "
        "put it there with `blueprint model copy`"
    )


def test_a_model_without_weights_is_told(deployment: Deployment, client: Any) -> None:
    client.put_object(Bucket=deployment.place.bucket, Key="models/tiny/config.json", Body=b"{}")
    with pytest.raises(Unavailable, match="there is no model there, no safetensors"):
        weights.check(deployment)


@pytest.mark.parametrize("kept", [0, 4, 200, 1_000_000])
def test_an_object_cut_short_is_named(deployment: Deployment, run: Run, client: Any, kept: int) -> None:
    weights.put(run, deployment)
    name = "model-00002-of-00004.safetensors"
    body = (run.data / "model" / "tiny" / name).read_bytes()[:kept]
    client.put_object(Bucket=deployment.place.bucket, Key=f"models/tiny/{name}", Body=body)
    with pytest.raises(Unavailable) as refused:
        weights.check(deployment)
    said = str(refused.value)
    assert said.startswith(f"{deployment.models[0].weights.uri}{name}: it is cut short or damaged: {kept} bytes, and ")
    assert ("its header speaks of 19" if kept > 200 else "no header of a safetensors file") in said
    assert "\n" not in said


def test_a_bucket_that_is_not_there_is_told(deployment: Deployment) -> None:
    with pytest.raises(Unavailable, match=r"s3://demo-nowhere: \S+ has no such bucket"):
        weights.check(_serving(deployment, "s3://demo-nowhere/models/tiny/"))


def test_a_bucket_that_nobody_may_read_is_told(deployment: Deployment, run: Run, client: Any) -> None:
    weights.put(run, deployment)
    bucket = deployment.place.bucket
    statement = {
        "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*",
    }  # fmt: skip
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    with pytest.raises(Unavailable, match="denies s3:GetObject"):
        weights.check(deployment)


def test_an_s3_that_does_not_answer_is_told(deployment: Deployment) -> None:
    nobody = f"http://127.0.0.1:{processes.free_ports(1)[0]}"
    place = deployment.place.model_copy(update={"s3_endpoint": nobody})
    with pytest.raises(Unavailable, match=f"{nobody} does not answer"):
        weights.check(deployment.model_copy(update={"place": place}))
