"""Compare the load driver with `guidellm` and `vllm bench serve`: streams per core, and the error of its times.

All load the same server with known delays (scripts/benchmarks/known_server.py), on this machine:

    python -m scripts.benchmarks.load_driver [--tools blueprint vllm guidellm] [--requests 1500]

Method:

- error: the tool's percentile of the time to first token minus the server's of the same requests (from a request's last
  byte to the write of its first token, on the server's clock), under a load that leaves both idle most of the time. It
  includes the time in the kernel, which is the same for all.
- streams/s: from the tool's own report, with the tool on one core and the server on another, and enough users to keep
  the tool busy.
- streams/CPU s: CPU time of the tool and its children, user and system, between a short and a long run, so that startup
  does not count.
- server: share of a core that the server used in the long run. Near 100% the server is the bottleneck.

guidellm runs from an environment in uv's cache, vLLM from the engine's; neither is part of the product.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from llm_serving import console, program
from llm_serving.hub import make_tiny
from llm_serving.services.traffic import Traffic
from llm_serving.settings.errors import Unavailable
from llm_serving.validation import driver_result, run, sample_statistics
from llm_serving.validation.answer import Sample
from llm_serving.validation.driver_result import DriverResult
from llm_serving.validation.load_plan import LoadPlan
from scripts.benchmarks import known_server
from scripts.benchmarks.known_server import Behaviour

GUIDELLM = "guidellm==0.8.1"
ENGINE = Path(__file__).parents[2] / ".venv-engine" / "bin"
INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
LIMIT_S = 900.0
MIN_ANSWERED_SHARE = 0.95
"""Required share of answered requests; guidellm omits a few that its last users had started."""


@dataclass(frozen=True)
class LoadSpec:
    """Load of a tool."""

    behaviour: Behaviour
    users: int
    requests: int


CALM_LOAD = LoadSpec(Behaviour(ttft_s=0.050, itl_s=0.010), users=8, requests=300)
"""Both sides are idle most of the time: the error is the tool's own."""

BUSY_BEHAVIOUR = Behaviour(ttft_s=0.005, itl_s=0.001)
BUSY_USERS = 64


class ToolReport(NamedTuple):
    """A tool's own report of a load."""

    answered: int
    per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float


class Measurement(NamedTuple):
    """A tool's report, its CPU time, and the server's actual times."""

    report: ToolReport
    cpu_s: float
    true_p50_ms: float
    true_p99_ms: float
    server_share: float


Tool = Callable[[str, LoadSpec, Path], ToolReport]


def measure(tool: Tool, load: LoadSpec, folder: Path) -> Measurement:
    """Run a tool against a new server."""
    folder.mkdir(parents=True)
    with known_server.run_server(
        load.behaviour, log=folder / "server.log", core=1 if _has_two_cores() else None
    ) as url:
        before, cpu_before = _fetch_known(url)["cpu_s"], read_children_cpu_s()
        report = tool(url, load, folder)
        cpu_s, server_facts = read_children_cpu_s() - cpu_before, _fetch_known(url)
    if report.answered < load.requests * MIN_ANSWERED_SHARE:
        raise Unavailable(f"only {report.answered} of {load.requests} requests were answered")
    # Earlier requests are the tool's own probes and warm-up.
    truth = sample_statistics.summarize_latency([value * 1000 for value in server_facts["ttft_s"][-report.answered :]])
    seconds = report.answered / report.per_s
    server_share = (server_facts["cpu_s"] - before) / seconds
    return Measurement(report, cpu_s, truth.p50 or 0.0, truth.p99 or 0.0, server_share)


