"""The server of pictures with a small random pipeline: its API, its bounded queue, and its end with requests in flight."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from llm_serving import paths, processes
from llm_serving.hub import make_tiny
from llm_serving.targets.local import engine_setups
from llm_serving.validation.load import pooled_answer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LIMIT_S = 180
PATH = "/v1/images/generations"

Server = tuple["subprocess.Popen[bytes]", str]
Start = Callable[..., Server]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny.make("tiny-draw", tmp_path_factory.mktemp("draw") / "tiny-draw")


@pytest.fixture(scope="module")
def start(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a server; returns its process and its URL."""
    program = engine_setups.find("diffusion").ensure() / "diffusion-server"
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, drain_s: int) -> Server:
        [port] = processes.claim_free_ports(1)
        command = [str(program), "--model", str(model), "--served-model-name", "tiny-draw", "--port", str(port)]
        command += ["--device", "cpu", "--dtype", "float32", "--threads", "1", *arguments]
        log = (tmp_path_factory.mktemp("log") / "server.log").open("wb")
        env = {**os.environ, "DRAIN_S": str(drain_s), "HF_HUB_OFFLINE": "1"}
        started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(lambda: _ask(url, "/health")[0] == 200, f"the server, {log.name}", LIMIT_S)
        return started[-1], url

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    """With room for all; a test ends it."""
    return start(drain_s=LIMIT_S)


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return server[1]


@pytest.fixture(scope="module")
def bounded(start: Start) -> Server:
    """With room for one that waits, and a second to drain; a test ends it."""
    return start("--max-waiting", "1", drain_s=1)


def _ask(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any, Any]:
    """Return status, headers and JSON of an answer; 0 where nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            text = response.read()
            return response.status, response.headers, json.loads(text) if text.startswith(b"{") else text.decode()
    except urllib.error.HTTPError as error:
        text = error.read()
        return error.code, error.headers, json.loads(text) if text else None
    except OSError:
        return 0, {}, None


def _draw(url: str, **fields: Any) -> tuple[int, Any, Any]:
    return _ask(url, PATH, {"prompt": "a lighthouse", "num_inference_steps": 2, **fields})


def _read_metric(url: str, name: str) -> float:
    page = _ask(url, "/metrics")[2]
    [value] = re.findall(rf"(?m)^{re.escape(name)} (\S+)$", page)
    return float(value)


@contextlib.contextmanager
def _occupy(url: str) -> Iterator[None]:
    """Keep the server busy with pictures of minutes, for which nobody waits any more after the block."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps({"prompt": "a boat", "num_inference_steps": 200, "n": 10, "size": "256x256"}).encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        _wait_for(url, "diffusion_requests_running", 1)
        yield


def _wait_for(url: str, name: str, value: float) -> None:
    processes.wait_until(lambda: _read_metric(url, name) == value, name, LIMIT_S)


def test_the_openai_client_gets_pictures_of_the_size_that_it_asks_for(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=LIMIT_S, max_retries=0)
    answer = client.images.generate(
        model="tiny-draw",
        prompt="a boat",
        n=2,
        size="128x64",
        extra_body={"num_inference_steps": 2},  # type: ignore[call-overload]
    )
    assert [pooled_answer.read_size(picture.b64_json) for picture in answer.data] == [(128, 64)] * 2
    assert answer.data[0].b64_json != answer.data[1].b64_json
    assert answer.usage.input_tokens > 0
    assert [row.id for row in client.models.list()] == ["tiny-draw"]


def test_a_seed_gives_the_same_picture_and_another_prompt_or_seed_another(url: str) -> None:
    def draw(**fields: Any) -> str:
        return str(_draw(url, **fields)[2]["data"][0]["b64_json"])

    first = draw(seed=7)
    assert pooled_answer.read_size(first) == (64, 64), "the model's own size"
    assert draw(seed=7) == first
    assert draw(seed=8) != first
    assert draw(seed=7, prompt="a red boat at dusk") != first
    assert draw(seed=7, num_inference_steps=3) != first
    assert draw() != draw(), "without a seed each is another"


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"prompt": ""}, 400, "prompt: string should have at least 1 character. Fix: correct it."),
        ({"prompt": "boat " * 200}, 400, r"prompt: \d+ tokens, and the model reads 77. Fix: shorten it."),
        ({"model": "other"}, 404, "model: 'other' is not served here. Fix: set model: tiny-draw."),
        ({"response_format": "url"}, 400, "response_format: this server keeps no files that a URL could name. Fix: set response_format: b64_json."),
        ({"size": "100x64"}, 400, "size: 100x64: both must be multiples of 8. Fix: set size: 96x64."),
        ({"size": "2048x2048"}, 400, "size: 2048x2048: more than the 1,048,576 pixels that there is memory for. Fix: ask for a smaller picture."),
        ({"size": "large"}, 400, "size: string should match pattern .*"),
        ({"n": 11}, 400, "n: input should be less than or equal to 10. Fix: correct it."),
        ({"num_inference_steps": 0}, 400, "num_inference_steps: input should be greater than or equal to 1. Fix: correct it."),
        ({"quality": "hd"}, 400, "quality: there is no such field. Fix: remove quality."),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_its_field_and_what_to_do(
    url: str, fields: dict[str, Any], status: int, message: str
) -> None:
    code, _, answer = _draw(url, **fields)
    assert code == status
    assert re.fullmatch(message, answer["error"]["message"])
    assert answer["error"]["param"] == next(iter(fields))
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large_or_no_json_is_refused(url: str) -> None:
    assert _draw(url, prompt="x" * 2**21)[0] == 413
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_S)
    connection.request("POST", PATH, b"not json")
    assert connection.getresponse().status == 400


