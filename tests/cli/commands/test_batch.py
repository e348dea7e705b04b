"""`blueprint batch` on a target: it talks to the Batch API through what the target opens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from llm_serving.cli.commands import batch
from llm_serving.targets import registry
from llm_serving.workloads.batch.deployment import BatchDeployment


class Target:
    """A target whose deployment is reached by a tunnel."""

    def __init__(self, deployment: Any) -> None:
        self.deployment = deployment
        self.asked: list[tuple[Path, Path, str | None]] = []
        self.is_open = False

    @contextlib.contextmanager
    def open_validation(self, folder: Path, fleet_file: Path, url: str | None) -> Iterator[Any]:
        self.asked.append((folder, fleet_file, url))
        self.is_open = True
        yield SimpleNamespace(deployment=self.deployment, url="http://127.0.0.1:1234")
        self.is_open = False


def test_a_job_on_ecs_is_listed_through_a_tunnel_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(BatchDeployment.model_construct(kind="batch", url="http://mine-batch-api.cotton.internal:8080"))
    urls: list[str] = []

    def list_batches(client: Any) -> Iterator[Any]:
        assert target.is_open
        urls.append(client._url)
        return iter(())

    monkeypatch.setattr(registry, "load_target", {"ecs": target}.__getitem__)
    monkeypatch.setattr(batch.BatchClient, "list_batches", list_batches)
    result = CliRunner().invoke(batch.app, ["list", "mine", "--target", "ecs", "--fleet", "other.yaml", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == []
    assert urls == ["http://127.0.0.1:1234"]
    assert target.asked == [(Path("mine"), Path("other.yaml"), None)]
    assert not target.is_open


def test_a_deployment_of_another_kind_has_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(SimpleNamespace(kind="serving", url=""))
    monkeypatch.setattr(registry, "load_target", lambda _: target)
    result = CliRunner().invoke(batch.app, ["list", "mine"])
    assert str(result.exception) == "mine: now kind: serving: it has no jobs. Fix: a batch blueprint."
