"""What runs in an engine's container to load an adapter: with files of a real S3 server, and an engine that keeps names."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws import s3
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import engines
from llm_serving.kinds.serving import adapter_program
from llm_serving.targets.on_aws import remote_files
from tests.http_handler import QuietHandler

FILES = ("adapter_config.json", "adapter_model.safetensors")

pytestmark = pytest.mark.terraform


@dataclass
class Engine:
    """An engine, and the adapters that it has: the folder of each by its name."""

    url: str = ""
    adapters: dict[str, str] = field(default_factory=dict)
    refusal: str = ""


class Handler(QuietHandler):
    """vLLM's API of adapters: v1/models of 0.32.0 has an adapter's folder as its `root`."""

    engine: Engine

    def do_GET(self) -> None:
        models = [{"id": "qwen", "root": "s3://models/qwen"}]
        self.respond_json({"data": models + [{"id": name, "root": at} for name, at in self.engine.adapters.items()]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.engine.refusal:
            self.respond_json({"error": {"message": self.engine.refusal}}, 400)
        elif self.path == "/v1/load_lora_adapter":
            assert all((Path(body["lora_path"]) / name).is_file() for name in FILES)
            self.engine.adapters[body["lora_name"]] = body["lora_path"]
            self.respond(200, b"Success")
        else:
            del self.engine.adapters[body["lora_name"]]
            self.respond(200, b"Success")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(adapter_program, "FOLDER", tmp_path / "adapters")
    Handler.engine = Engine()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Handler.engine.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Handler.engine
        server.shutdown()


def put(bucket: s3.Bucket, weights: str) -> str:
    """Put an adapter into the bucket; return where it is."""
    for name, text in zip(FILES, ("{}", weights), strict=True):
        bucket._client.put_object(Bucket=bucket.location.bucket, Key=f"lora/sql/{name}", Body=text.encode())
    return f"s3://{bucket.location.bucket}/lora/sql"


def run(engine: Engine | None, location: str = "") -> dict[str, str]:
    """Load what is at `location` as `sql`, or unload it."""
    api = engines.load_engines()["vllm"].adapter_api
    assert api
    request: dict[str, Any] = {
        "name": "sql",
        "files": remote_files.sign_files(AwsSession("us-west-2"), location, FILES) if location else {},
        "api": {"url": engine.url, **api.model_dump()} if engine else None,
    }
    return adapter_program.main(json.loads(json.dumps(request)))


def list_copies() -> list[str]:
    return sorted(path.name for path in adapter_program.FOLDER.rglob("*") if path.is_file())


def test_an_adapter_is_copied_and_loaded_once(engine: Engine, bucket: s3.Bucket) -> None:
    location = put(bucket, "weights")
    assert run(engine, location) == {"done": "loaded"}
    assert (Path(engine.adapters["sql"]) / FILES[1]).read_text() == "weights"
    first = dict(engine.adapters)
    assert run(engine, location) == {"done": "loaded already"}
    assert (engine.adapters, list_copies()) == (first, list(FILES))


def test_other_weights_under_the_same_name_take_an_unload(engine: Engine, bucket: s3.Bucket) -> None:
    run(engine, put(bucket, "weights"))
    old = engine.adapters["sql"]
    error = f"it has another adapter of this name, from {old}. Fix: unload it first."
    assert run(engine, put(bucket, "better")) == {"error": error}
    assert run(engine) == {"done": "unloaded"}
    assert run(engine) == {"done": "not loaded"}
    assert run(engine, put(bucket, "better")) == {"done": "loaded"}
    assert engine.adapters["sql"] != old, "the engine keeps prompts by the folder"


def test_files_of_an_unloaded_adapter_stay_for_the_requests_that_wait_and_go_later(
    engine: Engine, bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(engine, put(bucket, "weights"))
    run(engine)
    assert list_copies() == [*FILES, adapter_program.UNLOADED]
    run(engine, put(bucket, "weights"))
    monkeypatch.setattr(adapter_program, "KEPT_S", -1.0)
    assert run(engine, put(bucket, "weights")) == {"done": "loaded already"}
    assert list_copies() == list(FILES), "what is loaded again stays"
    run(engine)
    assert run(engine) == {"done": "not loaded"}
    assert list_copies() == []


def test_a_node_that_does_not_answer_has_the_files_where_the_first_one_says(engine: Engine, bucket: s3.Bucket) -> None:
    location = put(bucket, "weights")
    assert run(None, location) == {"done": "copied"}
    run(engine, location)
    assert [str(path.parent) for path in adapter_program.FOLDER.rglob(FILES[1])] == [engine.adapters["sql"]]
    assert run(None) == {"done": "unloaded"}
    assert list_copies() == [*FILES, adapter_program.UNLOADED]


def test_a_refusal_of_s3_and_one_of_the_engine_are_told_apart(engine: Engine, bucket: s3.Bucket) -> None:
    assert run(engine, f"s3://{bucket.location.bucket}/none") == {"error": "S3 refuses adapter_config.json: status 404"}
    engine.refusal = "rank 128 is too high"
    assert run(engine, put(bucket, "weights")) == {"error": "the engine refuses: rank 128 is too high"}
    assert engine.adapters == {}


def test_a_file_that_breaks_off_is_not_loaded(
    engine: Engine, bucket: s3.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = put(bucket, "weights")
    monkeypatch.setattr(adapter_program.shutil, "copyfileobj", lambda body, output: output.write(body.read(1)))
    assert run(engine, location) == {"error": "S3 broke off within adapter_config.json"}
    assert (engine.adapters, set(list_copies()) & set(FILES)) == ({}, set())


def test_an_engine_that_does_not_answer_is_an_error(engine: Engine, bucket: s3.Bucket) -> None:
    absent = Engine(url="http://127.0.0.1:1")
    assert "refused" in run(absent, put(bucket, "weights"))["error"]
