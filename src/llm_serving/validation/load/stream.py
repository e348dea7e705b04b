"""One HTTP connection that records the arrival of each chunk of a stream. Runs inside Locust, on gevent's sockets.

Python's own HTTP client on a gevent socket returns each chunk at once; Locust's FastHttpSession.iter_lines waits for
1,024 bytes, which is many tokens. On Linux without TLS the time of a chunk is the kernel's, so that a driver busy with
other streams does not make the server look slow; elsewhere it is the time of the read.
"""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from gevent import socket as gsocket

_SO_TIMESTAMPNS = 35
"""Linux's socket option, missing in the standard library; the ancillary message has the same number."""

_TIMESPEC = struct.Struct("qq")
_CHUNK_BYTES = 65536

IDLE_LIMIT_S = 1.0
"""Connections idle for longer are not reused: servers close idle ones (vLLM after 5 s), and a request sent at that
moment would fail."""


class StampedSocket(gsocket.socket):  # type: ignore[misc]
    """A socket with the arrival time of its last read, on `time.perf_counter`'s clock."""

    stamp = 0.0
    offset: float | None = None
    """Wall clock minus perf_counter, in seconds; None without kernel timestamps."""

    def enable_timestamps(self) -> None:
        """Enable kernel timestamps; call before each request, since the wall clock may be adjusted."""
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            self.offset = time.time() - time.perf_counter()

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if self.offset is None:
            size = super().recv_into(buffer, nbytes, flags)
            self.stamp = time.perf_counter()
            return int(size)
        view = memoryview(buffer)[: nbytes or len(buffer)]
        size, ancillary, _, _ = self.recvmsg_into([view], socket.CMSG_SPACE(_TIMESPEC.size), flags)
        self.stamp = time.perf_counter()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(data[: _TIMESPEC.size])
                # The wall clock may have been set since: forwards by the offset of then, backwards by that of now, and
                # never later than the read.
                offset = min(self.offset, time.time() - self.stamp)
                self.stamp = min(self.stamp, seconds + nanoseconds / 1e9 - offset)
        return int(size)


@functools.cache
def _create_tls_context() -> ssl.SSLContext:
    # Loading the certificates takes milliseconds: do it once, not for each connection.
    return ssl.create_default_context()


class _PlainConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        raw_socket = gsocket.create_connection((self.host, self.port))
        self.sock = StampedSocket(raw_socket.family, raw_socket.type, raw_socket.proto, fileno=raw_socket.detach())
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class HttpError(Exception):
    """The server returned another status than 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:500]}")
        self.status = status


class Connection:
    """One client's connection to the deployment, opened on demand and reused while the client is busy."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url: SplitResult = urlsplit(url)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **headers}
        self._http: http.client.HTTPConnection | None = None
        self._used = 0.0
        self.unread_s = 0.0
        """Longest time that a chunk of the last answer waited for its read."""

    @property
    def kernel_times(self) -> bool:
        return sys.platform == "linux" and self._url.scheme == "http"

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def connect(self) -> None:
        """Open a connection unless a usable one is open.

        Raises:
            OSError: the server is unreachable.
        """
        if self._http is not None and time.perf_counter() - self._used > IDLE_LIMIT_S:
            self.close()
        if self._http is None:
            connection = self._create()
            connection.connect()
            self._http = connection

    def _create(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, self._url.port, context=_create_tls_context())
        return _PlainConnection(host, self._url.port)

    def post(self, path: str, body: bytes) -> Iterator[tuple[float, bytes]]:
        """Send a request on the open connection; yield the response's chunks with their times.

        Raises:
            HttpError: the status was not 200.
            OSError, http.client.HTTPException: the connection broke.
        """
        assert self._http is not None, "connect first"
        self.unread_s = 0.0
        sock = self._http.sock
        if isinstance(sock, StampedSocket):
            sock.enable_timestamps()
        self._http.request("POST", self._url.path.rstrip("/") + path, body, self._headers)
        response = self._http.getresponse()
        if response.status != http.client.OK:
            text = response.read().decode("utf-8", "replace")
            self._used = time.perf_counter()
            raise HttpError(response.status, text)
        while chunk := response.read1(_CHUNK_BYTES):
            now = time.perf_counter()
            stamp = getattr(sock, "stamp", now)
            self.unread_s = max(self.unread_s, now - stamp)
            yield stamp, chunk
        self._used = time.perf_counter()
        # Python 3.11 does not notice the end of a body whose length the server stated, and would refuse another
        # request on this connection.
        response.close()
        if response.will_close:
            self.close()