def test_requests_at_once_are_all_answered(url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: _draw(url, seed=number, prompt="boat " * (number + 1)), range(24)))
    assert [status for status, _, _ in answers] == [200] * 24


def test_beyond_the_bound_requests_get_429_at_once_and_the_others_are_answered(bounded: Server) -> None:
    _, url = bounded
    with ThreadPoolExecutor(1) as threads:
        with _occupy(url):
            waiting = threads.submit(_draw, url)
            _wait_for(url, "diffusion_requests_waiting", 1)
            status, headers, answer = _draw(url)
            assert _read_metric(url, "diffusion_requests_running") == 1, "it was answered while the first was computed"
        assert (status, answer["error"]["type"]) == (429, "rate_limit_exceeded")
        assert int(headers["Retry-After"]) >= 1
        assert waiting.result()[0] == 200
    outcomes = [_read_metric(url, f'diffusion_requests_total{{outcome="{name}"}}') for name in ("refused", "answered")]
    assert outcomes == [1, 1]


def test_what_was_drawn_is_counted(url: str) -> None:
    names = "diffusion_steps_total", "diffusion_pictures_total", "diffusion_request_seconds_count"
    before = [_read_metric(url, name) for name in names]
    assert _draw(url, num_inference_steps=3, n=2)[0] == 200
    after = [_read_metric(url, name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [6, 2, 1]


def test_a_drain_ends_at_its_limit(bounded: Server) -> None:
    process, url = bounded
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(_draw, url, num_inference_steps=200, n=10, size="256x256")
        _wait_for(url, "diffusion_requests_running", 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert long.result()[0] == 503


def test_who_disconnects_is_computed_no_longer(url: str) -> None:
    cancelled = 'diffusion_requests_total{outcome="cancelled"}'
    before = _read_metric(url, cancelled)
    with _occupy(url):
        pass
    _wait_for(url, cancelled, before + 1)
    assert _read_metric(url, "diffusion_requests_running") == 0
    assert _draw(url)[0] == 200


def test_with_sigterm_what_runs_and_waits_goes_on_and_what_is_new_is_refused(server: Server) -> None:
    process, url = server
    with ThreadPoolExecutor(1) as threads:
        with _occupy(url):
            waiting = threads.submit(_draw, url)
            _wait_for(url, "diffusion_requests_waiting", 1)
            process.send_signal(signal.SIGTERM)
            processes.wait_until(lambda: _ask(url, "/health")[0] == 503, "the drain", LIMIT_S)
            status, headers, _ = _draw(url)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert _read_metric(url, "diffusion_requests_running") == 1
        status, _, answer = waiting.result()
    assert status == 200
    assert base64.b64decode(answer["data"][0]["b64_json"])
    assert process.wait(LIMIT_S) == 0
    assert _ask(url, "/health")[0] == 0


def test_a_folder_without_a_pipeline_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    program = engine_setups.find("diffusion").ensure() / "diffusion-server"
    command = [str(program), "--model", str(tmp_path), "--served-model-name", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"{tmp_path}: it holds no model_index.json. Fix: name the folder of a pipeline of diffusers."
    )


LOSS = """
import asyncio, sys, threading
import torch, diffusion_server

class Pipeline:
    components = {}
    def __call__(self, prompt, generator):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

def synchronize():
    if sys.argv[1] == "lost":
        raise RuntimeError("CUDA error")

torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, synchronize
app = diffusion_server.build_app(diffusion_server.Painter(Pipeline(), 1, 64), "m", diffusion_server.Log("text"))
body = b'{"prompt": "a boat"}'
messages = iter([{"type": "http.request", "body": body}])

async def receive():
    for message in messages:
        return message
    await asyncio.sleep(60)

async def send(message):
    print(message.get("status", ""), flush=True)

scope = {"type": "http", "method": "POST", "path": sys.argv[2], "raw_path": b"", "query_string": b"", "headers": []}
asyncio.run(app(scope, receive, send))
"""


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [("lost", 1, "the GPU computes no more: this replica ends error=CUDA error: an illegal"), ("there", 0, "\n500\n")],
)
def test_a_server_whose_gpu_computes_no_more_ends_and_one_whose_picture_failed_goes_on(
    state: str, code: int, said: str
) -> None:
    """No GPU is here: CUDA's word on its state is the test's."""
    python = engine_setups.find("diffusion").ensure() / "python3"
    env = {**os.environ, "PYTHONPATH": str(paths.IMAGES / "diffusion")}
    command = [str(python), "-c", LOSS, state, PATH]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, said in ended.stdout) == (code, True), ended.stdout + ended.stderr


def test_diffusers_knows_each_tensor_of_the_made_pipeline_and_misses_none(model: Path) -> None:
    program = """
import json, sys
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel
found = {}
for part, kind in (("unet", UNet2DConditionModel), ("vae", AutoencoderKL), ("text_encoder", CLIPTextModel)):
    loaded, info = kind.from_pretrained(f"{sys.argv[1]}/{part}", output_loading_info=True)
    keys = [sorted(info[name]) for name in ("missing_keys", "unexpected_keys")]
    found[part] = [sum(tensor.numel() for tensor in loaded.parameters()), *keys]
print("FOUND" + json.dumps(found))
"""
    python = engine_setups.find("diffusion").ensure() / "python"
    done = subprocess.run(
        [str(python), "-c", program, str(model)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    found = json.loads(done.stdout.rpartition("FOUND")[2])
    assert found == {"unet": [260612, [], []], "vae": [94215, [], []], "text_encoder": [153920, [], []]}


def test_the_image_has_the_program_that_runs_here() -> None:
    dockerfile = (paths.IMAGES / "diffusion" / "Dockerfile").read_text()
    assert "COPY requirements.txt diffusion_server.py /opt/diffusion/" in dockerfile
