"""`blueprint adapter --target eks|ecs`: the files in a real S3 server, and containers that are processes of this machine."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from llm_serving.aws import s3
from llm_serving.cli import main
from llm_serving.kinds.serving import adapter_program
from llm_serving.settings.errors import Unavailable
from llm_serving.targets.on_aws.aws_target import AwsTarget, load_aws_target
from llm_serving.targets.on_aws.replicas import ReplicaContainer
from tests.targets.on_aws import test_adapters as deployed

pytestmark = pytest.mark.terraform


def run_here(target: str, folder: Path, command: list[str], line: str, *, limit_s: float) -> str:
    """Run a command as a container would, whose folder for temporary files is `folder`."""
    assert "X-Amz-Signature" not in " ".join(command), "the cluster's audit log has it"
    assert command[0] == "python3"
    folder.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, *command[1:], *([line] if target == "ecs" else [])],
        input=f"{line}\n",
        env={"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return f"Starting session\r\n{result.stdout}{result.stderr}\r\nExiting session"


def fail(command: list[str], line: str, *, limit_s: float) -> str:
    raise Unavailable("the container is not running")


@pytest.fixture(params=["eks", "ecs"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsTarget:
    """A target, and the working directory with the blueprint `mine`, whose adapter is in the test's bucket."""
    monkeypatch.chdir(tmp_path)
    return load_aws_target(request.param)


def run_cli(target: AwsTarget, command: str, *words: str) -> int:
    return main.run(["adapter", command, "mine", "worker", *words, "--target", target.name])


def test_every_node_of_a_replica_copies_it_and_a_failure_names_its_container(
    target: AwsTarget,
    bucket: s3.Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployed.upload_adapter(bucket)
    location = f"s3://{bucket.location.bucket}/lora/sql"
    deployed.make_plan(tmp_path, location, target.name)
    follower = ReplicaContainer("follower", False, functools.partial(run_here, target.name, tmp_path / "follower"))
    containers = [ReplicaContainer("late", True, fail), follower]
    monkeypatch.setattr(target, "list_containers", lambda *_: containers)
    assert run_cli(target, "load", "new", location) == 1
    output = capsys.readouterr()
    assert output.out == "follower: copied\n"
    assert output.err.endswith(
        "1 of 2 replicas of worker failed:\n  late: the container is not running\n"
        "Fix: run the command again; what is done already stays as it is.\n"
    )
    [weights] = (tmp_path / "follower").rglob("adapter_model.safetensors")
    assert weights.read_text() == "weights"
    monkeypatch.setattr(target, "list_containers", lambda *_: [follower])
    assert run_cli(target, "load", "new", location) == 0
    assert capsys.readouterr().out == (
        "follower: copied\nnew: replicas that start from now on do not have it. To keep it, add "
        f"`new: {location}` to `adapters` of worker in mine/blueprint.yaml and deploy.\n"
    )
    assert run_cli(target, "unload", "new") == 0
    assert (weights.parent / adapter_program.UNLOADED).exists()


def test_an_adapter_that_does_not_fit_is_refused_before_any_container_is_asked(
    target: AwsTarget,
    bucket: s3.Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    location = f"s3://{bucket.location.bucket}/lora/sql"
    deployed.make_plan(tmp_path, location, target.name)
    monkeypatch.setattr(target, "list_containers", lambda *_: [])
    deployed.upload_adapter(bucket, base=deployed.OTHER)
    for place, reason in (
        (
            "mine/sql",
            f"a container on {target.name} cannot read this folder. "
            "Fix: use s3://BUCKET/PREFIX; `blueprint model copy FOLDER --to` uploads it.",
        ),
        (
            location,
            f"it was trained on {deployed.OTHER}, and the role serves {deployed.MODEL}. "
            f"Fix: use an adapter of {deployed.MODEL}, or a role of {deployed.OTHER}.",
        ),
    ):
        assert run_cli(target, "load", "new", place) == 2
        assert capsys.readouterr().err.endswith(f'FOLDER: "{place}": {reason}\n')
    deployed.upload_adapter(bucket)
    assert run_cli(target, "load", "new", location) == 1
    assert capsys.readouterr().err.endswith(
        f"mine: no replica of worker runs on {target.name}. Fix: deploy it first.\n"
    )
