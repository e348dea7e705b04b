"""Fakes of vLLM and its router, to test all around them in seconds, and a real bucket."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_serving.rehearsal import emulator
from llm_serving.targets import planning
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local import deploy, engine_env, weights
from llm_serving.targets.local.engine_env import VllmEnv

ROOT = Path(__file__).resolve().parents[3]

FAKE_ENGINE = '''#!{python}
"""Answers completions on --host and --port; exits with 1 and a traceback if a file `fail` is beside it.

An engine waits before it listens while a file `hold` is there.
"""
import http.server, json, os, subprocess, sys, time
arguments = sys.argv[1:]
model = arguments[arguments.index("--served-model-name") + 1] if "--served-model-name" in arguments else "any"
folder = os.path.dirname(__file__)
if __file__.endswith("/vllm") and os.path.exists(os.path.join(folder, "fail")):
    print("Traceback (most recent call last):\\n  File \\"x.py\\", line 1\\nbotocore.errorfactory.NoSuchBucket: no bucket")
    sys.exit(1)
while __file__.endswith("/vllm") and os.path.exists(os.path.join(folder, "hold")):
    time.sleep(0.05)
# Like the engine: a process of its own that does not notice when its parent is killed.
host, port = (arguments[arguments.index(name) + 1] for name in ("--host", "--port"))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", port])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.dumps({{"choices": [{{"text": "ok"}}]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
print("serving", model, flush=True)
http.server.ThreadingHTTPServer((host, int(port)), Answer).serve_forever()
'''


@pytest.fixture
def fake_engine_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine's environment of fakes; with a file `fail` or `hold` in its bin, they fail or do not come up."""
    root = tmp_path / "engine"
    executables = root / engine_env.FOLDER / "bin"
    executables.mkdir(parents=True)
    for name in ("vllm", "vllm-router"):
        (executables / name).write_text(FAKE_ENGINE.format(python=sys.executable))
        (executables / name).chmod(0o755)
    monkeypatch.setattr(engine_env, "ROOT", root)
    monkeypatch.setattr(VllmEnv, "is_ready", lambda _: True)
    monkeypatch.setattr(VllmEnv, "prepare", lambda *_: None)
    return executables


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with a copy of the aggregated pattern in `mine` and a fleet file; it is the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "blueprints" / "aggregated", folder / "mine")
    shutil.copy(ROOT / "fleet.yaml", folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def cleanup(tmp_path: Path) -> Iterator[None]:
    """Destroy what a test has deployed."""
    yield
    for data in tmp_path.glob("**/.blueprint/*"):
        deploy.destroy(DeploymentDir(data.name, data.parents[1]))


FAKE_AWS = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"lambda": {}}')
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture
def make_plan(working_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], DeploymentPlan]:
    """Plan the blueprint `mine` from its current files, with a fake of AWS."""
    program = tmp_path / "aws.py"
    program.write_text(FAKE_AWS)
    monkeypatch.setattr(emulator, "build_command", lambda port: [sys.executable, str(program), str(port)])
    monkeypatch.setattr(deploy, "create_bucket", lambda plan: plan.deployment.environment.bucket)
    monkeypatch.setattr(weights, "upload_models", lambda *_: None)
    monkeypatch.setattr(weights, "check", lambda deployment: deployment.served_models[0].weights.bytes)
    return _plan


@pytest.fixture
def make_plan_with_bucket(
    working_folder: Path, make_bucket: Callable[[DeploymentPlan], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], DeploymentPlan]:
    """Plan it with the real embedded AWS, and a bucket created without Terraform."""
    monkeypatch.setattr(deploy, "create_bucket", make_bucket)
    return _plan


def _plan() -> DeploymentPlan:
    return planning.plan(Path("mine"), Path("fleet.yaml"), target="local")
