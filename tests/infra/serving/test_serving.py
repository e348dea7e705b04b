"""Validation of a rendered ECS deployment: a user may have edited it or its template."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from infra.stacks import serving
from llm_serving.fleet import loading
from llm_serving.settings.errors import InputError
from llm_serving.targets import planning
from tests.infra.serving.conftest import SHAPES, write_blueprint


def get_read_error(file: Path, fleet: Path) -> str:
    with pytest.raises(InputError) as error:
        serving.read(file, loading.load_fleet(fleet))
    return str(error.value)


def find_line(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_every_patterns_rendered_manifest_can_be_read(manifests: dict[str, Path], fleet: Path, shape: str) -> None:
    ecs_manifest = serving.read(manifests[shape], loading.load_fleet(fleet))
    assert ecs_manifest.name == shape
    assert ecs_manifest.entry.command[0] == "router-front"


def test_engines_may_read_the_model_that_guesses_tokens_ahead(fleet: Path, tmp_path: Path) -> None:
    speculative = "tuning: {speculative: {method: draft_model, model: ORG/draft}, "
    folder = write_blueprint(tmp_path, "single", SHAPES["single"].replace("tuning: {", speculative))
    plan = planning.plan(folder, fleet, target="ecs", root=tmp_path, account="123456789012")
    rendered = serving.read(planning.write_rendered(plan), loading.load_fleet(fleet))
    bucket = "s3://fabric-models-123456789012-us-west-2/models"
    assert rendered.stack.reads == (f"{bucket}/Qwen/Qwen3-0.6B/", f"{bucket}/ORG/draft/")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "accelerators: 1",
            "accelerators: 8",
            "accelerators: 8: an instance of the pool general has 4 at the most. Fix: set 4 or less",
        ),
        (
            'pool: "general"',
            'pool: "genral"',
            "the fleet fabric has no such pool on ECS. Fix: use one of general, alone, fast",
        ),
        ('fleet: "fabric"', "fleet: cotton", "Fix: set fleet: fabric"),
        (
            "    metrics:\n      queue: ",
            "    metrics:\n      quue: ",
            "alarms and scaling read queue. Fix: add the Prometheus name of queue",
        ),
        ("max: 6", "max: 1", "replicas.max: 1: min is 2. Fix: set 2 or more"),
        ("port: 8000", "port: 80000", "65535"),
        ("is_entry: true", "is_entry: false", "clients call 0 of them. Fix: set is_entry: true in exactly one"),
        ('name: "router"', "name: worker", "another service has it"),
        (
            'name: "worker"',
            f"name: {'w' * 53}",
            f"its tasks would be found by the name aggregated-{'w' * 53}, of which DNS takes 63 characters",
        ),
        (
            'stop: {"stop_s": 120',
            'stop: {"stop_s": 600',
            "without a pool the task runs on Fargate, which waits at most 120 s",
        ),
        ("      cpus: ", "      cpu: ", "cpus"),
        ('"s3://my-adapters/lora/sql"', '"https://my-adapters/lora/sql"', "an S3 location"),
        ('["g6e.2xlarge", ', '["g6e.8xlarge", ', '"g6e.8xlarge": no instance of the pool general is one'),
        (
            "    placement:\n",
            "      device_files: [/dev/infiniband/uverbs0]\n    placement:\n",
            "has 0 EFA interfaces. Fix: keep 0 of them",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_line(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = manifests["aggregated"].read_text()
    assert old in text
    file = tmp_path / "ecs.yaml"
    file.write_text(text.replace(old, new, 1))
    error_text = get_read_error(file, fleet)
    assert message in error_text
    assert error_text.startswith(f"{file}:")
    if new not in ("is_entry: false", "name: worker"):
        assert f"{file}:{find_line(file.read_text(), new)}:" in error_text


@pytest.mark.parametrize(
    ("name", "scaled", "message"),
    [
        ("router", True, "what clients call must always run, to receive requests. Fix: set 1 or more"),
        ("worker", False, "without scale no replica would ever start. Fix: set 1 or more"),
    ],
)
def test_a_role_without_a_wake_up_does_not_scale_to_zero(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path, name: str, scaled: bool, message: str
) -> None:
    manifest_data = yaml.safe_load(manifests["aggregated"].read_text())
    service = next(service for service in manifest_data["services"] if service["name"] == name)
    scale = {"signal": "queue", "target": 4, "cool_down_s": 300} if scaled else None
    service["replicas"] = {"min": 0, "max": 4, **({"scale": scale} if scale else {})}
    file = tmp_path / "ecs.yaml"
    file.write_text(yaml.safe_dump(manifest_data))
    assert f"replicas.min: 0: {message}" in get_read_error(file, fleet)


def test_a_role_sleeps_after_a_day_without_requests_at_the_latest(
    manifests: dict[str, Path], fleet: Path, tmp_path: Path
) -> None:
    manifest_data = yaml.safe_load(manifests["aggregated"].read_text())
    replicas = next(service for service in manifest_data["services"] if service["name"] == "worker")["replicas"]
    replicas["scale"]["cool_down_s"] = 86_401
    file = tmp_path / "ecs.yaml"
    file.write_text(yaml.safe_dump(manifest_data))
    assert serving.read(file, loading.load_fleet(fleet)).name == "aggregated", (
        "one that does not sleep has no such alarm"
    )
    replicas["min"] = 0
    file.write_text(yaml.safe_dump(manifest_data))
    message = (
        "scale.cool_down_s: 86401: an alarm of CloudWatch looks back a day at the most. Fix: set cool_down: 1d or less."
    )
    assert message in get_read_error(file, fleet)


def get_plan_error(folder: Path, fleet: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        planning.plan(write_blueprint(folder, "mine", text), fleet, target="ecs", root=folder, account="123456789012")
    return str(error.value)


HEAD = "pattern: aggregated\nmodel: Qwen/Qwen3-0.6B\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "pattern: distributed\nmodel: Qwen/Qwen3-32B\nroles: {worker: {pool: fast, replicas: 1..2, accelerators: 16, pipeline: 2}}\n",
            '"1..2": a replica is 2 services on ECS, which autoscaling does not start together. Fix: set replicas: 2.',
        ),
        (
            HEAD + "roles: {worker: {pool: fast}}\n",
            "accelerators: 1: ECS gives each task a network interface of its own on the node's first card, where "
            "p5en.48xlarge has 3 free beside EFA's, and 8 tasks of such replicas would run on it. "
            "Fix: set accelerators: 3 or more, or another target: --target TARGET.",
        ),
    ],
)
def test_settings_unsupported_on_ecs_are_refused_at_plan_time(
    tmp_path: Path, fleet: Path, text: str, message: str
) -> None:
    assert message in " ".join(get_plan_error(tmp_path, fleet, text).split())


def test_p5_has_room_for_the_interface_of_one_task(tmp_path: Path, fleet: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet.read_text().replace("p5en.48xlarge", "p5.48xlarge"))
    error_text = get_plan_error(tmp_path, file, HEAD + "roles: {worker: {pool: fast, accelerators: 4}}\n")
    assert "p5.48xlarge has 1 free beside EFA's, and 2 tasks of such replicas would run on it" in error_text
    assert "Fix: set accelerators: 8 or more" in error_text
