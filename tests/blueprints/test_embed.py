"""Embeddings: the official client, the router and the real engine, and a load of the task."""

from __future__ import annotations

import json
import math
import shutil
import urllib.error
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import openai
import pytest

from llm_serving.kinds.serving.validation import validate as run
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.validation.base import ValidationOptions
from tests import serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.engine
def test_a_copy_of_the_pattern_answers_embeddings_through_the_router_and_validates(
    tmp_path: Path, start_blueprint: Callable[[Path, Path], AbstractContextManager[DeploymentPlan]]
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder)
    file = folder / "blueprint.yaml"
    # One replica is enough to see, and half the CPU time.
    text = (
        file.read_text()
        .replace("model: tiny #", "task: embed\nmodel: tiny-embed #")
        .replace("replicas: 2", "replicas: 1")
    )
    file.write_text(text.replace("  requests: 300", "  requests: 20\n  inputs: 1..3"))
    with start_blueprint(folder, tmp_path) as plan:
        url = plan.deployment.url
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)
        first, again, other = client.embeddings.create(model="tiny-embed", input=["a text", "a text", "another"]).data
        assert len(first.embedding) == 256
        assert math.hypot(*first.embedding) == pytest.approx(1, abs=1e-3)
        assert math.dist(first.embedding, again.embedding) < 1e-3 < 0.1 < math.dist(first.embedding, other.embedding)
        # By vectors the engine ranks too; the front gives the router the one spelling that keeps the model's name.
        for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
            ranked = json.loads(
                serving.post(url, path, model="tiny-embed", query="a text", documents=["another", "a text"])
            )
            assert [row["index"] for row in ranked["results"]] == [1, 0]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            serving.request_completion(url, model="tiny-embed")
        options = ValidationOptions(logs=plan.directory.logs, runs=tmp_path / "runs", folder=folder)
        report, _ = run.validate(plan.deployment, options)
    assert (report.requests.total, report.requests.failed) == (20, 0)
    assert report.tokens.input_exact == 1
    assert report.replicas[0].requests == round((report.throughput.inputs_per_s or 0) * report.duration_s)
    assert report.replicas[0].requests > 20
