"""Run vllm-router and keep its list of engines equal to those that answer behind DNS names.

    router-dns-discovery --router URL [--worker NAME:PORT]... -- vllm-router ...
    router-dns-discovery --discovery HOST:PORT --prefill NAME:PORT... --decode NAME:PORT... -- vllm-router ...

Replicas come and go behind a DNS name with an address for each: Cloud Map's MULTIVALUE on ECS, a headless Service on
EKS. vllm-router takes addresses when it starts, or watches Kubernetes; how to register an engine later depends on its
mode:

- Engines that do both halves of a request are added and removed through its HTTP API (`/workers`): with --enable-igw
  under every model that they list, so that LoRA adapters loaded at run time are routed too; without it once each, and
  the router then asks a new engine where to subscribe to the events of its cache.
- Prefill and decode register by ZeroMQ messages that hold for five seconds (--vllm-discovery-address). This program
  sends them from the same container: that socket is reachable from nowhere else.

An engine is registered only while it answers `/v1/models`, whatever DNS returns.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

INTERVAL_S = 2.0
"""Between two rounds; less than half of the time that a ZeroMQ registration holds."""

TIMEOUT_S = 2.0
"""Of one request to an engine."""

MAX_MISSES = 2
"""Failed requests in a row after which an engine is removed."""

MAX_DNS_ANSWERS = 8
"""Addresses of one DNS answer, drawn at random if there are more. Source: AWS Cloud Map API reference, DnsConfig,
RoutingPolicy, 2026-11."""

ROLE_CODES = {"prefill": "P", "decode": "D"}
"""vllm-router's codes of the two halves of a request."""

Engines = Mapping[str, tuple[str, ...]]
"""Models by the base URL of the engine that serves them."""


@dataclass
class DnsName:
    """A DNS name, and the addresses behind it that answer."""

    host: str
    port: int
    addresses: set[str] = field(default_factory=set)
    misses: dict[str, int] = field(default_factory=dict)
    answering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Models by URL."""

    def refresh(
        self, resolve_host: Callable[[str], set[str] | None], fetch: Callable[[str], tuple[str, ...] | None]
    ) -> Engines:
        """Return the engines that answer now."""
        resolved = resolve_host(self.host)
        if resolved is not None and len(resolved) < MAX_DNS_ANSWERS:
            self.addresses = set(resolved)  # the whole answer
        elif resolved:
            self.addresses |= resolved  # a random part of it
        urls = {address: f"http://{address}:{self.port}" for address in sorted(self.addresses)}
        with ThreadPoolExecutor(max_workers=32) as pool:
            responses = dict(zip(urls, pool.map(fetch, urls.values()), strict=True))
        for address, models in responses.items():
            self.misses[address] = 0 if models else self.misses.get(address, 0) + 1
            if models:
                self.answering[urls[address]] = models
        live_urls = {urls[address] for address in urls if self.misses[address] < MAX_MISSES}
        self.answering = {url: models for url, models in self.answering.items() if url in live_urls}
        # A removed replica is missing from answers, but so are others: drop it once it stops responding.
        self.addresses = {
            known_address
            for known_address in self.addresses
            if self.misses[known_address] < MAX_MISSES or (resolved and known_address in resolved)
        }
        self.misses = {
            known_address: count for known_address, count in self.misses.items() if known_address in self.addresses
        }
        return dict(self.answering)


def resolve(host: str) -> set[str] | None:
    """Return the IPv4 addresses of a name: an empty set for an unknown name, None if DNS fails."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)}
    except socket.gaierror as error:
        return set() if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)) else None


