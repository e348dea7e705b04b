"""Run a router and keep its list of engines equal to those that answer behind DNS names.

    router-dns-discovery --router URL [--worker NAME:PORT[=WEIGHT]]... -- vllm-router ...
    router-dns-discovery --discovery HOST:PORT --prefill NAME:PORT... --decode NAME:PORT... -- vllm-router ...
    router-dns-discovery --router URL --bootstrap-port PORT --prefill NAME:PORT... --decode NAME:PORT... -- PROGRAM ...

Replicas come and go behind a DNS name with an address for each, as of a headless Service on EKS. On ECS the names are
those of AWS Cloud Map, whose DNS answers 8 addresses at the most: with CLOUD_MAP_REGION set, its API is asked instead.
vllm-router takes addresses when it starts, or watches Kubernetes; how to register an engine later depends on its mode:

- Engines that do both halves of a request are added and removed through its HTTP API (`/workers`): with --enable-igw
  under every model that they list, so that LoRA adapters loaded at run time are routed too; without it once each, and
  the router then asks a new engine where to subscribe to the events of its cache.
- Prefill and decode of vllm-router register by ZeroMQ messages that hold for five seconds (--vllm-discovery-address).
  This program sends them from the same container: that socket is reachable from nowhere else.
- Those of sglang-router are added through its HTTP API, each as what it does; a prefill engine with the port at which
  decode asks for its cache.

vllm-router has no weights: an engine of weight 3 is three entries of its list, whose URLs a client takes for one. Each
policy then gives it three times the requests of an engine of weight 1.

An engine is registered only while it answers `/health` and `/v1/models`, whatever DNS returns. With ENGINE_PROBE set,
{"path": PATH, "body": BODY}, it must first have answered that request once: whoever only listens gets no traffic.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

INTERVAL_S = 2.0
"""Between two rounds; with WAIT_S less than the time that a ZeroMQ registration holds."""

WAIT_S = 1.0
"""A round's wait for answers; a later one counts in its own round, so that a slow engine holds up no other."""

TIMEOUT_S = 10.0
"""Of one request. A busy engine answers late, and a dead one refuses at once."""

MAX_MISSES = 3
"""Failed requests in a row after which an engine is removed."""

PROBES = ThreadPoolExecutor(max_workers=256, thread_name_prefix="probe")
"""Requests to engines under way at once."""

MAX_DNS_ANSWERS = 8
"""Addresses of one DNS answer, drawn at random if there are more. Source: AWS Cloud Map API reference, DnsConfig,
RoutingPolicy, 2026-11."""

MAX_INSTANCES = 1000
"""Most instances of one answer of Cloud Map, and most tasks that register with one of its services. Source: AWS Cloud
Map API reference, DiscoverInstances, MaxResults; ECS developer guide, "Service discovery", considerations; 2026-11."""

PROBE_TIMEOUT_S = 60.0
"""Of the first answer of an engine, which may compile for it."""

ROLE_CODES = {"prefill": "P", "decode": "D"}
"""vllm-router's codes of the two halves of a request."""

Engines = Mapping[str, tuple[str, ...]]
"""Models by the base URL of the engine that serves them."""


