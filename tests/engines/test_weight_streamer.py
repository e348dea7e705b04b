"""The real weight streamer of the engine's environment, at an S3 that refuses reads for a while."""

from __future__ import annotations

import json
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving.catalog import engines
from tests import engines_own
from tests.http_handler import QuietHandler

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).with_name("stream_weights.py")

BYTES = 2 * 2**20
"""Of the one tensor: one read of the streamer."""

REFUSED = 4
"""Reads of it that S3 refuses: more than the client of S3 sends by itself."""

NATIVE_RETRIES = 1
"""Of that client. By default it sends five again, which takes ten seconds to fail."""


class ThrottledS3:
    """An emulated S3 with one object, whose tensor it refuses to send at first."""

    def __init__(self) -> None:
        header = json.dumps({"weight": {"dtype": "U8", "shape": [BYTES], "data_offsets": [0, BYTES]}}).encode()
        self.content = struct.pack("<Q", len(header)) + header + bytes(BYTES)
        self.refused, self.url = 0, ""

    def refuses(self, size: int) -> bool:
        """Whether it refuses a read, and count it."""
        is_refused = size == BYTES and self.refused < REFUSED
        self.refused += is_refused
        return is_refused


@contextmanager
def run_s3() -> Iterator[ThrottledS3]:
    s3 = ThrottledS3()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = s3.content[first : last + 1]
            if s3.refuses(len(part)):
                self.respond(503, b"<Error><Code>SlowDown</Code></Error>", {"Content-Type": "application/xml"})
            else:
                self.respond(206, part, {"Content-Range": f"bytes {first}-{last}/{len(s3.content)}", "ETag": '"one"'})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        s3.url = f"http://127.0.0.1:{server.server_port}"
        yield s3
        server.shutdown()


@pytest.mark.parametrize("is_set", [True, False], ids=["the catalog's variables", "none of them"])
def test_a_load_survives_reads_that_s3_refuses(is_set: bool) -> None:
    streaming = engines.load_engines()["vllm"].streaming
    assert streaming
    with run_s3() as s3:
        environment = {
            "AWS_ENDPOINT_URL": s3.url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-west-2",
            "AWS_EC2_METADATA_DISABLED": "true",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
            "RUNAI_STREAMER_S3_MAX_RETRIES": str(NATIVE_RETRIES),
            **(streaming.environment if is_set else {}),
        }
        ended = subprocess.run(
            [engines_own.find_executables() / "python", PROGRAM, "s3://bucket/model/model.safetensors"],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    if is_set:
        assert ended.stdout.splitlines()[-1:] == ["tensors: weight"], ended.stderr
        assert s3.refused == REFUSED
    else:
        assert "File access error" in ended.stderr
        assert s3.refused == 1 + NATIVE_RETRIES
