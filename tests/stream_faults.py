"""Sends events through a stream on this machine while parts of it are killed, away or slow, and counts what became of them.

Kafka, Flink and Redis are real, deployed by the pattern near-real-time; the endpoint is a mock (batch_endpoint.py) that
hangs, answers half, refuses or has no name as told. Each event must have exactly one outcome for a `read_committed`
reader, and the cache each shopper's newest answer. A line of JSON for each fault; exit status 1 if one loses or doubles.

    python -m tests.stream_faults kills --kills 20 --seed 1
    python -m tests.stream_faults broker_away cache_hangs overload
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import math
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis
from aiohttp import web

from llm_serving import console, paths, processes, program
from llm_serving.cli import main as blueprint
from llm_serving.kinds.streaming import programs
from llm_serving.kinds.streaming.deployment import StreamingDeployment
from llm_serving.kinds.streaming.validation import outcomes, validate
from llm_serving.kinds.streaming.validation.outcomes import Outcomes
from llm_serving.settings.errors import CheckFailed
from llm_serving.targets.deployment_dir import DeploymentDir
from llm_serving.targets.local import supervisor
from tests import batch_endpoint

NAME = "shop"
HOST = "endpoint.test"
"""Name of the endpoint, which a hosts file of the JVMs resolves."""

WARM_UP_S, COOL_DOWN_S = 5.0, 15.0
"""Time of the load before and after a fault."""

RESTART_S = 4.0
"""About how long a killed process is away."""

START_LIMIT_S = 120.0
"""Longest until the load starts, or a process that was killed is up."""


@dataclass
class FaultyEndpoint:
    """An endpoint on a thread of its own; `fault` is what it does now: answer, hang, refuse, half or stall."""

    delay_s: float = 0.1
    fault: str = "answer"
    requests: int = 0
    running: int = 0
    port: int = field(default_factory=lambda: processes.claim_free_ports(1)[0])

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        """Serve during the block."""
        loop = asyncio.new_event_loop()
        app = batch_endpoint.build_app(batch_endpoint.Engine(self.delay_s, slots=100_000))

        @web.middleware
        async def spoil(request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> web.StreamResponse:
            return await self._spoil(request, handler)

        app.middlewares.append(spoil)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        loop.run_until_complete(runner.setup())
        loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", self.port, backlog=4096).start())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _spoil(self, request: web.Request, answer: Callable[[web.Request], Awaitable[Any]]) -> web.StreamResponse:
        self.requests += 1
        self.running += 1
        try:
            if self.fault == "answer":
                response: web.StreamResponse = await answer(request)
                return response
            if self.fault == "refuse":
                return web.Response(status=503)
            return await self._answer_half(request)
        finally:
            self.running -= 1

    async def _answer_half(self, request: web.Request) -> web.StreamResponse:
        """Send headers and half of the body, unless it hangs; then close the connection, or leave it open."""
        fault = self.fault
        if fault != "hang":
            response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "400"})
            await response.prepare(request)
            await response.write(b" " * 200)
        while fault != "half" and self.fault == fault:
            await asyncio.sleep(0.1)
        if request.transport:
            request.transport.close()
        return web.Response()


@dataclass
class Stream:
    """A deployed stream."""

    root: Path
    endpoint: FaultyEndpoint
    hosts: Path

    @property
    def deployment(self) -> StreamingDeployment:
        """Its resolved data."""
        found = DeploymentDir(NAME, self.root).load_deployment()
        assert isinstance(found, StreamingDeployment)
        return found

    @property
    def supervisor(self) -> supervisor.Supervisor:
        """What starts its processes again."""
        return supervisor.Supervisor(DeploymentDir(NAME, self.root))

    def find_process(self, name: str) -> psutil.Process:
        """Find the process of a service."""
        process = psutil.Process(self.supervisor.read_state(name).pid)
        children = process.children(recursive=True)
        return next((child for child in children if child.name() in ("java", "redis-server")), process)

    def read_flink(self, path: str) -> Any:
        """Read from Flink's REST API."""
        with urllib.request.urlopen(f"{self.deployment.url}{path}", timeout=30) as response:
            return json.load(response)

    def count_restarts(self) -> int:
        """Count how often the job failed since its JobManager started."""
        [job] = self.read_flink("/jobs/overview")["jobs"]
        metrics = self.read_flink(f"/jobs/{job['jid']}/metrics?get=numRestarts")
        return int(metrics[0]["value"]) if metrics else 0

    def read_cache(self) -> dict[str, int]:
        """Read the time of the event that each shopper's answer is for, in milliseconds."""
        prefix = f"{NAME}:stream:"
        with redis.Redis.from_url(self.deployment.cache_url) as client:
            keys = list(client.scan_iter(f"{prefix}*", count=1000))
            values = client.mget(keys) if keys else []
        times = [round(1000 * json.loads(value)["at"]) for value in values]
        return {key.decode().removeprefix(prefix): at for key, at in zip(keys, times, strict=True)}


