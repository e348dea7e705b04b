from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest

from llm_serving.kinds.serving.blueprint import Disruption
from llm_serving.kinds.serving.deployment import Role, ServingDeployment
from llm_serving.kinds.serving.validation import validate
from llm_serving.services.environment import Environment
from llm_serving.services.models import ServedModel, Weights
from llm_serving.services.service import Service
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.units import Bounds
from llm_serving.targets.local.environment import CONVENTIONS
from llm_serving.validation import run
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load.answer import Sample
from llm_serving.validation.load_target import LoadTarget
from llm_serving.validation.reports.report import Report
from llm_serving.validation.statistics import soundness
from tests import known_server
from tests.known_server import Behaviour

TargetFactory = Callable[..., LoadTarget]

MAX_DISTURBANCE_S = 0.3
"""Delay of a process by the machine that changes no verdict of these tests."""

_TRIES = 5

Played = TypeVar("Played")


@pytest.fixture(scope="session")
def make_target() -> TargetFactory:
    """Makes the target of a load whose one worker, router and address are the server at a URL."""
    return build_target


def build_target(url: str, traffic: dict[str, Any], slo: dict[str, Any] | None = None, **settings: Any) -> LoadTarget:
    """Return the target of a load on a server at a URL, of a deployment with other settings."""
    deployment = build_deployment(url, traffic, slo).model_copy(update=settings)
    return validate.build_target(deployment, Path("logs"))


def build_deployment(
    url: str, traffic: dict[str, Any], slo: dict[str, Any] | None = None, *, random: bool = True
) -> ServingDeployment:
    port = urlsplit(url).port or 0
    weights = Weights(uri="s3://models/tiny/", loader="runai_streamer", bytes=1, random=random)
    return ServingDeployment(
        name="known",
        pattern="aggregated",
        target="local",
        fleet="demo",
        engine="vllm",
        framework="plain",
        objects="plain",
        roles=(
            _build_role("engine", "worker", ServedModel(model="tiny", name="tiny", weights=weights, context=4096)),
            _build_role("router", "router"),
        ),
        services=_build_services(port),
        url=url,
        disruption=Disruption(),
        request_timeout_s=1800,
        traffic=Traffic.model_validate(traffic),
        slo=Slo.model_validate(slo or {}),
        environment=Environment(target="local", conventions=CONVENTIONS, region="us-west-2", bucket="models"),
        emulated=("A server with known delays stands in for vLLM.",),
    )


def _build_role(kind: Literal["engine", "router"], name: str, serves: ServedModel | None = None) -> Role:
    return Role(
        name=name,
        kind=kind,
        served_model=serves,
        pool="general",
        replicas=Bounds(1, 1),
        kv_block=128 if kind == "engine" else 0,
        metrics={"requests": "vllm_router_(pd_)?requests_total"} if kind == "router" else {},
    )


def _build_services(port: int) -> tuple[Service, ...]:
    """Return a worker and a router at one port."""
    return tuple(
        Service(name=f"{role}-0", role=role, is_entry=role == "router", command=("true",), port=port)
        for role in ("worker", "router")
    )


class FinishedRun(NamedTuple):
    """A validation that ended."""

    report: Report
    folder: Path
    known: dict[str, Any]
    """What the server says of it."""

    @property
    def samples(self) -> list[Sample]:
        return read_samples(self.folder)

    @property
    def is_undisturbed(self) -> bool:
        return is_undisturbed([self.folder], self.known)


def read_samples(folder: Path) -> list[Sample]:
    """Return the requests of a run."""
    return [Sample.from_json(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def is_undisturbed(folders: Iterable[Path], known: dict[str, Any]) -> bool:
    """Return whether the machine held up neither the server nor the load driver of its runs."""
    delays_ms = [1000 * known["late_s"]]
    for folder in folders:
        delays_ms += [max(sample.late_ms, sample.unread_ms) for sample in read_samples(folder)]
        delays_ms += [watch["lag_p99_ms"] for watch in json.loads((folder / "report.json").read_text())["driver"]]
    return max(delays_ms) < 1000 * MAX_DISTURBANCE_S


def build_options(root: Path, **options: Any) -> ValidationOptions:
    """Return options whose logs and reports are below `root`."""
    return ValidationOptions(logs=root / "logs", runs=root / "runs", **options)


@contextlib.contextmanager
def ignore_busy_machine() -> Iterator[None]:
    """Leave out what a report says of a driver that waited for a core, of the queue that grew meanwhile, and of answers
    that took as long as the load.

    The test's neighbours cause all of them, not the server.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soundness, "find_driver_doubts", lambda *_: [])
        patch.setattr(soundness, "_check_queue", lambda _: iter(()))
        patch.setattr(soundness, "_check_duration", lambda *_: iter(()))
        yield


def repeat_disturbed(play: Callable[[], Played], is_undisturbed: Callable[[Played], bool]) -> Played:
    """Play a load again while the machine disturbed it, a few times: its times are then not those of the server.

    What decides is measured beside the load, and not what the test asserts.
    """
    for _ in range(_TRIES - 1):
        if is_undisturbed(played := play()):
            return played
    return play()


ServerValidator = Callable[..., FinishedRun]


@pytest.fixture(scope="module")
def validate_server(make_target: TargetFactory, tmp_path_factory: pytest.TempPathFactory) -> ServerValidator:
    """Validates a server of a given behaviour."""

    def _play(
        behaviour: Behaviour, traffic: dict[str, Any], slo: dict[str, Any] | None = None, **options: Any
    ) -> FinishedRun:
        with known_server.run_server(behaviour) as url:
            target = make_target(url, traffic, slo, admitted=behaviour.admitted or None)
            return measure(target, tmp_path_factory.mktemp("validation"), **options)

    return _play


def measure(target: LoadTarget, root: Path, **options: Any) -> FinishedRun:
    """Validate a server with known delays; logs and reports are below `root`."""
    finished = run.validate(target, build_options(root, **options))
    return FinishedRun(*finished, known_server.ask(target.url))


@pytest.fixture(scope="module")
def validate_undisturbed(validate_server: ServerValidator) -> ServerValidator:
    """As `validate_server`, again where the machine held up one of the processes."""

    def _play(*arguments: Any, **options: Any) -> FinishedRun:
        return repeat_disturbed(lambda: validate_server(*arguments, **options), lambda played: played.is_undisturbed)

    return _play