def _fetch_known(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/known", timeout=30) as response:
        facts: dict[str, Any] = json.load(response)
        return facts


def read_children_cpu_s() -> float:
    """Return the CPU time of exited children and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _has_two_cores() -> bool:
    return (os.cpu_count() or 1) >= 2 and shutil.which("taskset") is not None


def _pin_to_core(command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", "0", *command] if _has_two_cores() else list(command)


def run_blueprint(url: str, load: LoadSpec, folder: Path) -> ToolReport:
    """This project's driver: Locust with the plan that `blueprint validate` would give it."""
    traffic = Traffic.model_validate(
        {
            "users": load.users, "requests": load.requests, "warm_up": load.users,
            "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS,
        }
    )  # fmt: skip
    driver_plan = LoadPlan(url=url, models=("tiny",), traffic=traffic, folder=str(folder))
    (folder / driver_result.PLAN_FILE).write_text(driver_plan.model_dump_json(), encoding="utf-8")
    command = run.build_commands(driver_plan, Path(run.__file__).with_name("locustfile.py"))[0]
    console.run(_pin_to_core(command.arguments), log=command.log, timeout_s=LIMIT_S)
    result = driver_result.read_result(folder, 0) or DriverResult()
    samples = [Sample.from_json(line) for line in (folder / driver_result.SAMPLES_FILE).read_text().splitlines()]
    ttft = sample_statistics.summarize_latency(
        [sample.ttft_ms for sample in samples if sample.error is None and sample.ttft_ms]
    )
    return ToolReport(ttft.count, ttft.count / result.duration_s, ttft.p50 or 0.0, ttft.p99 or 0.0)


def run_vllm(url: str, load: LoadSpec, folder: Path) -> ToolReport:
    """Run vLLM's own benchmark client."""
    if not (ENGINE / "vllm").exists():
        raise Unavailable("the engine's environment does not exist. Fix: ./install.sh.")
    model = make_tiny.make("tiny", folder.parent / "tiny")
    command = [
        str(ENGINE / "vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", url,
        "--endpoint", "/v1/chat/completions", "--model", "tiny", "--tokenizer", str(model),
        "--dataset-name", "random", "--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS),
        "--num-prompts", str(load.requests), "--max-concurrency", str(load.users), "--ignore-eos", "--disable-tqdm",
        "--num-warmups", str(load.users), "--metric-percentiles", "50,99",
        "--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json",
    ]  # fmt: skip
    console.run(_pin_to_core(command), log=folder / "vllm.log", environment=_OFFLINE_ENV, timeout_s=LIMIT_S)
    result = json.loads((folder / "vllm.json").read_text())
    return ToolReport(result["completed"], result["request_throughput"], result["p50_ttft_ms"], result["p99_ttft_ms"])


def run_guidellm(url: str, load: LoadSpec, folder: Path) -> ToolReport:
    """Run GuideLLM, from an environment in uv's cache."""
    prompts = folder / "prompts.jsonl"
    rows = [
        {"prompt": f"{number} " + "the " * INPUT_TOKENS, "output_tokens_count": OUTPUT_TOKENS}
        for number in range(load.requests)
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    command = [
        str(Path(sys.executable).with_name("uv")), "tool", "run", "--from", GUIDELLM, "guidellm", "run",
        "--backend", f"kind=openai_http,target={url},model=tiny",
        "--profile", f"kind=concurrent,streams={load.users}",
        "--constraint", f"kind=max_requests,count={load.requests}",
        "--data", f"kind=json_file,path={prompts}",
        "--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-console",
    ]  # fmt: skip
    console.run(_pin_to_core(command), log=folder / "guidellm.log", environment=_OFFLINE_ENV, timeout_s=LIMIT_S)
    result = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    ttft = result["metrics"]["time_to_first_token_ms"]["successful"]
    answered = result["metrics"]["request_totals"]["successful"]
    percentiles = ttft["percentiles"]
    return ToolReport(answered, answered / result["duration"], percentiles["p50"], percentiles["p99"])


_OFFLINE_ENV = {"HF_HUB_OFFLINE": "1"}

TOOLS: dict[str, Tool] = {"blueprint": run_blueprint, "vllm": run_vllm, "guidellm": run_guidellm}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=TOOLS, help="tools to run")
    parser.add_argument(
        "--requests", type=int, default=1500, help="requests of the long run, five times those of the short one"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = {name: _measure_tool(name, args.requests, Path(work) / name) for name in args.tools}
    _print_table(rows)


def _measure_tool(name: str, requests: int, folder: Path) -> tuple[Measurement, Measurement, Measurement]:
    """Measure a tool under the calm load, and under a short and a long busy one."""
    with console.step(f"{name}: error of the time to first token"):
        calm = measure(TOOLS[name], CALM_LOAD, folder / "calm")
    with console.step(f"{name}: streams per core"):
        short = measure(TOOLS[name], LoadSpec(BUSY_BEHAVIOUR, BUSY_USERS, requests // 5), folder / "short")
        long = measure(TOOLS[name], LoadSpec(BUSY_BEHAVIOUR, BUSY_USERS, requests), folder / "long")
    return calm, short, long


def _print_table(rows: dict[str, tuple[Measurement, Measurement, Measurement]]) -> None:
    table = Table(title="Load drivers against a server with known delays", title_justify="left")
    table.add_column("tool")
    for title in ("TTFT p50 (error) ms", "TTFT p99 (error) ms", "streams/s", "streams/CPU s", "server busy"):
        table.add_column(title, justify="right")
    for name, (calm, short, long) in rows.items():
        p50, p99 = calm.report.ttft_p50_ms, calm.report.ttft_p99_ms
        table.add_row(
            name,
            f"{p50:.2f} ({p50 - calm.true_p50_ms:+.2f})",
            f"{p99:.2f} ({p99 - calm.true_p99_ms:+.2f})",
            f"{long.report.per_s:.0f}",
            f"{(long.report.answered - short.report.answered) / (long.cpu_s - short.cpu_s):.0f}",
            f"{long.server_share:.0%}",
        )
    console.out.print(table)
    console.out.print(
        f"TTFT: {CALM_LOAD.users} users, {CALM_LOAD.requests} streams of {OUTPUT_TOKENS} tokens, first token after "
        f"{CALM_LOAD.behaviour.ttft_s * 1000:g} ms, then one every {CALM_LOAD.behaviour.itl_s * 1000:g} ms. Streams: "
        f"{BUSY_USERS} users, the tool on one core and the server on another, of {os.cpu_count()}. "
        "Method: scripts/benchmarks/load_driver.py.",
        markup=False,
    )


if __name__ == "__main__":
    raise SystemExit(program.run(main))
