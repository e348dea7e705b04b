"""Upload and check of a deployment's weights, against a real S3 server."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm_serving import processes
from llm_serving.catalog import models
from llm_serving.catalog.records import ModelRecord
from llm_serving.hub import source
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import weights

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def client(emulator_endpoint: str) -> Any:
    return emulator.create_client("s3", emulator_endpoint, "us-west-2")


@pytest.fixture
def deployment(
    emulator_endpoint: str, tmp_path: Path, client: Any, request: pytest.FixtureRequest
) -> ServingDeployment:
    """A deployment with an empty bucket."""
    resolved = planning.plan(
        ROOT / "blueprints/aggregated", ROOT / "fleet.yaml", root=tmp_path, target="local"
    ).deployment
    bucket = "w-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    environment = resolved.environment.model_copy(
        update={
            "bucket": bucket,
            "s3_endpoint": emulator_endpoint,
            "env": emulator.build_client_env(emulator_endpoint, "us-west-2"),
        }
    )
    return _set_weights(resolved.model_copy(update={"environment": environment}), f"s3://{bucket}/models/tiny/")


def _set_weights(deployment: ServingDeployment, uri: str, model: str = "tiny") -> ServingDeployment:
    """Return the deployment with its workers' weights at `uri`."""
    worker, router = deployment.roles
    assert worker.served_model
    new_weights = worker.served_model.weights.model_copy(update={"uri": uri})
    served_model = worker.served_model.model_copy(update={"weights": new_weights, "model": model})
    return deployment.model_copy(update={"roles": (worker.model_copy(update={"served_model": served_model}), router)})


@pytest.fixture
def deployment_dir(tmp_path: Path) -> DeploymentDir:
    return DeploymentDir("aggregated", tmp_path)


def _list_keys(client: Any, bucket: str) -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_a_generated_model_is_uploaded_completely_and_once(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any
) -> None:
    weights.upload_models(deployment_dir, deployment)
    # The files have headers besides the tensors.
    assert 0 < weights.check(deployment) - models.find("tiny").weight_bytes < 100_000
    stamps = {
        item["Key"]: item["LastModified"]
        for item in client.list_objects_v2(Bucket=deployment.environment.bucket)["Contents"]
    }
    weights.upload_models(deployment_dir, deployment)
    assert stamps == {
        item["Key"]: item["LastModified"]
        for item in client.list_objects_v2(Bucket=deployment.environment.bucket)["Contents"]
    }


def test_a_model_in_a_directory_is_uploaded(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any, folder: Path
) -> None:
    bucket = deployment.environment.bucket
    weights.upload_models(deployment_dir, _set_weights(deployment, f"s3://{bucket}/models/model/", str(folder)))
    assert "models/model/config.json" in _list_keys(client, bucket)


def test_weights_of_the_user_are_not_changed(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any
) -> None:
    weights.upload_models(deployment_dir, _set_weights(deployment, f"s3://{deployment.environment.bucket}/mine/"))
    assert _list_keys(client, deployment.environment.bucket) == []


def test_an_empty_bucket_is_refused(deployment: ServingDeployment) -> None:
    with pytest.raises(Unavailable) as error:
        weights.check(deployment)
    assert str(error.value) == (
        f"{deployment.served_models[0].weights.uri}: no model: config.json is missing. "
        "Fix: upload it with `blueprint model copy`."
    )


def test_a_model_without_weights_is_refused(deployment: ServingDeployment, client: Any) -> None:
    client.put_object(Bucket=deployment.environment.bucket, Key="models/tiny/config.json", Body=b"{}")
    with pytest.raises(Unavailable, match="no model: safetensors is missing"):
        weights.check(deployment)


def test_a_model_without_tokenizer_or_a_shard_is_refused(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any
) -> None:
    weights.upload_models(deployment_dir, deployment)
    assert weights.check(deployment)
    client.delete_object(Bucket=deployment.environment.bucket, Key="models/tiny/tokenizer.json")
    with pytest.raises(Unavailable, match=r"models/tiny/: no tokenizer: none of tokenizer\.json, .* is there"):
        weights.check(deployment)
    name = "model-00003-of-00004.safetensors"
    client.delete_object(Bucket=deployment.environment.bucket, Key=f"models/tiny/{name}")
    with pytest.raises(
        Unavailable, match=rf"/tiny/: model\.safetensors\.index\.json names .+ not there, {name} first\. Fix"
    ):
        weights.check(deployment)


def test_weights_of_another_revision_are_refused(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any
) -> None:
    weights.upload_models(deployment_dir, deployment)
    pinned = _set_revision(deployment, "v2")
    with pytest.raises(Unavailable, match='revision: "v2": no recorded copy is there'):
        weights.check(pinned)
    record = ModelRecord(source="someone/some-model", revision="main", commit="0123456789abcdef")
    key = f"models/tiny/{source.FILE}"
    client.put_object(Bucket=deployment.environment.bucket, Key=key, Body=record.model_dump_json().encode())
    with pytest.raises(Unavailable, match="a copy of someone/some-model at commit 0123456789ab is there"):
        weights.check(pinned)
    assert weights.check(_set_revision(deployment, "main"))
    assert weights.check(_set_revision(deployment, "0123456"))


def _set_revision(deployment: ServingDeployment, revision: str) -> ServingDeployment:
    def pin(role: Role) -> Role:
        assert role.served_model
        pinned_weights = role.served_model.weights.model_copy(update={"revision": revision})
        return role.model_copy(
            update={"served_model": role.served_model.model_copy(update={"weights": pinned_weights})}
        )

    roles = tuple(pin(role) if role.served_model else role for role in deployment.roles)
    return deployment.model_copy(update={"roles": roles})


@pytest.mark.parametrize("size", [0, 4, 200, 1_000_000])
def test_an_incomplete_object_is_named(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any, size: int
) -> None:
    weights.upload_models(deployment_dir, deployment)
    name = "model-00002-of-00004.safetensors"
    body = (deployment_dir.data / "model" / "tiny" / name).read_bytes()[:size]
    client.put_object(Bucket=deployment.environment.bucket, Key=f"models/tiny/{name}", Body=body)
    with pytest.raises(Unavailable) as error:
        weights.check(deployment)
    message = str(error.value)
    assert message.startswith(
        f"{deployment.served_models[0].weights.uri}{name}: incomplete or damaged: {size} bytes, expected "
    )
    assert re.search(r"expected 19\d+ by its header" if size > 200 else "expected a safetensors header", message)
    assert "\n" not in message


def test_a_missing_bucket_is_named(deployment: ServingDeployment) -> None:
    with pytest.raises(Unavailable, match=r"s3://demo-nowhere: \S+ has no such bucket"):
        weights.check(_set_weights(deployment, "s3://demo-nowhere/models/tiny/"))


def test_an_unreadable_bucket_names_the_denied_action(
    deployment: ServingDeployment, deployment_dir: DeploymentDir, client: Any
) -> None:
    weights.upload_models(deployment_dir, deployment)
    bucket = deployment.environment.bucket
    statement = {
        "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/*",
    }  # fmt: skip
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
    with pytest.raises(Unavailable, match="denies s3:GetObject"):
        weights.check(deployment)


def test_an_unreachable_s3_is_named(deployment: ServingDeployment) -> None:
    unreachable_url = f"http://127.0.0.1:{processes.claim_free_ports(1)[0]}"
    environment = deployment.environment.model_copy(update={"s3_endpoint": unreachable_url})
    with pytest.raises(Unavailable, match=f"{unreachable_url} does not answer"):
        weights.check(deployment.model_copy(update={"environment": environment}))
