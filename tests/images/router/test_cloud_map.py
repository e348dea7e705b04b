"""Discovery by the API of AWS Cloud Map, as on ECS; moto in the place of AWS."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest

from llm_serving.rehearsal import emulator
from tests import dns_discovery
from tests.http_handler import QuietHandler

REGION = "us-west-2"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("discovery_program", dns_discovery.FOLDER / "router_dns_discovery.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator.start(tmp_path_factory.mktemp("cloud-map"), bare=True) as url:
        yield url


@pytest.fixture
def cloud_map(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    emulator.reset(endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", emulator.get_access_key(endpoint))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    return endpoint


def register(endpoint: str, addresses: list[str]) -> None:
    """Registers tasks as ECS does, in the service `mine-worker` of the namespace `fabric.internal`."""
    client = emulator.create_client("servicediscovery", endpoint, REGION)
    client.create_private_dns_namespace(Name="fabric.internal", Vpc="vpc-1")
    [namespace] = client.list_namespaces()["Namespaces"]
    records = {"DnsRecords": [{"Type": "A", "TTL": 10}]}
    service = client.create_service(Name="mine-worker", NamespaceId=namespace["Id"], DnsConfig=records)["Service"]["Id"]
    for address in addresses:
        client.register_instance(ServiceId=service, InstanceId=address, Attributes={"AWS_INSTANCE_IPV4": address})


def test_all_tasks_of_a_service_are_found_in_one_answer(program: ModuleType, cloud_map: str) -> None:
    addresses = [f"10.0.{number // 200}.{number % 200}" for number in range(250)]
    register(cloud_map, addresses)
    resolve = program.build_cloud_map_resolver(REGION, cloud_map)
    assert resolve("mine-worker.fabric.internal") == set(addresses)


def test_fewer_would_be_found_without_asking_for_as_many(
    program: ModuleType, cloud_map: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(cloud_map, [f"10.0.0.{number}" for number in range(1, 13)])
    monkeypatch.setattr(program, "MAX_INSTANCES", 8)
    addresses = program.build_cloud_map_resolver(REGION, cloud_map)("mine-worker.fabric.internal")
    assert len(addresses) == 8


def test_an_unknown_service_has_no_tasks_and_a_silent_cloud_map_changes_nothing(
    program: ModuleType, cloud_map: str
) -> None:
    register(cloud_map, [])
    resolve = program.build_cloud_map_resolver(REGION, cloud_map)
    assert resolve("other.fabric.internal") == set()
    assert resolve("mine-worker.elsewhere") == set()
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert program.build_cloud_map_resolver(REGION, silent)("mine-worker.fabric.internal") is None


def test_a_complete_answer_of_many_addresses_forgets_those_that_went(program: ModuleType) -> None:
    name = program.DnsName("mine-worker.fabric.internal", 8000, is_complete=True)
    addresses = {f"10.0.0.{number}" for number in range(12)}
    name.refresh(lambda _: addresses, lambda _: ("m",))
    name.refresh(lambda _: addresses - {"10.0.0.3"}, lambda _: ("m",))
    assert name.addresses == addresses - {"10.0.0.3"}
    partial = program.DnsName("mine-worker.fabric.internal", 8000)
    partial.refresh(lambda _: addresses, lambda _: ("m",))
    partial.refresh(lambda _: addresses - {"10.0.0.3"}, lambda _: ("m",))
    assert partial.addresses == addresses


class Engine(ThreadingHTTPServer):
    """Lists a model; answers requests with `status`."""

    status = 503
    bodies: list[dict[str, Any]]


class Handler(QuietHandler):
    def do_GET(self) -> None:
        self.respond_json({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        assert isinstance(self.server, Engine)
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.respond_json({}, self.server.status)


def test_an_engine_that_lists_models_counts_once_it_has_answered_a_request(program: ModuleType) -> None:
    engine = Engine(("127.0.0.1", 0), Handler)
    engine.bodies = []
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{engine.server_port}"
    fetch = program.build_fetch({"path": "/v1/completions", "body": {"model": "first", "prompt": "?"}})
    assert program.fetch_models(url) == ("m",)
    assert fetch(url) is None
    engine.status = 200
    assert fetch(url) == ("m",)
    engine.status = 503
    assert fetch(url) == ("m",)
    assert engine.bodies == [{"model": "m", "prompt": "?"}] * 2
    engine.shutdown()
    engine.server_close()
