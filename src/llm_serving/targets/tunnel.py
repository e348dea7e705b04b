"""A temporary tunnel from this machine to a deployment whose endpoint is private to its network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from llm_serving import console, processes
from llm_serving.settings.errors import Unavailable

_OPEN_TIMEOUT_S = 60.0


@contextlib.contextmanager
def open_tunnel(
    build_command: Callable[[int], Sequence[str]], log: Path, environment: Mapping[str, str]
) -> Iterator[str]:
    """Open a tunnel and yield its URL on this machine.

    Raises:
        Unavailable: it did not open; with the command's message.
    """
    (port,) = processes.claim_free_ports(1)
    command = build_command(port)
    console.show_command(command, environment=environment)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = processes.spawn(command, environment=environment, output=output)
    try:
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while processes.is_free(port):
            if child.poll() is not None or time.monotonic() > deadline:
                reason = (
                    " ".join(log.read_text(errors="replace").split()) or f"no answer within {_OPEN_TIMEOUT_S:.0f} s"
                )
                raise Unavailable(f"{console.quote_command(command)}: {reason}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        processes.stop(child)
