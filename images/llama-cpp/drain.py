"""Run llama-server, and let it answer the requests in flight before it ends: `python3 drain.py PROGRAM ARGUMENTS...`.

llama-server stops computing with SIGTERM while the requests in flight keep their connections: streams are cut when it
next writes to them, half a minute later, and other requests wait for ever (b11669, 2026-11-23). This program takes the
signal in its place, waits until the server's own counters know of no request, at most DRAIN_S seconds, and ends it
then. New requests are still answered meanwhile: whoever stops a replica first takes it out of the router's list.

Standard library only: the image has nothing else.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

DRAIN_S = 10.0
"""Longest wait for requests where the environment's DRAIN_S says nothing; below the 15 s of the local target."""

END_S = 3.0
"""For the server to end by itself once it is asked to; then it is killed."""

INTERVAL_S = 0.2
QUIET_READS = 6
"""Reads in a row without a request: one may be between the connection and the counter, and the end of a stream, which
the counter no longer knows, takes its time on a busy machine."""

GAUGES = re.compile(r"^llamacpp:requests_(?:processing|deferred) (\S+)$", re.MULTILINE)


def main(command: Sequence[str]) -> int:
    """Run the server; return its exit code, 0 where it was ended after a signal."""
    drain_s = float(os.environ.get("DRAIN_S") or DRAIN_S)
    url = f"http://{_find_value(command, '--host', '127.0.0.1')}:{_find_value(command, '--port', '8080')}/metrics"
    child = subprocess.Popen(command)
    drainers: list[threading.Thread] = []

    def begin(_number: int, _frame: object) -> None:
        if not drainers:
            drainers.append(threading.Thread(target=drain, args=(child, url, drain_s), daemon=True))
            drainers[0].start()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, begin)
    code = child.wait()
    if drainers:
        return 0
    return code if code >= 0 else 128 - code


def _find_value(command: Sequence[str], option: str, default: str) -> str:
    value = command[command.index(option) + 1] if option in command else default
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(value, value)


def drain(child: subprocess.Popen[bytes], url: str, drain_s: float) -> None:
    """Wait for the requests in flight, at most `drain_s` seconds, then end the server."""
    deadline, quiet_reads, open_requests = time.monotonic() + drain_s, 0, count_requests(url)
    print(f"drain: {open_requests} requests in flight, at most {drain_s:g} s for them", flush=True)
    while open_requests or quiet_reads < QUIET_READS - 1:
        if child.poll() is not None or time.monotonic() >= deadline:
            break
        time.sleep(INTERVAL_S)
        open_requests = count_requests(url)
        quiet_reads = 0 if open_requests else quiet_reads + 1
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


def count_requests(url: str) -> int:
    """Count the requests that the server works on or has waiting; 1 where it does not say so in time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as response:
            return sum(int(float(count)) for count in GAUGES.findall(response.read().decode()))
    except urllib.error.HTTPError:  # 503: it still loads its model
        return 0
    except urllib.error.URLError as error:
        return 0 if isinstance(error.reason, ConnectionRefusedError) else 1
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