@dataclass
class DnsName:
    """A DNS name, and the addresses behind it that answer."""

    host: str
    port: int
    weight: int = 1
    """Entries of the router's list for each address."""

    is_complete: bool = False
    """Whether an answer holds all addresses, however many."""

    addresses: set[str] = field(default_factory=set)
    misses: dict[str, int] = field(default_factory=dict)
    answering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Models by URL."""

    probes: dict[str, Future[tuple[str, ...] | None]] = field(default_factory=dict)
    """Requests under way, by address."""

    def refresh(
        self, resolve_host: Callable[[str], set[str] | None], fetch: Callable[[str], tuple[str, ...] | None]
    ) -> Engines:
        """Return the engines that answer now, each under as many URLs as its weight."""
        resolved = resolve_host(self.host)
        if resolved is not None and (self.is_complete or len(resolved) < MAX_DNS_ANSWERS):
            self.addresses = set(resolved)  # the whole answer
        elif resolved:
            self.addresses |= resolved  # a random part of it
        urls = {address: f"http://{address}:{self.port}" for address in sorted(self.addresses)}
        for address, models in self._collect_answers(urls, fetch).items():
            self.misses[address] = 0 if models else self.misses.get(address, 0) + 1
            if models:
                self.answering[urls[address]] = models
        live_urls = {urls[address] for address in urls if self.misses.get(address, 0) < MAX_MISSES}
        self.answering = {url: models for url, models in self.answering.items() if url in live_urls}
        # A removed replica is missing from answers, but so are others: drop it once it stops responding.
        self.addresses = {
            address
            for address in self.addresses
            if self.misses.get(address, 0) < MAX_MISSES or (resolved and address in resolved)
        }
        self.misses = {address: count for address, count in self.misses.items() if address in self.addresses}
        # HTTP clients drop "/." from a path: RFC 3986, 5.2.4.
        return {url + "/." * copy: models for url, models in self.answering.items() for copy in range(self.weight)}

    def _collect_answers(
        self, urls: Mapping[str, str], fetch: Callable[[str], tuple[str, ...] | None]
    ) -> dict[str, tuple[str, ...] | None]:
        """Ask each address that is not asked already; return what those answer that are done, by address."""
        for address, url in urls.items():
            if address not in self.probes:
                self.probes[address] = PROBES.submit(fetch, url)
        wait(self.probes.values(), timeout=WAIT_S)
        done = {address: probe for address, probe in self.probes.items() if probe.done()}
        self.probes = {address: probe for address, probe in self.probes.items() if address not in done}
        return {address: probe.result() for address, probe in done.items() if address in urls}


def resolve(host: str) -> set[str] | None:
    """Return the IPv4 addresses of a name: an empty set for an unknown name, None if DNS fails."""
    try:
        return {str(address[4][0]) for address in socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)}
    except socket.gaierror as error:
        return set() if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", None)) else None


def build_cloud_map_resolver(region: str, endpoint: str | None = None) -> Callable[[str], set[str] | None]:
    """Return what asks Cloud Map for the addresses of SERVICE.NAMESPACE, all of them; None if it does not answer.

    Args:
        endpoint: URL of another Cloud Map than AWS's, which has one host for all of its API.
    """
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(inject_host_prefix=not endpoint, connect_timeout=5, read_timeout=TIMEOUT_S)
    client = botocore.session.get_session().create_client(
        "servicediscovery", region_name=region, endpoint_url=endpoint, config=config
    )

    def resolve_name(host: str) -> set[str] | None:
        service, _, namespace = host.partition(".")
        try:
            answer = client.discover_instances(
                NamespaceName=namespace, ServiceName=service, MaxResults=MAX_INSTANCES, HealthStatus="ALL"
            )
        except ClientError as error:
            return set() if error.response["Error"]["Code"] in ("ServiceNotFound", "NamespaceNotFound") else None
        except BotoCoreError:
            return None
        return {instance["Attributes"]["AWS_INSTANCE_IPV4"] for instance in answer["Instances"]}

    return resolve_name


def build_fetch(probe: Mapping[str, Any] | None) -> Callable[[str], tuple[str, ...] | None]:
    """Return what lists an engine's models; with a probe, none until the engine has answered that once."""
    if probe is None:
        return fetch_models
    answered: set[str] = set()

    def fetch(url: str) -> tuple[str, ...] | None:
        models = fetch_models(url)
        if models and url not in answered:
            try:
                _send_request("POST", url + probe["path"], {**probe["body"], "model": models[0]}, PROBE_TIMEOUT_S)
            except (OSError, ValueError) as error:
                log(f"{url} lists models and answers no request: {error}")
                return None
            answered.add(url)
        return models

    return fetch


