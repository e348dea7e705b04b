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

MISSES = 2
"""Questions in a row that an engine may leave unanswered before it is taken away."""

DNS_MOST = 8
"""Addresses of one DNS answer, drawn at random where there are more. Source: AWS Cloud Map API reference, DnsConfig,
RoutingPolicy, 2026-11."""

KINDS = {"prefill": "P", "decode": "D"}
"""vllm-router's signs for the two halves of a request."""

Engines = Mapping[str, tuple[str, ...]]
"""Models by the base URL of the engine that serves them."""


@dataclass
class Name:
    """A DNS name, and the addresses behind it that answer."""

    host: str
    port: int
    addresses: set[str] = field(default_factory=set)
    misses: dict[str, int] = field(default_factory=dict)
    answering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Models by URL."""

    def look(self, resolve: Callable[[str], set[str] | None], ask: Callable[[str], tuple[str, ...] | None]) -> Engines:
        """The engines that answer now."""
        found = resolve(self.host)
        if found is not None and len(found) < DNS_MOST:
            self.addresses = set(found)  # all that there is
        elif found:
            self.addresses |= found  # a part of it, another one each time
        urls = {address: f"http://{address}:{self.port}" for address in sorted(self.addresses)}
        with ThreadPoolExecutor(max_workers=32) as pool:
            said = dict(zip(urls, pool.map(ask, urls.values()), strict=True))
        for address, models in said.items():
            self.misses[address] = 0 if models else self.misses.get(address, 0) + 1
            if models:
                self.answering[urls[address]] = models
        kept = {urls[address] for address in urls if self.misses[address] < MISSES}
        self.answering = {url: models for url, models in self.answering.items() if url in kept}
        # One of many that is gone is in no answer any more: it is forgotten once it is silent.
        self.addresses = {one for one in self.addresses if self.misses[one] < MISSES or (found and one in found)}
        self.misses = {one: count for one, count in self.misses.items() if one in self.addresses}
        return dict(self.answering)


def resolve(host: str) -> set[str] | None:
    """The IPv4 addresses of a name: none where there is no such name yet; None where DNS does not answer."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)}
    except socket.gaierror as error:
        return set() if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)) else None


def models(url: str) -> tuple[str, ...] | None:
    """The models that an engine lists, adapters among them; None where it does not answer."""
    try:
        return tuple(str(one["id"]) for one in json.loads(_request("GET", f"{url}/v1/models"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Workers:
    """The router's list of workers, by its HTTP interface.

    Args:
        each_model: the router tells models apart, and is told of an engine for each that it lists.
    """

    def __init__(self, router: str, *, each_model: bool) -> None:
        self.router = router
        self.each_model = each_model
        self.told: dict[str, set[str]] = {}
        """Models by URL, as the router was told."""

    def be(self, engines: Engines) -> None:
        """Makes the router's list equal to `engines`; what the router does not take is tried again next time."""
        try:
            there = {one["url"] for one in json.loads(_request("GET", f"{self.router}/workers"))["workers"]}
        except (OSError, ValueError, KeyError):
            return  # not up yet
        self.told = {url: told for url, told in self.told.items() if url in there}
        for url in sorted(there - engines.keys()):
            self._remove(url)
        for url, listed in engines.items():
            served = listed if self.each_model else listed[:1]
            told = self.told.get(url, set())
            if told - set(served):  # the interface takes away workers, not models
                self._remove(url)
                told = set()
            for model in (one for one in served if one not in told):
                self._add(url, model)

    def _add(self, url: str, model: str) -> None:
        try:
            _request("POST", f"{self.router}/workers", {"url": url, "model_id": model})
        except OSError as error:
            say(f"{url} was not added for {model}: {error}")
        else:
            self.told.setdefault(url, set()).add(model)
            say(f"{url} serves {model}")

    def _remove(self, url: str) -> None:
        self.told.pop(url, None)
        try:
            _request("DELETE", f"{self.router}/workers/{urllib.parse.quote(url, safe='')}")
        except OSError as error:
            say(f"{url} was not removed: {error}")
        else:
            say(f"{url} is gone")


class Discovery:
    """Registrations of prefill and decode, by ZeroMQ."""

    def __init__(self, address: str) -> None:
        import zmq

        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        # Registrations that nobody took would say later what was true once.
        self.socket.setsockopt(zmq.SNDHWM, 100)
        self.socket.connect(f"tcp://{address}")
        self.told: dict[str, set[str]] = {}

    def be(self, kind: str, engines: Engines) -> None:
        """Registers all of them for the next five seconds."""
        import msgpack  # type: ignore[import-untyped]
        import zmq

        for url in engines:
            where = url.removeprefix("http://")
            said = {"type": KINDS[kind], "http_address": where, "zmq_address": where}
            try:
                self.socket.send(msgpack.packb(said), flags=zmq.NOBLOCK)
            except zmq.Again:
                say(f"{url} was not registered: the router takes no message")
        before = self.told.get(kind, set())
        for url in sorted(engines.keys() ^ before):
            say(f"{url} {'does' if url in engines else 'no longer does'} {kind}")
        self.told[kind] = set(engines)


def say(text: str) -> None:
    """A line among the router's own."""
    print(f"follow: {text}", flush=True)


def _request(method: str, url: str, body: Mapping[str, str] | None = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    # Engines and router are reached directly, whatever proxy the container was given for the world.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def main(arguments: Sequence[str]) -> int:
    """Runs the router until it ends, or a signal ends both; returns its exit status."""
    asked, command = _read(arguments)
    names = {kind: [_name(text) for text in getattr(asked, kind)] for kind in ("worker", *KINDS)}
    router = subprocess.Popen(command)
    ended = threading.Event()

    def end(sent: int, _: object) -> None:
        ended.set()
        router.send_signal(sent)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    workers = Workers(asked.router, each_model="--enable-igw" in command) if asked.router else None
    discovery = Discovery(asked.discovery) if asked.discovery else None
    while router.poll() is None and not ended.is_set():
        found = {
            kind: {url: ids for name in names[kind] for url, ids in name.look(resolve, models).items()}
            for kind in names
        }
        if workers:
            workers.be(found["worker"])
        if discovery:
            for kind in KINDS:
                discovery.be(kind, found[kind])
        ended.wait(INTERVAL_S)
    return router.wait()


def _read(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser("follow", description="Runs vllm-router and tells it of engines behind DNS names.")
    parser.add_argument("--router", metavar="URL", help="where the router's own interface is")
    parser.add_argument("--discovery", metavar="HOST:PORT", help="the router's --vllm-discovery-address")
    for kind in ("worker", *KINDS):
        parser.add_argument(f"--{kind}", metavar="NAME:PORT", action="append", default=[])
    own, divided, command = list(arguments), "--" in arguments, []
    if divided:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    asked = parser.parse_args(own)
    if not command:
        parser.error("the router's command is missing: -- vllm-router ...")
    if asked.worker and not asked.router:
        parser.error("--worker needs --router")
    if (asked.prefill or asked.decode) and not asked.discovery:
        parser.error("--prefill and --decode need --discovery")
    return asked, command


def _name(text: str) -> Name:
    host, _, port = text.rpartition(":")
    return Name(host, int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
