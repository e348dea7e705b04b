"""What the tests of `blueprint sweep` and `blueprint tune` share: a blueprint, its account, and what answers its load.

Neither target runs engines here: a server with known delays stands in for them. It answers as many requests at once as
the deployment has replicas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_serving import paths
from llm_serving.cli import main
from llm_serving.fleet import aws_limits
from llm_serving.fleet.model import Fleet
from llm_serving.rehearsal import emulator
from llm_serving.targets.base import ValidationInputs
from llm_serving.targets.on_aws.aws_target import AwsTarget
from llm_serving.validation.remote import play as remote_play
from llm_serving.validation.search.knee import Point
from tests import known_server
from tests.known_server import Behaviour
from tests.validation.conftest import ignore_busy_machine, is_undisturbed, repeat_disturbed
from tests.validation.search.test_knee import build_point

BLUEPRINT = """\
pattern: aggregated
model: tiny
context: 1k
roles:
  worker: {pool: general, replicas: 2}
traffic: {arrivals: 4/s, process: constant, input_tokens: 16, output_tokens: 8, warm_up: 1}
slo:
  ttft_ms: {p50: 400}
"""

CountReplicas = Callable[[str], int]
"""Counts the ready replicas of a deployment by its name."""


def write_blueprint(folder: Path) -> None:
    """Write the blueprint `mine` below `folder`."""
    shutil.copytree(paths.PATTERNS / "aggregated", folder / "mine")
    (folder / "mine/blueprint.yaml").write_text(BLUEPRINT)


def create_results_bucket(endpoint: str, fleet: Fleet) -> None:
    """Create the bucket by which load drivers get their input and send their results."""
    bucket = aws_limits.build_bucket_name(fleet.name, "results", emulator.ACCOUNT, fleet.region)
    emulator.create_client("s3", endpoint, fleet.region).create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": fleet.region}
    )


def serve_known_answers(
    patch: pytest.MonkeyPatch, target: type[AwsTarget], count_replicas: CountReplicas, late_s: list[float]
) -> None:
    """Let the server answer the loads that a target's own drivers send, and shorten their waits.

    Args:
        late_s: gets how long the machine held up each server at the most.
    """
    patch.setattr(remote_play, "POLL_S", 0.2)
    patch.setattr(remote_play, "LEAD_S", 1.0)
    open_validation = target.open_validation

    @contextlib.contextmanager
    def open_server(self: AwsTarget, *arguments: Any, **options: Any) -> Iterator[ValidationInputs]:
        with open_validation(self, *arguments, **options) as inputs:
            source = inputs.options.load_source
            assert source and source.play, "the load comes from the fleet's network"
            slots = count_replicas(inputs.deployment.name) or 1
            with known_server.run_server(Behaviour(0.1, 0.01, slots=slots)) as url:
                unread = dataclasses.replace(source, pages=())
                options = dataclasses.replace(inputs.options, url=url, load_source=unread)
                yield dataclasses.replace(inputs, options=options)
                late_s.append(known_server.ask(url)["late_s"])

    patch.setattr(target, "open_validation", open_server)


def sweep(target: type[AwsTarget], count_replicas: CountReplicas, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Sweep `mine` from 4 to 8 requests a second, of which one replica keeps 4, and return the result."""
    command = ["sweep", "mine", "--target", target.name, "--from", "4", "--to", "8"]
    command += ["--precision", "100", "--point-time", "3s", "--json"]
    late_s: list[float] = []

    def sweep_once() -> int:
        shutil.rmtree("runs", ignore_errors=True)
        late_s.clear()
        capsys.readouterr()
        return main.run(command)

    def was_undisturbed(_: int) -> bool:
        folders = (file.parent for file in Path("runs").rglob("report.json"))
        return bool(late_s) and is_undisturbed(folders, {"late_s": max(late_s)})

    with pytest.MonkeyPatch.context() as patch, ignore_busy_machine():
        serve_known_answers(patch, target, count_replicas, late_s)
        code = repeat_disturbed(sweep_once, was_undisturbed)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result: dict[str, Any] = json.loads(captured.out)
    assert (result["kept"]["load"], result["missed"]["load"]) == (4, 8), "one request at once is 5.9/s"
    return result


class ReplicaLoader:
    """Sends nothing, in place of tune's loader: each replica of `mine-tune` keeps 4 requests a second."""

    def __init__(self, count_replicas: CountReplicas) -> None:
        self.count_replicas, self.seen, self.interrupted_at = count_replicas, list[int](), 0
        """The replicas at each load, and how many of them are there at the load that is interrupted; 0 for none."""

    def __call__(self, *_: object, **__: object) -> ReplicaLoader:
        return self

    def measure(self, load: float, earlier: Point | None) -> Point:
        self.seen.append(self.count_replicas("mine-tune"))
        if self.seen[-1] == self.interrupted_at:
            raise KeyboardInterrupt
        return build_point(load, "pass" if load <= 4 * self.seen[-1] else "fail", longer=earlier is not None)


def read_fix(errors: str, reason: str) -> list[str]:
    """Return the arguments of the command that standard error names for what could not be removed, and why."""
    [error, fix] = errors.splitlines()[-2:]
    assert error.endswith(f"mine-tune may still run, and cost: {reason}")
    return [*fix.removeprefix("Fix: run blueprint ").split(), "--yes"]
