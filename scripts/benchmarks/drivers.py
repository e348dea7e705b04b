"""Compare our load driver with GuideLLM, AIPerf, inference-perf and `vllm bench serve` on servers with known delays.

    python -m scripts.benchmarks.drivers [--drivers own aiperf ...] [--requests 200]

All run through `blueprint validate`'s own code (`--driver NAME`), send the same prompts at the same rate to the same
server (scripts/benchmarks/known_server.py), one after another, and our report judges what each measured.

Method, each load Poisson at 20 requests/s but the last:

- known: every tenth request is a fault, in turn a first token after 500 ms instead of 50 and an error 500. Errors are
  the driver's percentile of the time to first token, or its goodput (within 200 ms), minus the server's own of the same
  requests.
- stall: the server is stopped for 2 s in every 5 (SIGSTOP). What clients see is up to 2,050 ms.
- overload: the server answers 16 requests/s (slots), so that its queue grows until the load ends.
- starved: three busy loops share the driver's core; the server has the other one and answers as ever. Errors as above.
- streams/CPU s: closed loop of 32 users, first token after 5 ms, then one each ms; CPU time of the driver and its
  children between a short and a long run, so that its start does not count.

A verdict is our gate's over what the driver measured, with `ttft_ms: {p95: 200}`: of a stall and of an overload, PASS
is wrong; of a starved driver FAIL is, where its own delay is all that the service did.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
from rich.table import Table

from llm_serving import console, program
from llm_serving.kinds.serving.blueprint import Disruption
from llm_serving.kinds.serving.deployment import Role, ServedModel, ServingDeployment, Weights
from llm_serving.services.environment import Environment, Process
from llm_serving.services.traffic import Slo, Traffic
from llm_serving.settings.units import Bounds
from llm_serving.targets.local.conventions import CONVENTIONS
from llm_serving.validation import run, sample_statistics
from llm_serving.validation.base import ValidationOptions
from llm_serving.validation.drivers import registry
from llm_serving.validation.report import Report
from scripts.benchmarks import known_server
from scripts.benchmarks.known_server import Behaviour
from scripts.benchmarks.load_driver import read_children_cpu_s

OWN = "own"
LIMIT_MS = 200.0
SLO = {"ttft_ms": {"p95": LIMIT_MS}, "errors": "10%"}
RATE = 20
OUTPUT_TOKENS = 16
TTFT_S, ITL_S = 0.05, 0.01
STALL_S, STALL_PERIOD_S = 2.0, 5.0
BUSY = Behaviour(ttft_s=0.005, itl_s=0.001)
BUSY_USERS = 32
HOGS = 3
LONG = 8
"""The long run's requests, by the short one's."""


LOADS = ("known", "stall", "overload", "starved", "busy")
COLUMNS = ("p50", "p99", "goodput", "stall", "overload", "starved", "streams/CPU s")


class Outcome(NamedTuple):
    """A driver's report of a load, and the server's own numbers of it."""

    report: Report
    cpu_s: float
    true_p50_ms: float
    true_p99_ms: float
    true_goodput: float

    def format_errors(self) -> list[str]:
        latency = self.report.metrics["ttft_ms"]
        goodput = (self.report.goodput.share or 0.0) - self.true_goodput
        return [
            f"{(latency.p50 or 0) - self.true_p50_ms:+.1f}",
            f"{(latency.p99 or 0) - self.true_p99_ms:+.1f}",
            f"{100 * goodput:+.1f}",
        ]

    def format_sight(self) -> str:
        p99 = self.report.metrics["ttft_ms"].p99
        return f"{'-' if p99 is None else f'{p99:,.0f}'} {self.report.verdict.upper()}"


def measure(name: str, behaviour: Behaviour, traffic: dict[str, Any], folder: Path) -> Outcome:
    """Run one driver against a new server on the other core."""
    folder.mkdir(parents=True)
    core = 1 if (os.cpu_count() or 1) > 1 else None
    with known_server.run_server(behaviour, core=core) as url, contextlib.ExitStack() as stack:
        if "stall" in folder.name:
            stack.enter_context(_stop_now_and_then(url))
        if "starved" in folder.name:
            stack.enter_context(_keep_core_busy())
        before = read_children_cpu_s()
        driver = None if name == OWN else name
        options = ValidationOptions(logs=folder / "logs", runs=folder / "runs", driver=driver)
        report, _ = run.validate(build_deployment(url, traffic), options)
        cpu_s = read_children_cpu_s() - before
        with urllib.request.urlopen(f"{url}/known", timeout=30) as response:
            server_record = json.load(response)
    answered = report.requests.total - report.requests.failed
    times = [value * 1000 for value in server_record["ttft_s"][-answered:]]
    truth = sample_statistics.summarize_latency(times)
    good = sum(value <= LIMIT_MS for value in times) / max(1, report.requests.total)
    return Outcome(report, cpu_s, truth.p50 or 0.0, truth.p99 or 0.0, good)


def build_deployment(url: str, traffic: dict[str, Any]) -> ServingDeployment:
    """A deployment whose one worker and router are the server."""
    weights = Weights(uri="s3://models/known/", loader="runai_streamer", bytes=1, random=True)
    served = ServedModel(model="known", name="known", weights=weights, context=4096)
    roles = []
    for kind, name in (("engine", "worker"), ("router", "router")):
        process = Process(name=f"{name}-0", command=("true",), env={}, port=urlsplit(url).port or 0)
        roles.append(
            Role(
                name=name,
                kind=kind,
                served_model=served if kind == "engine" else None,
                pool="general",
                replicas=Bounds(1, 1),
                kv_block=128 if kind == "engine" else 0,
                processes=(process,),
                instances=(process,),
            )
        )
    return ServingDeployment(
        name="known",
        pattern="aggregated",
        target="local",
        fleet="known",
        engine="vllm",
        framework="plain",
        roles=tuple(roles),
        url=url,
        disruption=Disruption(),
        request_timeout_s=1800,
        traffic=Traffic.model_validate({"input_tokens": 64, "output_tokens": OUTPUT_TOKENS, "warm_up": 5, **traffic}),
        slo=Slo.model_validate(SLO),
        environment=Environment(target="local", conventions=CONVENTIONS, region="us-west-2", bucket="models"),
        emulated=("A server with known delays stands in for the engine.",),
    )


@contextlib.contextmanager
def _stop_now_and_then(url: str) -> Iterator[None]:
    """Stop the server's process for STALL_S of every STALL_PERIOD_S."""
    port = str(urlsplit(url).port)
    children = psutil.Process().children(recursive=True)
    pid = next(child.pid for child in children if port in child.cmdline())
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(STALL_PERIOD_S - STALL_S):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _keep_core_busy() -> Iterator[None]:
    """Share this process's first core, to which it and its children are pinned, with busy loops."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        os.sched_setaffinity(0, cores)


def measure_driver(name: str, requests: int, loads: Sequence[str], root: Path) -> list[str]:
    """Measure one driver under the loads; return its row, with a dash for each load that was left out."""
    load = {"arrivals": f"{RATE}/s", "requests": requests}
    calm = Behaviour(TTFT_S, ITL_S)
    faulty = Behaviour(TTFT_S, ITL_S, faults=("slow", "http_500"), fault_interval=10)
    full = Behaviour(TTFT_S, ITL_S, slots=round(16 * (TTFT_S + ITL_S * (OUTPUT_TOKENS - 1))))
    cells = dict.fromkeys(COLUMNS, "-")
    if "known" in loads:
        outcome = measure(name, faulty, load, root / "known")
        cells |= dict(zip(("p50", "p99", "goodput"), outcome.format_errors(), strict=True))
    for column, behaviour in (("stall", calm), ("overload", full), ("starved", calm)):
        if column in loads:
            outcome = measure(name, behaviour, load, root / column)
            errors = outcome.format_errors()[1]
            sight = outcome.format_sight()
            cells[column] = f"{errors} {outcome.report.verdict.upper()}" if column == "starved" else sight
            console.out.print(f"{name} {column}: {cells[column]}", markup=False)
    if "busy" in loads:
        cells["streams/CPU s"] = f"{_measure_streams_per_cpu_s(name, requests, root):.0f}"
    return [name, *cells.values()]


def _measure_streams_per_cpu_s(name: str, requests: int, root: Path) -> float:
    busy = {"users": BUSY_USERS, "warm_up": 0}
    short = measure(name, BUSY, {**busy, "requests": requests}, root / "short")
    long = measure(name, BUSY, {**busy, "requests": LONG * requests}, root / "long")
    return (LONG - 1) * requests / max(0.001, long.cpu_s - short.cpu_s)


def main() -> None:
    """Run the benchmark."""
    names = [OWN, *registry.load_drivers()]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--drivers", nargs="*", default=names, choices=names)
    parser.add_argument("--loads", nargs="*", default=LOADS, choices=LOADS)
    parser.add_argument("--requests", type=int, default=200, help="requests of each load at 20/s")
    args = parser.parse_args()
    table = Table(title="Load drivers on servers with known delays and faults", title_justify="left")
    for title in ("driver", *COLUMNS):
        table.add_column(title, justify="left" if title == "driver" else "right")
    with tempfile.TemporaryDirectory(prefix="drivers-") as work:
        for name in args.drivers:
            row = measure_driver(name, args.requests, args.loads, Path(work) / name)
            console.out.print(" | ".join(row), markup=False)
            table.add_row(*row)
    console.out.print(table)
    console.out.print(
        "p50, p99 (ms) and goodput (percentage points): error under faults. stall, overload: p99 (ms) and verdict. "
        "starved: error of p99 (ms) and verdict."
    )
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    console.out.print(f"{args.requests} requests a load; {load}. Method: scripts/benchmarks/drivers.py.", markup=False)


if __name__ == "__main__":
    raise SystemExit(program.run(main))
