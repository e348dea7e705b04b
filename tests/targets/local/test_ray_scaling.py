"""Replicas of Ray's follow the requests under way: real Serve, on a node without an engine, which costs little."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

from llm_serving.catalog import frameworks
from llm_serving.kinds.serving.frameworks import ray
from llm_serving.targets.local import engine_setups
from tests import serving
from tests.kinds.serving.frameworks import test_ray as rendered

pytestmark = serving.mark_framework("ray")


def test_replicas_follow_the_requests_under_way_as_rendered_for_eks(tmp_path: Path) -> None:
    [llm_config] = rendered.get_args(rendered.resolve(tmp_path, rendered.format_blueprint()))["llm_configs"]
    scaling = llm_config["deployment_config"]["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 4)
    setup = frameworks.load_frameworks()["ray"].engines["vllm"].local
    assert setup
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME")},
        **setup.environment,
        "PYTHONPATH": str(ray.STARTUP_FOLDER),
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    program, python = (
        Path(__file__).with_name("ray_scaling.py"),
        engine_setups.find("vllm", "ray").executables / "python3",
    )
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: the paths of Ray's sockets end there
        command = [str(python), str(program), folder, json.dumps(scaling)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    [counts] = [line for line in ended.stdout.splitlines() if line.startswith("{")]  # beside what Ray logs
    assert json.loads(counts) == {"idle": 1, "loaded": 3, "idle again": 1}
