"""images/router's program with the real vllm-router, and a file in the place of DNS."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from llm_serving import processes
from tests import engines_own

FOLDER = Path(__file__).parents[1] / "images" / "router"

RUNNER = """
import json, pathlib, sys
sys.path.insert(0, {folder!r})
import router_dns_discovery
router_dns_discovery.INTERVAL_S = 0.5
def resolve(host):
    answer = json.loads(pathlib.Path({dns!r}).read_text()).get(host, [])
    return None if answer is None else set(answer)
router_dns_discovery.resolve = resolve
sys.exit(router_dns_discovery.main(sys.argv[1:]))
"""
"""The program with that file."""


def write_dns(folder: Path, **names: list[str] | None) -> None:
    """Write the addresses of each DNS name; None: DNS does not answer."""
    new = folder / "dns.new"
    new.write_text(json.dumps(names))
    new.replace(folder / "dns.json")


@contextlib.contextmanager
def run_router(folder: Path, *arguments: str, router: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Run the program and the router; yield the URLs of the router and of its metrics. The log is `discovery.log`.

    Args:
        arguments: the program's arguments; ROUTER is replaced by the router's URL.
        router: the router's further arguments.
    """
    listen, metrics = processes.claim_free_ports(2)
    url = f"http://127.0.0.1:{listen}"
    code = RUNNER.format(folder=str(FOLDER), dns=str(folder / "dns.json"))
    command = [
        *(sys.executable, "-c", code, *(word.replace("ROUTER", url) for word in arguments), "--"),
        *(str(engines_own.find_executables() / "vllm-router"), "--host", "127.0.0.1", "--port", str(listen)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1", *router),
    ]
    with (folder / "discovery.log").open("wb") as sink:
        child = processes.spawn(command, environment={}, output=sink)
    try:
        processes.wait_until(lambda: fetch_page(f"{url}/health") is not None, "the router", 60)
        yield url, f"http://127.0.0.1:{metrics}/metrics"
    finally:
        child.terminate()
        try:
            assert child.wait(60) is not None
        finally:
            processes.stop(child, grace_s=1)


def fetch_page(url: str) -> bytes | None:
    """A page; None where nobody gives it."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return bytes(response.read())
    except OSError:
        return None
