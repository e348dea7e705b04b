"""A hub on loopback that counts what it sends and can fail in the ways that hubs do, and an S3 to copy to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_serving.aws import s3
from llm_serving.rehearsal import emulator
from tests.http_handler import QuietHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REGION = "us-west-2"


@dataclass
class Hub:
    """The fake hub's files, failures and received requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    id: str = "someone/some-model"
    commit: str = COMMIT
    gated: bool = False
    token: str = ""
    """The only token that opens a gated repository."""

    damaged: set[str] = field(default_factory=set)
    """Files that arrive with one byte changed."""

    broken_at: dict[str, int] = field(default_factory=dict)
    """The connection breaks after so many bytes of a file, once."""

    status: int = 0
    """Answers everything with it where it is set."""

    gated_status: int = 401
    """Refuses a gated repository with it: 401 without a token, 403 to an account that has not accepted its terms."""

    sends_ranges: bool = True
    """Whether it sends the part of a file that was asked for; else the whole of it."""

    requests: list[tuple[str, int]] = field(default_factory=list)
    """Each GET of a file, with the byte that it began at."""

    sent_bytes: int = 0
    """Bytes of files that left the hub."""

    url: str = ""

    def build_listing(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            row: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
            if name.endswith((".safetensors", ".gguf")):
                row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            siblings.append(row)
        return {"id": self.id, "sha": self.commit, "siblings": siblings}


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        if hub.status:
            self._send(hub.status, b"{}", {})
        elif match := re.fullmatch(r"/api/models/(.+)/revision/([^?]+)(\?.*)?", self.path):
            self._send_listing(*match.group(1, 2))
        elif match := re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", self.path):
            self._send_file(*match.group(1, 2, 3))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send_listing(self, name: str, revision: str) -> None:
        if name != self.hub.id:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(200, json.dumps(self.hub.build_listing()).encode(), {})

    def _send_file(self, name: str, _revision: str, path: str) -> None:
        hub = self.hub
        if name != hub.id:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
            return
        if hub.gated and (not hub.token or self.headers.get("Authorization") != f"Bearer {hub.token}"):
            self._send(hub.gated_status, b"", {"X-Error-Code": "GatedRepo"})
            return
        if path not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = hub.files[path]
        if path in hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if hub.sends_ranges else None
        start = int(match[1]) if match else 0
        last = min(len(content), int(match[2]) + 1) if match and match[2] else len(content)
        hub.requests.append((path, start))
        end = hub.broken_at.pop(path, last)
        status = 206 if match else 200
        hub.sent_bytes += max(0, end - start)  # before a client has them, who may look at once
        self._send(status, content[start:end], {"X-Repo-Commit": COMMIT}, length=last - start)
        if end < last:
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A running hub that the environment names; its files are those of a small model in two shards."""
    import huggingface_hub.constants
    import huggingface_hub.file_download

    fake_hub = Hub(
        files={
            "config.json": b'{"model_type": "qwen3"}',
            "tokenizer.json": b'{"version": "1.0"}',
            "model-00001-of-00002.safetensors": _make_noise(1, 700_000),
            "model-00002-of-00002.safetensors": _make_noise(2, 300_000),
            "pytorch_model.bin": _make_noise(3, 50_000),
            "original/params.json": b"{}",
            "README.md": b"# A model",
            ".gitattributes": b"*.bin filter=lfs",
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": fake_hub}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    fake_hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", fake_hub.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    # The client writes in pieces of 10 MB, and waits a second before it continues.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 65536)
    monkeypatch.setattr(huggingface_hub.file_download.time, "sleep", lambda _: None)
    yield fake_hub
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def emulator_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded AWS's endpoint."""
    with emulator.start(tmp_path_factory.mktemp("aws")) as endpoint:
        yield endpoint


@pytest.fixture
def aws(emulator_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The embedded AWS, which this process's own settings lead to."""
    for key, value in emulator.build_client_env(emulator_endpoint, REGION).items():
        monkeypatch.setenv(key, value)
    return emulator_endpoint


@pytest.fixture
def bucket(aws: str, request: pytest.FixtureRequest) -> s3.Bucket:
    """An empty bucket of its own for each test, under the prefix models/m/."""
    name = "b-" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    client = emulator.create_client("s3", aws, REGION)
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return s3.Bucket(s3.parse_location(f"s3://{name}/models/m"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with one file of several parts."""
    model_folder = tmp_path / "model"
    (model_folder / "sub").mkdir(parents=True)
    (model_folder / "config.json").write_bytes(b"{}")
    (model_folder / "model.safetensors").write_bytes(_make_noise(4, 12_000_000))
    (model_folder / "sub" / "config.json").write_bytes(b'{"sub": 1}')
    (model_folder / "weights.bin").write_bytes(b"the same in another format")
    (model_folder / ".hidden.json").write_bytes(b"{}")
    return model_folder


def _make_noise(seed: int, count: int) -> bytes:
    import random

    return random.Random(seed).randbytes(count)
