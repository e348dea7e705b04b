"""Adapters in S3 before a deployment: the bucket is a real one of the embedded AWS."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws import s3
from llm_serving.settings.errors import InputError, Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.on_aws import remote_files
from llm_serving.targets.on_aws.aws_target import load_aws_target

PATTERN = Path(__file__).parents[3] / "blueprints" / "aggregated"
MODEL, OTHER = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"


@pytest.fixture
def location(bucket: s3.Bucket) -> str:
    """s3://BUCKET/PREFIX of an adapter."""
    return f"s3://{bucket.location.bucket}/lora/sql"


def upload_adapter(
    bucket: s3.Bucket, base: str = MODEL, rank: int = 16, files: tuple[str, ...] = (), text: str = ""
) -> None:
    config = {"base_model_name_or_path": base, "r": rank}
    content = {"adapter_config.json": text or json.dumps(config), "adapter_model.safetensors": "weights"}
    for name in files or content:
        key = f"lora/sql/{name}"
        bucket._client.put_object(Bucket=bucket.location.bucket, Key=key, Body=content.get(name, "").encode())


def make_plan(folder: Path, location: str, target: str = "eks") -> DeploymentPlan:
    (folder / "fleet.yaml").write_text(
        "name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\norchestrator: both\n"
        f"storage: {{model_buckets: {{bucket: {s3.parse_location(location).bucket}}}}}\n"
        "pools:\n  eks: {types: g6e.2xlarge, size: 0..4}\n  ecs: {types: g6e.2xlarge, size: 0..4, orchestrator: ecs}\n"
    )
    blueprint_folder = folder / "mine"
    shutil.copytree(PATTERN, blueprint_folder, dirs_exist_ok=True)
    (blueprint_folder / "blueprint.yaml").write_text(
        f"pattern: aggregated\nmodel: {MODEL}\nroles:\n  worker:\n    pool: {target}\n    adapters:\n"
        f"      sql: {location}\ntraffic: {{users: 2, input_tokens: 32, output_tokens: 8}}\nslo: {{}}\n"
    )
    return planning.plan(blueprint_folder, folder / "fleet.yaml", target=target, root=folder, account="123456789012")


def get_error(blueprint_plan: DeploymentPlan) -> str:
    """Return the error without the folder; empty if the adapter is accepted."""
    try:
        remote_files.check(blueprint_plan)
    except InputError as error:
        return str(error).replace(f"{blueprint_plan.folder}/", "")
    return ""


@pytest.mark.terraform
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, ""),
        ({"base": f"{MODEL}-FP8"}, ""),
        (
            {"base": OTHER},
            f"it was trained on {OTHER}, and the role serves {MODEL}. Fix: use an adapter of {MODEL}, or a role of {OTHER}.",
        ),
        (
            {"rank": 128},
            "its rank is 128, and replicas reserve memory for 64. Fix: use an adapter of rank 64 or less.",
        ),
        (
            {"files": ("adapter_config.json",)},
            "PLACE has no adapter_model.safetensors. Fix: use a folder that PEFT wrote.",
        ),
        (
            {"files": ("README.md",)},
            "PLACE has no adapter_config.json and no adapter_model.safetensors. Fix: use a folder that PEFT wrote.",
        ),
        (
            {"text": "{"},
            f"it was trained on a model that it does not name, and the role serves {MODEL}. Fix: use an adapter of {MODEL}.",
        ),
    ],
)
def test_an_adapter_in_s3_of_another_model_is_refused_at_its_line(
    bucket: s3.Bucket, location: str, tmp_path: Path, content: dict[str, Any], reason: str
) -> None:
    upload_adapter(bucket, **content)
    message = (
        f'blueprint.yaml:7:12: roles.worker.adapters.sql: "{location}": {reason.replace("PLACE", location)}'
        if reason
        else ""
    )
    assert get_error(make_plan(tmp_path, location)) == message


@pytest.mark.terraform
@pytest.mark.parametrize("target", ["eks", "ecs"])
def test_adapters_are_checked_before_anything_is_deployed(
    bucket: s3.Bucket, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    deployed: list[str] = []
    selected_target = load_aws_target(target)
    monkeypatch.setattr(selected_target, "apply", lambda plan, *_, **__: deployed.append(plan.deployment.name))
    blueprint_plan = make_plan(tmp_path, location, target)
    upload_adapter(bucket, base=OTHER)
    with pytest.raises(InputError, match="it was trained on"):
        selected_target.deploy(blueprint_plan, lambda _: None, force=False)
    assert deployed == []
    upload_adapter(bucket)
    selected_target.deploy(blueprint_plan, lambda _: None, force=False)
    assert deployed == ["mine"]


@pytest.mark.terraform
def test_a_missing_bucket_is_reported(aws: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"s3://nobody-has-this: .* has no such bucket"):
        remote_files.check(make_plan(tmp_path, "s3://nobody-has-this/lora"))


def test_adapters_that_only_the_engines_may_read_are_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise s3.AccessDenied("s3://theirs: AWS denies s3:ListBucket (403).")

    monkeypatch.setattr(s3, "Bucket", deny)
    remote_files.check(make_plan(tmp_path, "s3://theirs/lora"))
    errors = " ".join(capsys.readouterr().err.split())
    assert "s3://theirs/lora: not checked against its model: s3://theirs: AWS denies s3:ListBucket" in errors