@contextlib.contextmanager
def deploy(endpoint: FaultyEndpoint, deadline: str = "10s") -> Iterator[Stream]:
    """Deploy a copy of the pattern that asks `endpoint`, for the time of the block."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, endpoint.serve():
        root = Path(folder)
        copy = Path(shutil.copytree(paths.PATTERNS / "near-real-time", root / NAME))
        shutil.copy(paths.ROOT / "fleet.yaml", root)
        file = copy / "blueprint.yaml"
        text = file.read_text().replace("rate: 2,", "rate: 0,")
        text = text.replace("mock: {latency: 0.1s}", f"url: http://{HOST}:{endpoint.port}\n  model: m")
        file.write_text(text.replace("deadline: 2s", f"deadline: {deadline}"))
        stream = Stream(root, endpoint, root / "hosts")
        write_hosts(stream, HOST)
        os.environ["JAVA_TOOL_OPTIONS"] = f"-Djdk.net.hosts.file={stream.hosts}"
        os.chdir(root)
        try:
            run_blueprint("deploy", NAME, "--yes")
            validate.wait_running(stream.deployment.url)
            yield stream
        finally:
            blueprint.run(["destroy", NAME, "--yes"])
            os.chdir(before)
            del os.environ["JAVA_TOOL_OPTIONS"]


def run_blueprint(*arguments: str) -> None:
    """Run a command of `blueprint`.

    Raises:
        CheckFailed: it fails.
    """
    if blueprint.run(list(arguments)):
        raise CheckFailed(f"blueprint {' '.join(arguments)} failed")


def write_hosts(stream: Stream, *names: str) -> None:
    """Write what names resolve to in the JVMs."""
    stream.hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(names)}\n")


def find_mistakes(measured: Outcomes, cached: dict[str, int] | None) -> list[str]:
    """List events that are lost or doubled, and shoppers whose newest answer is not in the cache.

    Args:
        cached: time of the event of each shopper's answer, in milliseconds; None where the cache itself was away.
    """
    counts = outcomes.count(measured)
    mistakes = [f"{counts.lost} events are lost"] if counts.lost else []
    mistakes += [f"{counts.duplicated} events are doubled"] if counts.duplicated else []
    newest: dict[str, int] = {}
    for outcome in measured.arrived:
        if outcome["kind"] == outcomes.ANSWER:
            newest[outcome["shopper"]] = max(newest.get(outcome["shopper"], 0), outcome["at"])
    wrong = [] if cached is None else [shopper for shopper, at in newest.items() if cached.get(shopper) != at]
    return mistakes + ([f"the cache has not the newest answer of {len(wrong)} shoppers"] if wrong else [])


Fault = Callable[[Stream, argparse.Namespace], None]
"""Does harm, and undoes it."""


def kill_at_random(stream: Stream, arguments: argparse.Namespace) -> None:
    """Kill TaskManager and broker `--kills` times each, in random order, at random times."""
    chance = random.Random(arguments.seed)
    victims = ["taskmanager", "kafka"] * arguments.kills
    chance.shuffle(victims)
    for number, victim in enumerate(victims, start=1):
        time.sleep(chance.uniform(0, 2 * arguments.pause))
        processes.wait_until(functools.partial(_kill, stream, victim), victim, START_LIMIT_S)
        console.err.print(f"{number:>4} {victim}", markup=False)


def _kill(stream: Stream, name: str) -> bool:
    """Kill a process unless it is starting; return whether that was done."""
    if stream.supervisor.read_state(name).state != "RUNNING":
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        stream.find_process(name).kill()
        return True
    return False


def kill_job_manager(stream: Stream, arguments: argparse.Namespace) -> None:
    """Kill the JobManager."""
    stream.find_process("jobmanager").kill()


def take_away(name: str) -> Fault:
    """Build the fault of a process that is away."""

    def stop(stream: Stream, arguments: argparse.Namespace) -> None:
        stream.supervisor.stop(name)
        time.sleep(arguments.hold)
        stream.supervisor.start(name)

    return stop


def suspend(name: str) -> Fault:
    """Build the fault of a process that hangs."""

    def hang(stream: Stream, arguments: argparse.Namespace) -> None:
        process = stream.find_process(name)
        process.suspend()
        time.sleep(arguments.hold)
        process.resume()

    return hang


def remove_store(stream: Stream, arguments: argparse.Namespace) -> None:
    """Take the folder of checkpoints away."""
    store = Path(stream.deployment.environment.data_folder, "checkpoints")
    away = store.with_name("away")
    store.rename(away)
    store.write_text("no folder")
    time.sleep(arguments.hold)
    store.unlink()
    away.rename(store)


def delete_topic(kind: str) -> Fault:
    """Build the fault of a topic that somebody deletes."""

    def delete(stream: Stream, arguments: argparse.Namespace) -> None:
        deployment = stream.deployment
        program = paths.ROOT / "tests" / "kinds" / "streaming" / "DeleteTopic.java"
        topic = getattr(deployment.topics, kind)
        command = [*programs.build_java(heap_mb=64), str(program), deployment.brokers, topic]
        subprocess.run(command, timeout=120, check=True)

    return delete


def demote_cache(stream: Stream, arguments: argparse.Namespace) -> None:
    """Let the cache take no writes, as a primary after a failover."""
    with redis.Redis.from_url(stream.deployment.cache_url) as client:
        client.replicaof("127.0.0.1", "1")
        time.sleep(arguments.hold)
        client.replicaof("NO", "ONE")


def spoil_endpoint(kind: str) -> Fault:
    """Build a fault of the endpoint."""

    def spoil(stream: Stream, arguments: argparse.Namespace) -> None:
        stream.endpoint.fault = kind
        time.sleep(arguments.hold)
        stream.endpoint.fault = "answer"

    return spoil


def forget_name(stream: Stream, arguments: argparse.Namespace) -> None:
    """Let the endpoint's name resolve to nothing."""
    write_hosts(stream)
    time.sleep(arguments.hold)
    write_hosts(stream, HOST)


