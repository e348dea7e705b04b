"""Runs vllm-router, and keeps its list of engines equal to those that answer behind DNS names.

    follow --router URL [--worker NAME:PORT]... -- vllm-router ...
    follow --discovery HOST:PORT --prefill NAME:PORT... --decode NAME:PORT... -- vllm-router ...

Replicas come and go, and what they leave is a DNS name with an address for each: Cloud Map's MULTIVALUE on ECS, a
headless Service on EKS. vllm-router takes addresses at its start, or watches Kubernetes; what else it listens to
depends on its mode:

- Engines that do both halves of a request are added and removed by its HTTP interface (`/workers`): with --enable-igw
  under every model that they list, so that LoRA adapters that were loaded at run time are routed too; without it once
  each, and the router then asks an engine that joins where to hear what its cache holds.
- Prefill and decode register themselves by ZeroMQ messages that hold for five seconds (--vllm-discovery-address). They
  are sent here on their behalf, from the same container: nobody else can reach that socket.

An engine is passed on only while it answers `/v1/models`, whatever DNS says.
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
"""Between two looks; less than half of the time that a ZeroMQ registration holds."""

TIMEOUT_S = 2.0
"""Of one question to an engine."""

MAX_MISSES = 2
"""Questions in a row that an engine may leave unanswered before it is taken away."""

MAX_DNS_ANSWERS = 8
"""Addresses of one DNS answer, drawn at random where there are more. Source: AWS Cloud Map API reference, DnsConfig,
RoutingPolicy, 2026-11."""

ROLE_CODES = {"prefill": "P", "decode": "D"}
"""vllm-router's signs for the two halves of a request."""

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
        """The engines that answer now."""
        resolved = resolve_host(self.host)
        if resolved is not None and len(resolved) < MAX_DNS_ANSWERS:
            self.addresses = set(resolved)  # all that there is
        elif resolved:
            self.addresses |= resolved  # a part of it, another one each time
        urls = {address: f"http://{address}:{self.port}" for address in sorted(self.addresses)}
        with ThreadPoolExecutor(max_workers=32) as pool:
            responses = dict(zip(urls, pool.map(fetch, urls.values()), strict=True))
        for address, models in responses.items():
            self.misses[address] = 0 if models else self.misses.get(address, 0) + 1
            if models:
                self.answering[urls[address]] = models
        live_urls = {urls[address] for address in urls if self.misses[address] < MAX_MISSES}
        self.answering = {url: models for url, models in self.answering.items() if url in live_urls}
        # One of many that is gone is in no answer any more: it is forgotten once it is silent.
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
    """The IPv4 addresses of a name: none where there is no such name yet; None where DNS does not answer."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)}
    except socket.gaierror as error:
        return set() if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)) else None


def fetch_models(url: str) -> tuple[str, ...] | None:
    """The models that an engine lists, adapters among them; None where it does not answer."""
    try:
        return tuple(str(entry["id"]) for entry in json.loads(_send_request("GET", f"{url}/v1/models"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class WorkerList:
    """The router's list of workers, by its HTTP interface.

    Args:
        each_model: the router tells models apart, and is told of an engine for each that it lists.
    """

    def __init__(self, router: str, *, each_model: bool) -> None:
        self.router = router
        self.each_model = each_model
        self.registered: dict[str, set[str]] = {}
        """Models by URL, as the router was told."""

    def sync(self, engines: Engines) -> None:
        """Makes the router's list equal to `engines`; what the router does not take is tried again next time."""
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
            if sent_models - set(expected_models):  # the interface takes away workers, not models
                self._remove(url)
                sent_models = set()
            for model in (item for item in expected_models if item not in sent_models):
                self._add(url, model)

    def _add(self, url: str, model: str) -> None:
        try:
            _send_request("POST", f"{self.router}/workers", {"url": url, "model_id": model})
        except OSError as error:
            log(f"{url} was not added for {model}: {error}")
        else:
            self.registered.setdefault(url, set()).add(model)
            log(f"{url} serves {model}")

    def _remove(self, url: str) -> None:
        self.registered.pop(url, None)
        try:
            _send_request("DELETE", f"{self.router}/workers/{urllib.parse.quote(url, safe='')}")
        except OSError as error:
            log(f"{url} was not removed: {error}")
        else:
            log(f"{url} is gone")


class DiscoveryClient:
    """Registrations of prefill and decode, by ZeroMQ."""

    def __init__(self, address: str) -> None:
        import zmq

        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        # Registrations that nobody took would say later what was true once.
        self.socket.setsockopt(zmq.SNDHWM, 100)
        self.socket.connect(f"tcp://{address}")
        self.registered: dict[str, set[str]] = {}

    def register(self, kind: str, engines: Engines) -> None:
        """Registers all of them for the next five seconds."""
        import msgpack  # type: ignore[import-untyped]
        import zmq

        for url in engines:
            address = url.removeprefix("http://")
            message = {"type": ROLE_CODES[kind], "http_address": address, "zmq_address": address}
            try:
                self.socket.send(msgpack.packb(message), flags=zmq.NOBLOCK)
            except zmq.Again:
                log(f"{url} was not registered: the router takes no message")
        previous = self.registered.get(kind, set())
        for url in sorted(engines.keys() ^ previous):
            log(f"{url} {'does' if url in engines else 'no longer does'} {kind}")
        self.registered[kind] = set(engines)


def log(text: str) -> None:
    """A line among the router's own."""
    print(f"follow: {text}", flush=True)


def _send_request(method: str, url: str, body: Mapping[str, str] | None = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    # Engines and router are reached directly, whatever proxy the container was given for the world.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return bytes(response.read())


def main(arguments: Sequence[str]) -> int:
    """Runs the router until it ends, or a signal ends both; returns its exit status."""
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
    parser = argparse.ArgumentParser("follow", description="Runs vllm-router and tells it of engines behind DNS names.")
    parser.add_argument("--router", metavar="URL", help="where the router's own interface is")
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
