from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving.kinds.batch import client
from llm_serving.kinds.batch.client import BatchClient
from llm_serving.settings.errors import InputError, Unavailable
from tests.http_handler import QuietHandler


class AnotherServer(QuietHandler):
    """Answers whatever it is asked with its own page, with JSON that no program can read, or with half an answer."""

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.startswith("/v1/batches/slow"):
            time.sleep(2)
            self.respond(200, b'{"id": "batch_b"}')
            return
        if self.path == "/teams":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.close_connection = True
            return
        self.respond(200, b"<html>It works!</html>" if self.path == "/workers" else b"[" * 100_000)


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), AnotherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_another_server_at_its_url_is_named_with_the_beginning_of_its_answer(url: str) -> None:
    with pytest.raises(Unavailable) as error:
        BatchClient(url).list_workers()
    assert str(error.value) == f"{url} is not a Batch API: it answered '<html>It works!</html>'. Fix: check its URL."
    with pytest.raises(Unavailable, match="is not a Batch API: it answered '\\[\\[\\["):
        BatchClient(url).read("batch_a")


def test_an_answer_that_ends_half_way_is_of_an_api_that_is_away(url: str) -> None:
    with pytest.raises(Unavailable) as error:
        BatchClient(url).list_teams()
    reason = "IncompleteRead(1 bytes read, 99 more expected)"
    assert str(error.value) == f"the Batch API at {url} is away: {reason}. Fix: look at blueprint status."


def test_a_retry_of_a_large_job_may_take_longer_than_an_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_S", 0.5)
    assert BatchClient(url).retry("slow")["id"] == "batch_b"
    with pytest.raises(Unavailable, match="is away: timed out"):
        BatchClient(url).read("slow")


def test_an_empty_file_is_refused_by_its_own_name_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(InputError) as error:
        BatchClient("http://127.0.0.1:9").upload(tmp_path / "rows.jsonl")
    assert str(error.value) == f"{tmp_path / 'rows.jsonl'}: it is empty. Fix: name a file of rows."
