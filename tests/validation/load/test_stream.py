"""The times of a stream's chunks."""

from __future__ import annotations

import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from llm_serving.validation.load import stream


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what comes")
@pytest.mark.parametrize("step_s", [-5.0, 0.0, 5.0])
def test_a_wall_clock_that_is_set_during_an_answer_moves_no_time(
    monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    may_answer = threading.Event()

    def answer() -> None:
        with server.accept()[0] as client:
            client.recv(65536)
            may_answer.wait(60)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ndata:")

    thread = threading.Thread(target=answer)
    thread.start()
    connection = stream.Connection(f"http://127.0.0.1:{server.getsockname()[1]}", {})
    connection.connect()
    before_s = [-step_s]  # the kernel's clock is set after the request was sent: until then it was another
    clock = SimpleNamespace(
        time=lambda: time.time() + before_s.pop() if before_s else time.time(), perf_counter=time.perf_counter
    )
    monkeypatch.setattr(stream, "time", clock)
    start = time.perf_counter()
    may_answer.set()
    ((stamp, chunk),) = connection.post("/v1/completions", b"{}")
    thread.join()
    assert chunk == b"data:"
    assert not before_s
    assert start <= stamp <= time.perf_counter()
