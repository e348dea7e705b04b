"""TLS of servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


def make_certificate(folder: Path, address: str = "DNS:localhost") -> tuple[Path, Path]:
    """Make a certificate that signs itself, and its key; return their files.

    Args:
        address: of the server, as subjectAltName has it.
    """
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
               "2", "-subj", "/CN=localhost", "-addext", f"subjectAltName={address}", "-keyout", str(key), "-out",
               str(certificate)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@contextlib.contextmanager
def run_proxy(port: int, certificate: Path, key: Path, address: tuple[str, int] = ("localhost", 0)) -> Iterator[int]:
    """Forward TLS connections of a port, which is yielded, to another one.

    Args:
        address: host and port to listen at; any free port for 0.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), list[int]()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await reader.read(65536):
                writer.write(block)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(forward, *address, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