def fetch_models(url: str) -> tuple[str, ...] | None:
    """Return the models that a healthy engine lists, adapters among them; None if it does not respond."""
    try:
        _send_request("GET", f"{url}/health")
        return tuple(str(entry["id"]) for entry in json.loads(_send_request("GET", f"{url}/v1/models"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class WorkerList:
    """The router's list of workers of one kind, managed through its HTTP API.

    Args:
        each_model: register an engine once for each model that it lists, for a router with --enable-igw.
        fields: further fields of a registration; `worker_type` among them, where the router has several kinds.
    """

    def __init__(self, router: str, *, each_model: bool = False, fields: Mapping[str, Any] | None = None) -> None:
        self.router = router
        self.each_model = each_model
        self.fields = fields or {}
        self.registered: dict[str, set[str]] = {}
        """Registered models by URL."""

        self.names: dict[str, str] = {}
        """What the router calls a worker when it is removed, by URL."""

    def sync(self, engines: Engines) -> None:
        """Make the router's list equal to `engines`; retry what it refuses in the next round."""
        try:
            workers = json.loads(_send_request("GET", f"{self.router}/workers"))["workers"]
            kind = self.fields.get("worker_type")
            # With --intra-node-data-parallel-size the router lists URL@RANK for each rank of an engine.
            urls = {
                re.sub(r"@\d+$", "", worker["url"]): worker
                for worker in workers
                if kind in (None, worker["worker_type"])
            }
            known_urls = set(urls)
            # sglang-router removes by its own number alone, and vllm-router all ranks of a URL.
            self.names = {url: worker["id"] if kind else url for url, worker in urls.items()}
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
            _send_request("POST", f"{self.router}/workers", {"url": url, "model_id": model, **self.fields})
        except OSError as error:
            log(f"failed to add {url} for {model}: {error}")
        else:
            self.registered.setdefault(url, set()).add(model)
            log(f"{url} serves {model}")

    def _remove(self, url: str) -> None:
        self.registered.pop(url, None)
        try:
            _send_request("DELETE", f"{self.router}/workers/{urllib.parse.quote(self.names[url], safe='')}")
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


def _send_request(method: str, url: str, body: Mapping[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> bytes:
    payload = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data=payload, method=method, headers={"Content-Type": "application/json"})
    # No proxy: engines and router are in this network, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return bytes(response.read())
    except http.client.HTTPException as error:  # an answer that is cut off, or another protocol's
        raise OSError(f"{url}: {error!r}") from error


def main(arguments: Sequence[str]) -> int:
    """Run the router until it exits or a signal stops both; return its exit status."""
    options, command = _parse_arguments(arguments)
    names = {kind: [_parse_dns_name(text) for text in getattr(options, kind)] for kind in ("worker", *ROLE_CODES)}
    region, probe = os.environ.get("CLOUD_MAP_REGION"), os.environ.get("ENGINE_PROBE")
    resolve_host = build_cloud_map_resolver(region) if region else resolve
    fetch = build_fetch(json.loads(probe) if probe else None)
    for name in (name for group in names.values() for name in group):
        name.is_complete = bool(region)
    router = subprocess.Popen(command)
    stopped = threading.Event()

    def stop(signal_number: int, _: object) -> None:
        stopped.set()
        router.send_signal(signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    workers = build_worker_lists(options, each_model="--enable-igw" in command) if options.router else {}
    discovery = DiscoveryClient(options.discovery) if options.discovery else None
    while router.poll() is None and not stopped.is_set():
        engines = {
            kind: {url: ids for name in names[kind] for url, ids in name.refresh(resolve_host, fetch).items()}
            for kind in names
        }
        for kind, worker_list in workers.items():
            worker_list.sync(engines[kind])
        if discovery:
            for kind in ROLE_CODES:
                discovery.register(kind, engines[kind])
        stopped.wait(INTERVAL_S)
    return router.wait()


def build_worker_lists(options: argparse.Namespace, *, each_model: bool) -> dict[str, WorkerList]:
    """Return the lists of workers that the router's HTTP API takes, by the kind of engine."""
    if not options.bootstrap_port:
        return {"worker": WorkerList(options.router, each_model=each_model)}
    prefill = {"worker_type": "prefill", "bootstrap_port": options.bootstrap_port}
    return {
        "prefill": WorkerList(options.router, fields=prefill),
        "decode": WorkerList(options.router, fields={"worker_type": "decode"}),
    }


def _parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        "router-dns-discovery", description="Run vllm-router and register the engines behind DNS names with it."
    )
    parser.add_argument("--router", metavar="URL", help="the router's HTTP API")
    parser.add_argument("--discovery", metavar="HOST:PORT", help="the router's --vllm-discovery-address")
    parser.add_argument(
        "--bootstrap-port", metavar="PORT", type=int, help="where prefill hands its cache over, for sglang-router"
    )
    parser.add_argument("--worker", metavar="NAME:PORT[=WEIGHT]", action="append", default=[])
    for kind in ROLE_CODES:
        parser.add_argument(f"--{kind}", metavar="NAME:PORT", action="append", default=[])
    separator = [*arguments, "--"].index("--")
    options, command = parser.parse_args(arguments[:separator]), list(arguments[separator + 1 :])
    if not command:
        parser.error("the router's command is missing: -- vllm-router ...")
    if options.worker and not options.router:
        parser.error("--worker needs --router")
    if (options.prefill or options.decode) and not (options.discovery or options.bootstrap_port):
        parser.error("--prefill and --decode need --discovery, or --bootstrap-port")
    if options.bootstrap_port and not options.router:
        parser.error("--bootstrap-port needs --router")
    return options, command


def _parse_dns_name(text: str) -> DnsName:
    address, _, weight = text.partition("=")
    host, _, port = address.rpartition(":")
    return DnsName(host, int(port), int(weight or 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
