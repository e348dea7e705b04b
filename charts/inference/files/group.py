"""Keep the nodes of a replica together: they start, serve, drain and end as one.

    python3 group.py lead --health URL [--metrics URL --running NAME --steps NAME] [--port PORT --followers NUMBER]
    python3 group.py follow --leader HOST --port PORT --requests PORT --drain SECONDS
    python3 group.py drain --leader HOST --requests PORT --drain SECONDS

`lead` and `follow` run beside an engine, in its task: the program's end is the task's. Each follower keeps a connection
to its leader. Where one is lost, both end: an engine that lost a node computes nothing and does not say so, and a
leader that starts again would wait for nodes that are in its former group. `lead` ends as well when the engine, once
healthy, stops answering, or has requests and computes nothing: its health page says that its process lives, no more.

On SIGTERM, as when a machine drains, a follower tells the leader by its end of the connection, and stays while the
leader accepts connections: vLLM closes its port once its last request is answered (entrypoints/launchers/launcher.py,
handle_shutdown, of 0.32), and its followers leave at once (entrypoints/cli/serve.py, run_headless). `drain` waits for
only that.

Containers run this file as it is: it supports every Python that engines bring and imports the standard library only.
charts/inference/files/group.py is a copy, so that the chart is complete without it.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

INTERVAL_S = float(os.environ.get("GROUP_INTERVAL_S", "5"))
"""Between two heartbeats, two health checks, and two attempts to connect."""

MISSES = 6
"""Intervals of silence, or failed health checks in a row, after which a node counts as lost."""

HANG_S = float(os.environ.get("GROUP_HANG_S", "900"))
"""Longest that an engine may have requests and end no step; the alert InferenceEngineHangs waits as long."""

HEALTH_TIMEOUT_S = 20.0
"""Of one health check: a busy engine answers late."""

stopped = threading.Event()
"""Set by SIGTERM: the task is asked to end."""


def watch_health(url: str) -> None:
    """Return once the engine, healthy before, has failed several checks in a row."""
    was_healthy, misses = False, 0
    while misses < MISSES:
        healthy = is_healthy(url)
        was_healthy = was_healthy or healthy
        misses = 0 if healthy or not was_healthy else misses + 1
        time.sleep(INTERVAL_S)


def is_healthy(url: str) -> bool:
    """Whether a GET of the URL is answered with status 200."""
    return request_page(url) is not None


def request_page(url: str) -> str | None:
    """Return what a GET of the URL is answered with; None unless its status is 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=HEALTH_TIMEOUT_S) as response:
            page: str = response.read().decode()
            return page
    except (OSError, ValueError, http.client.HTTPException):
        return None


def watch_steps(url: str, running: str, steps: str) -> None:
    """Return once the engine has had requests for too long without a step; a page that cannot be read tells nothing."""
    last_steps, since = -1.0, time.monotonic()
    while True:
        page = request_page(url) or ""
        now_steps = sum_series(page, steps)
        if now_steps != last_steps or not sum_series(page, running):
            last_steps, since = now_steps, time.monotonic()
        elif time.monotonic() - since > HANG_S:
            return
        time.sleep(HANG_S / 60)


def sum_series(page: str, name: str) -> float:
    """Return the sum of a metric's series on a page of Prometheus."""
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith((name + "{", name + " ")))


def keep_connection(connection: socket.socket) -> None:
    """Exchange heartbeats until the other side is lost, or this one is asked to end."""
    connection.settimeout(INTERVAL_S)
    last_heard = time.monotonic()
    while not stopped.is_set() and time.monotonic() - last_heard < MISSES * INTERVAL_S:
        try:
            connection.sendall(b".")
            if not connection.recv(64):
                return
            last_heard = time.monotonic()
            stopped.wait(INTERVAL_S)
        except TimeoutError:
            continue
        except OSError:
            return


def lead(options: argparse.Namespace) -> str:
    """Return why the leader must end; empty if it was asked to."""
    reasons: list[str] = []
    finished = threading.Event()

    def watch(reason: str, function: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            function(*arguments)
            reasons.append(reason)
            finished.set()

        threading.Thread(target=run, daemon=True).start()

    watch("the engine no longer answers " + options.health, watch_health, options.health)
    if options.metrics:
        reason = "the engine has requests and computes nothing"
        watch(reason, watch_steps, options.metrics, options.running, options.steps)
    if options.followers:
        server = socket.create_server(("", options.port), backlog=options.followers)

        def accept() -> None:
            while True:
                connection, address = server.accept()
                print("group: follower " + address[0] + " joined", flush=True)
                watch("lost follower " + address[0], keep_connection, connection)

        threading.Thread(target=accept, daemon=True).start()
    while not finished.wait(0.2):
        if stopped.is_set():
            return ""
    return "" if stopped.is_set() else reasons[0]


def follow(options: argparse.Namespace) -> str:
    """Return why the follower must end; empty if it was asked to."""
    connection = None
    while connection is None and not stopped.is_set():
        try:
            connection = socket.create_connection((options.leader, options.port), timeout=INTERVAL_S)
        except OSError:
            stopped.wait(INTERVAL_S)
    if connection is None:
        return ""
    leader = connection.getpeername()[0]
    print("group: joined leader " + leader, flush=True)
    keep_connection(connection)
    reason = "" if stopped.is_set() else "lost leader " + leader
    connection.close()
    wait_for_requests(leader, options.requests, options.drain)
    return reason


def wait_for_requests(leader: str, port: int, seconds: float) -> None:
    """Wait while the leader accepts connections for requests, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((leader, port), timeout=INTERVAL_S).close()
        except OSError:
            return
        time.sleep(min(1.0, INTERVAL_S))


def drain(options: argparse.Namespace) -> str:
    """Wait for the leader's requests; its name may go before it does, and one without an address is gone."""
    try:
        leader = socket.gethostbyname(options.leader)
    except OSError:
        return ""
    wait_for_requests(leader, options.requests, options.drain)
    return ""


def parse_arguments() -> argparse.Namespace:
    """Return the options; exits with a usage message."""
    parser = argparse.ArgumentParser("group")
    commands = parser.add_subparsers(dest="command", required=True)
    leader = commands.add_parser("lead")
    leader.add_argument("--health", required=True)
    for name in ("--metrics", "--running", "--steps"):
        leader.add_argument(name)
    leader.add_argument("--port", type=int, default=0)
    leader.add_argument("--followers", type=int, default=0)
    for name in ("follow", "drain"):
        node = commands.add_parser(name)
        node.add_argument("--leader", required=True)
        node.add_argument("--requests", type=int, required=True)
        node.add_argument("--drain", type=float, required=True)
        if name == "follow":
            node.add_argument("--port", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    reason = {"lead": lead, "follow": follow, "drain": drain}[arguments.command](arguments)
    sys.exit("group: " + reason if reason else 0)
