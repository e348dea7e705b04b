"""A copy of the aggregated pattern that draws: deployed, answered, validated with pictures in the report, destroyed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from llm_serving import processes
from llm_serving.catalog import pipelines
from llm_serving.kinds.serving.validation import validate as validation
from llm_serving.rehearsal import emulator
from llm_serving.settings.errors import Unavailable
from llm_serving.targets import planning
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_setups, readiness, supervisor, weights
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.load import pooled_answer
from llm_serving.validation.load.answer import Sample

ROOT = Path(__file__).parents[2]
LIMIT_S = 180

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentPlan]:
    root = tmp_path_factory.mktemp("draw")
    shutil.copytree(ROOT / "blueprints" / "aggregated", root / "mine")
    settings = root / "mine" / "blueprint.yaml"
    text = settings.read_text().replace("model: tiny #", "engine: diffusion\ntask: draw\nmodel: tiny-draw #")
    settings.write_text(text.replace("traffic:\n", "traffic:\n  draw: {steps: 4, size: 64x128, count: 2}\n"))
    engine_setups.find("diffusion").ensure()
    planned = planning.plan(root / "mine", ROOT / "fleet.yaml", root=root, target="local")
    try:
        deployed = deploy.deploy(planned, lambda _: None)
        assert deployed
        yield deployed
    finally:
        deploy.destroy(planned.directory)
        assert supervisor.find_running(planned.directory) is None


def _draw(plan: DeploymentPlan, number: int = 0) -> str:
    client = openai.OpenAI(base_url=f"{plan.deployment.url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0)
    fields = {"num_inference_steps": 4, "seed": number}
    answer = client.images.generate(model="tiny-draw", prompt="a lighthouse", extra_body=fields)
    assert answer.data
    return str(answer.data[0].b64_json)


def test_both_replicas_draw_the_same_picture_of_a_seed_through_the_router(plan: DeploymentPlan) -> None:
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda number: _draw(plan, number % 2), range(12)))
    assert len(set(drawn)) == 2
    assert pooled_answer.read_size(drawn[0]) == (64, 64)


def test_the_patterns_load_is_reported_with_pictures_a_second_and_pictures(plan: DeploymentPlan) -> None:
    options = ValidationOptions(logs=plan.directory.logs, runs=plan.directory.reports, folder=plan.folder, requests=30)
    report, folder = validation.validate(plan.deployment, options)
    assert (report.requests.total, report.requests.failed) == (30, 0)
    assert report.throughput.inputs_per_s == pytest.approx(2 * report.throughput.requests_per_s, rel=0.01)
    assert list(report.metrics) == ["e2e_ms"]
    assert sum(replica.requests or 0 for replica in report.replicas) == 30
    page = (folder / "report.html").read_text()
    shown = [line for line in (folder / "requests.jsonl").read_text().splitlines() if Sample.from_json(line).picture]
    assert len(shown) == 5
    for line in shown:
        sample = Sample.from_json(line)
        assert pooled_answer.read_size(sample.picture) == (64, 128)
        assert f'src="data:image/png;base64,{sample.picture}" alt="{sample.prompt}"' in page
    assert "Pictures/s" in page
    assert "The weights are random: the pictures show nothing." in page
    assert shown[0] not in json.dumps(report.model_dump(mode="json")), "report.json is for gates, without pictures"


def test_a_killed_replica_comes_back(plan: DeploymentPlan) -> None:
    process = plan.deployment.workers[0]
    running = supervisor.find_running(plan.directory)
    assert running
    tree = psutil.Process(running.read_state(process.name).pid)
    [server] = [child for child in [tree, *tree.children(recursive=True)] if "--max-waiting" in child.cmdline()][-1:]
    server.kill()
    processes.wait_until(lambda: not server.is_running(), "the end", LIMIT_S)
    processes.wait_until(lambda: readiness.is_answering(process), "the replica", LIMIT_S)
    assert pooled_answer.read_size(_draw(plan)) == (64, 64)


def test_a_pipeline_without_a_part_in_s3_is_refused_before_an_engine_starts(plan: DeploymentPlan) -> None:
    environment, model = plan.deployment.environment, plan.deployment.loaded_models[0]
    client = emulator.create_client("s3", environment.s3_endpoint or "", environment.region)
    prefix = model.weights.uri.removeprefix(f"s3://{environment.bucket}/")
    total = weights.check(plan.deployment)
    key = f"{prefix}vae/diffusion_pytorch_model.safetensors"
    whole = client.get_object(Bucket=environment.bucket, Key=key)["Body"].read()
    client.put_object(Bucket=environment.bucket, Key=key, Body=whole[:-100])
    with pytest.raises(
        Unavailable, match=rf"vae/diffusion_pytorch_model\.safetensors: incomplete .* {len(whole) - 100} b"
    ):
        weights.check(plan.deployment)
    client.delete_object(Bucket=environment.bucket, Key=key)
    client.delete_object(Bucket=environment.bucket, Key=f"{prefix}vae/config.json")
    with pytest.raises(Unavailable, match=f"{pipelines.INDEX_FILE} names parts that are not there, vae first"):
        weights.check(plan.deployment)
    assert total > len(whole)