def fetch_models(url: str) -> tuple[str, ...] | None:
    """Return the models that an engine lists, adapters among them; None if it does not respond."""
    try:
        return tuple(str(entry["id"]) for entry in json.loads(_send_request("GET", f"{url}/v1/models"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class WorkerList:
    """The router's list of workers, managed through its HTTP API.

    Args:
        each_model: register an engine once for each model that it lists, for a router with --enable-igw.
    """

    def __init__(self, router: str, *, each_model: bool) -> None:
        self.router = router
        self.each_model = each_model
        self.registered: dict[str, set[str]] = {}
        """Registered models by URL."""

    def sync(self, engines: Engines) -> None:
        """Make the router's list equal to `engines`; retry what it refuses in the next round."""
        try:
            known_urls = {item["url"] for item in json.loads(_send_request("GET", f"{self.router}/workers"))["workers"]}
        except (OSError, ValueError, KeyError):
            return  # not up yet
        self.registered = {url: sent_models for url, sent_models in self.registered.items() if url in known_urls}
        for url in sorted(known_urls - engines.keys()):
            self._remove(url)
        for url, model_ids in engines.items():
            expected_models = model_ids if self.each_model else model_ids[:1]
            sent_models = self.registered.get(url, set())
            if sent_models - set(expected_models):  # the API removes workers, not models
                self._remove(url)
                sent_models = set()
            for model in (item for item in expected_models if item not in sent_models):
                self._add(url, model)

    def _add(self, url: str, model: str) -> None:
        try:
            _send_request("POST", f"{self.router}/workers", {"url": url, "model_id": model})
        except OSError as error:
            log(f"failed to add {url} for {model}: {error}")
        else:
            self.registered.setdefault(url, set()).add(model)
            log(f"{url} serves {model}")

    def _remove(self, url: str) -> None:
        self.registered.pop(url, None)
        try:
            _send_request("DELETE", f"{self.router}/workers/{urllib.parse.quote(url, safe='')}")
        except OSError as error:
            log(f"failed to remove {url}: {error}")
        else:
            log(f"{url} removed")


class DiscoveryClient:
    """Registers prefill and decode over ZeroMQ."""

    def __init__(self, address: str) -> None:
        import zmq

        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        # Drop messages that the router does not read: delivered late they would be wrong.
        self.socket.setsockopt(zmq.SNDHWM, 100)
        self.socket.connect(f"tcp://{address}")
        self.registered: dict[str, set[str]] = {}

    def register(self, kind: str, engines: Engines) -> None:
        """Register the engines for the next five seconds."""
        import msgpack  # type: ignore[import-untyped]
        import zmq

        for url in engines:
            address = url.removeprefix("http://")
            message = {"type": ROLE_CODES[kind], "http_address": address, "zmq_address": address}
            try:
                self.socket.send(msgpack.packb(message), flags=zmq.NOBLOCK)
            except zmq.Again:
                log(f"failed to register {url}: the router reads no messages")
        previous = self.registered.get(kind, set())
        for url in sorted(engines.keys() ^ previous):
            log(f"{url} {'does' if url in engines else 'no longer does'} {kind}")
        self.registered[kind] = set(engines)


def log(text: str) -> None:
    """Print a line among the router's own."""
    print(f"router-dns-discovery: {text}", flush=True)


def _send_request(method: str, url: str, body: Mapping[str, str] | None = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    # No proxy: engines and router are in this network, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return bytes(response.read())


def main(arguments: Sequence[str]) -> int:
    """Run the router until it exits or a signal stops both; return its exit status."""
    options, command = _parse_arguments(arguments)
    names = {kind: [_parse_dns_name(text) for text in getattr(options, kind)] for kind in ("worker", *ROLE_CODES)}
    router = subprocess.Popen(command)
    stopped = threading.Event()

    def stop(signal_number: int, _: object) -> None:
        stopped.set()
        router.send_signal(signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    workers = WorkerList(options.router, each_model="--enable-igw" in command) if options.router else None
    discovery = DiscoveryClient(options.discovery) if options.discovery else None
    while router.poll() is None and not stopped.is_set():
        engines = {
            kind: {url: ids for name in names[kind] for url, ids in name.refresh(resolve, fetch_models).items()}
            for kind in names
        }
        if workers:
            workers.sync(engines["worker"])
        if discovery:
            for kind in ROLE_CODES:
                discovery.register(kind, engines[kind])
        stopped.wait(INTERVAL_S)
    return router.wait()


def _parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        "router-dns-discovery", description="Run vllm-router and register the engines behind DNS names with it."
    )
    parser.add_argument("--router", metavar="URL", help="the router's HTTP API")
    parser.add_argument("--discovery", metavar="HOST:PORT", help="the router's --vllm-discovery-address")
    for kind in ("worker", *ROLE_CODES):
        parser.add_argument(f"--{kind}", metavar="NAME:PORT", action="append", default=[])
    own_arguments, has_separator, command = list(arguments), "--" in arguments, []
    if has_separator:
        separator_index = own_arguments.index("--")
        own_arguments, command = own_arguments[:separator_index], own_arguments[separator_index + 1 :]
    options = parser.parse_args(own_arguments)
    if not command:
        parser.error("the router's command is missing: -- vllm-router ...")
    if options.worker and not options.router:
        parser.error("--worker needs --router")
    if (options.prefill or options.decode) and not options.discovery:
        parser.error("--prefill and --decode need --discovery")
    return options, command


def _parse_dns_name(text: str) -> DnsName:
    host, _, port = text.rpartition(":")
    return DnsName(host, int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
