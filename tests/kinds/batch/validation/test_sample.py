"""The rows of a batch's sample job, and their lengths."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving.kinds.batch.deployment import BatchDeployment
from llm_serving.kinds.batch.validation.sample import SampleRows, send
from llm_serving.settings.errors import Unavailable
from tests import known_server
from tests.http_handler import QuietHandler
from tests.kinds.batch.test_blueprint import MINIMAL, resolve


@pytest.fixture
def deployment(tmp_path: Path) -> BatchDeployment:
    return resolve(tmp_path / "mine", MINIMAL.replace("{model: m}", "{model: m, bad_rows: 5, input_tokens: 20..40}"))


def test_the_sample_has_every_row_that_it_expects_back(deployment: BatchDeployment) -> None:
    sample = SampleRows(deployment)
    rows = sample.build(50, "nonce")
    assert len(rows) == 50 + deployment.sample.bad_rows
    for custom_id, line in rows:
        if custom_id is not None:
            assert json.loads(line)["custom_id"] == custom_id
        assert line.count(b"\n") == 1
    assert sample.build(50, "nonce") == rows
    assert sample.build(50, "other")[0] != rows[0]


def test_prompts_have_the_samples_lengths_in_the_endpoints_own_tokens(
    deployment: BatchDeployment, tmp_path: Path
) -> None:
    with known_server.run_server() as url:
        deployment = deployment.model_copy(update={"endpoint_url": url})
        lengths = {}
        for name, sample in {"measured": SampleRows.measure(deployment), "unmeasured": SampleRows(deployment)}.items():
            lines = sample.write(50, tmp_path / name).read_bytes().splitlines()
            bodies = [json.dumps(json.loads(line)["body"]).encode() for line in lines]
            lengths[name] = [send(url, body)["prompt_tokens"] for body in bodies]
    low, high = deployment.sample.input_tokens
    assert low <= min(lengths["measured"]) < max(lengths["measured"]) <= high
    assert max(lengths["unmeasured"]) > high, "the template's tokens come on top where nobody counts them"


def test_an_endpoint_with_a_key_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyed(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            usage = {"prompt_tokens": 2, "completion_tokens": 3}
            is_own = self.headers.get("Authorization") == "Bearer sk-mine"
            self.respond_json({"usage": usage}, 200 if is_own else 401)

    with ThreadingHTTPServer(("127.0.0.1", 0), Keyed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(Unavailable, match="401"):
            send(url, b"{}")
        monkeypatch.setenv("BLUEPRINT_API_KEY", "sk-mine")
        assert send(url, b"{}")["completion_tokens"] == 3
        server.shutdown()


def test_an_endpoint_that_does_not_answer_leaves_a_word_a_token(deployment: BatchDeployment) -> None:
    unreachable = deployment.model_copy(update={"endpoint_url": "http://127.0.0.1:1"})
    assert SampleRows.measure(unreachable).build(9, "nonce") == SampleRows(unreachable).build(9, "nonce")