def wait(stream: Stream, arguments: argparse.Namespace) -> None:
    """Do no harm: ten times as many events as otherwise are enough."""
    time.sleep(arguments.hold)


FAULTS: dict[str, Fault] = {
    "kills": kill_at_random,
    "job_manager_killed": kill_job_manager,
    "broker_away": take_away("kafka"),
    "broker_hangs": suspend("kafka"),
    "store_away": remove_store,
    "cache_away": take_away("cache"),
    "cache_hangs": suspend("cache"),
    "cache_read_only": demote_cache,
    "results_deleted": delete_topic("results"),
    "dead_letters_deleted": delete_topic("dead_letters"),
    "endpoint_hangs": spoil_endpoint("hang"),
    "endpoint_half": spoil_endpoint("half"),
    "endpoint_stalls": spoil_endpoint("stall"),
    "endpoint_refuses": spoil_endpoint("refuse"),
    "name_fails": forget_name,
    "overload": wait,
}


def run_fault(stream: Stream, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Send events while a fault lasts; returns what became of them."""
    hold_s = 2 * arguments.kills * (arguments.pause + RESTART_S) if name == "kills" else arguments.hold
    rate = arguments.overload if name == "overload" else arguments.rate
    sample = stream.deployment.sample.model_copy(update={"bad_events": arguments.bad, "rate": rate})
    deployment = stream.deployment.model_copy(update={"sample": sample})
    event_count = round(rate * (WARM_UP_S + hold_s + COOL_DOWN_S))
    work = stream.root / name
    work.mkdir()
    validate.wait_running(deployment.url)
    requests, memory = stream.endpoint.requests, [measure_memory(stream)]
    sender = threading.Thread(
        target=validate.send, args=(deployment, event_count, work), kwargs={"drain_s": arguments.drain}, daemon=True
    )
    sender.start()
    sent = work / "sent.jsonl"
    processes.wait_until(lambda: sent.exists() and sent.stat().st_size > 0, "the first events", START_LIMIT_S)
    time.sleep(WARM_UP_S)
    began, asked = time.time(), stream.endpoint.requests
    FAULTS[name](stream, arguments)
    ended, asked = time.time(), stream.endpoint.requests - asked
    while sender.is_alive():
        memory.append(measure_memory(stream))
        sender.join(timeout=1)
    validate.wait_running(deployment.url)
    measured = outcomes.read(work)
    cached = None if name.startswith("cache") else stream.read_cache()
    pipeline = sorted(time for time in outcomes.measure_times(measured).pipeline if math.isfinite(time))
    return {
        "fault": name,
        "mistakes": find_mistakes(measured, cached),
        "events": outcomes.count(measured).model_dump(),
        "dead_reasons": outcomes.count_reasons(measured),
        "not_cached": sum(
            outcome["kind"] == outcomes.ANSWER and not outcome["cached_at"] for outcome in measured.arrived
        ),
        "requests_per_event": round((stream.endpoint.requests - requests) / event_count, 3),
        "requests_per_event_meanwhile": round(
            asked / max(1, sum(began <= event["due_at"] < ended for event in measured.sent)), 3
        ),
        "requests_left": stream.endpoint.running,
        "restarts": stream.count_restarts(),
        "task_manager_mb": {"first": memory[0], "highest": max(memory), "last": memory[-1]},
        "drained_s": round(max(o["committed_at"] for o in measured.arrived) / 1000 - measured.sent[-1]["due_at"], 1),
        "pipeline_p50_ms": round(pipeline[len(pipeline) // 2]) if pipeline else None,
    }


def measure_memory(stream: Stream) -> int:
    """Measure the resident memory of the TaskManager in MB; 0 while it is down."""
    with contextlib.suppress(psutil.Error):
        return int(stream.find_process("taskmanager").memory_info().rss / 1e6)
    return 0


def main(words: Sequence[str] | None = None) -> None:
    """Run the faults that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"default all: {', '.join(FAULTS)}")
    parser.add_argument("--kills", type=int, default=20, help="of TaskManager and of broker")
    parser.add_argument("--pause", type=float, default=8, help="mean time between kills, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=40, help="events a second")
    parser.add_argument("--bad", type=int, default=0, help="further events, which must become dead letters")
    parser.add_argument("--overload", type=float, default=3000, help="events a second of the fault overload")
    parser.add_argument("--delay", type=float, default=0.1, help="of the endpoint, in seconds")
    parser.add_argument("--deadline", default="10s", help="of an answer; what shares the machine may use it up")
    parser.add_argument("--hold", type=float, default=60, help="how long a fault lasts, in seconds")
    parser.add_argument("--drain", type=int, default=300, help="longest wait for the last outcome, in seconds")
    arguments = parser.parse_args(words)
    with deploy(FaultyEndpoint(arguments.delay), arguments.deadline) as stream:
        wrong = []
        for name in arguments.faults or FAULTS:
            result = run_fault(stream, name, arguments)
            print(json.dumps(result), flush=True)
            wrong += [name] if result["mistakes"] else []
    if wrong:
        raise CheckFailed(f"events are lost or doubled, or the cache is wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    raise SystemExit(program.run(main))
